"""The code file of a model that MLflow saved: it is copied beside the sealed model file, and runs when MLflow loads it.

Nothing is pickled. MLflow runs this file, and :class:`tdumpra.Predictor` opens the model file, which it refuses if a
byte of it has changed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext

from tdumpra import Prediction, Predictor


class ImagePredictor(PythonModel):  # type: ignore[misc]
    """Predict the images of a table: its column ``path`` names files, or ``image`` holds their bytes."""

    def load_context(self, context: PythonModelContext) -> None:
        """Open the sealed model file."""
        options = context.model_config or {}
        self.predictor = Predictor.load(context.artifacts["model"], trusted=options.get("trusted") or ())

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return label, probabilities, what the gate did, and for an image that cannot be read the reason."""
        if "path" in model_input:
            return self._table(list(map(str, model_input["path"])))
        if "image" not in model_input:
            raise ValueError(f"the table needs a column 'path' or 'image', and has {', '.join(map(str, model_input))}")
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"{i}.image" for i in range(len(model_input))]
            for path, content in zip(paths, model_input["image"], strict=True):
                path.write_bytes(content)
            return self._table(paths).assign(path="")

    def _table(self, paths: list[Any]) -> pd.DataFrame:
        return pd.DataFrame([_row(each) for each in self.predictor.predict(paths)])


def _row(prediction: Prediction) -> dict[str, Any]:
    named = {f"p_{name}": p for name, p in prediction.probabilities.items()}
    return {
        "path": prediction.path,
        "label": prediction.label,
        "opened": prediction.opened,
        "error": prediction.error or "",
        **named,
    }


set_model(ImagePredictor())
