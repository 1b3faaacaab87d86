"""The rows of a part: what was predicted of each image, in columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tdumpra.core.gate import GateSignals

if TYPE_CHECKING:
    import pyarrow as pa

    from tdumpra.runtime.prediction import Prediction

_LABELS = ("label_cls", "label_sim")  # signals that are classes
_NUMBERS = tuple(name for name in GateSignals._fields if name not in _LABELS)


def predictions_table(
    ids: Sequence[str], predictions: Sequence[Prediction], class_names: Sequence[str], width: int | None
) -> pa.Table:
    """Return one row for each image, in order.

    Args:
        ids: the images' names.
        predictions: what was predicted of each.
        class_names: the model's classes; each has a column ``p_NAME``.
        width: of the embeddings, where they are wanted.
    """
    import pyarrow as pa

    right = [each.error is None for each in predictions]
    signals = [each.signals for each in predictions]

    def where_right(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([value if ok else None for value, ok in zip(values, right, strict=True)], kind)

    columns: dict[str, pa.Array] = {
        "id": pa.array(ids, pa.string()),
        "label": where_right((each.label for each in predictions), pa.string()),
        "classifier": where_right((_own_label(each, class_names) for each in predictions), pa.string()),
        "opened": where_right((each.opened for each in predictions), pa.bool_()),
        "asked": where_right((each is not None for each in signals), pa.bool_()),
    }
    for name in class_names:
        columns[f"p_{name}"] = pa.array([each.probabilities.get(name) for each in predictions], pa.float64())
    for name in _NUMBERS:
        columns[name] = pa.array([None if s is None else float(s[name]) for s in signals], pa.float64())
    columns["retrieval"] = pa.array(
        [None if s is None else class_names[int(s["label_sim"])] for s in signals], pa.string()
    )
    if width is not None:
        rows = [None if each.embedding is None else each.embedding.tolist() for each in predictions]
        columns["embedding"] = pa.array(rows, pa.list_(pa.float32(), width))
    columns["error"] = pa.array([each.error for each in predictions], pa.string())
    return pa.table(columns)


def _own_label(prediction: Prediction, class_names: Sequence[str]) -> str:
    """Return the classifier's label, before the gate."""
    return prediction.label if prediction.signals is None else class_names[int(prediction.signals["label_cls"])]
