"""Compare a model with its export: the same image files through both, from decoding to the final decision."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tdumpra.errors import InputFileError
from tdumpra.networks.model_file import Model
from tdumpra.networks.predict import Mode, Predictor
from tdumpra.runtime import ExportedPredictor, Prediction
from tdumpra.runtime.exported import Graph
from tdumpra.runtime.sessions import Engine

TOLERANCE = (
    1e-4  # of a probability; two engines that compute the same differ by some 1e-6, which a high kappa magnifies
)


class Comparison(NamedTuple):
    """How far two ways of computing one model agree on some images."""

    n: int
    labels: int  # how many have the same label
    openings: int  # and the same gate
    largest: float  # difference of a probability, or of a signal of the gate
    images: str  # which they were

    @property
    def agrees(self) -> bool:
        """Return whether one can stand for the other."""
        return self.labels == self.openings == self.n and self.largest <= TOLERANCE

    def __str__(self) -> str:
        return (
            f"labels equal on {self.labels} of {self.n} {self.images}, openings on {self.openings}, "
            f"largest difference {self.largest:.2g}"
        )


class Reference:
    """The model's own predictions of some images, in float32 on the CPU, the bank asked about each."""

    def __init__(self, model: Model, paths: Sequence[Path], images: str, *, trusted: Collection[str] = ()) -> None:
        predictor = Predictor(model, mode="eager", device="cpu", precision="float32", trusted=trusted)
        self.images = images
        predicted = _predict(predictor, paths)
        self.predictions = [each for each in predicted if each.error is None]
        if not self.predictions:
            raise InputFileError(f"none of {len(paths)} images to compare on can be predicted: {predicted[0].error}")
        self.paths = [each.path for each in self.predictions]

    def compare(self, graphs: Sequence[Graph], engine: Engine | Literal["auto"] = "auto") -> Comparison:
        """Predict the same images with an export, lazily and eagerly; the worse of the two counts."""
        modes: tuple[Mode, ...] = ("lazy", "eager") if len(graphs) == 2 else ("lazy",)
        found = [
            self._against(_predict(ExportedPredictor(graphs, engine=engine, mode=mode), self.paths)) for mode in modes
        ]
        return min(found, key=lambda each: (each.labels, each.openings, -each.largest))

    def _against(self, others: Sequence[Prediction]) -> Comparison:
        labels = openings = 0
        largest = 0.0
        for own, other in zip(self.predictions, others, strict=True):
            labels += own.label == other.label
            openings += other.error is None and own.opened == other.opened
            p, q = (np.array(list(each.probabilities.values())) for each in (own, other))
            largest = max(largest, _distance(p, q) if other.error is None else 1.0)
            if own.signals and other.signals:  # what the evidence says, also where the gate stays shut
                both = [(own.signals[name], other.signals[name]) for name in own.signals if name in other.signals]
                largest = max([largest, *(_distance(a, b) for a, b in both if isinstance(a, float))])
        return Comparison(len(self.predictions), labels, openings, largest, self.images)


def _distance(p: Any, q: Any) -> float:
    """Return the largest difference; numbers that are none agree with nothing."""
    found = float(np.abs(np.asarray(p, np.float64) - np.asarray(q, np.float64)).max())
    return found if np.isfinite(found) else 1.0


def _predict(predictor: Predictor | ExportedPredictor, paths: Iterable[str | Path]) -> list[Prediction]:
    with warnings.catch_warnings():  # pictures to compare on need no masks: both sides see the same
        warnings.simplefilter("ignore", UserWarning)
        return list(predictor.predict(list(paths)))
