"""Notes on the rows that a gate was chosen on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

_FEW_ROWS = 100
_FEW_OF_A_CLASS = 5
_FEW_DISAGREEMENTS = 20  # only they tell one gate from another


class Note(str):
    """A sentence for the reader that also says what it is about: its ``kind``, and the ``values`` in it."""

    __slots__ = ("kind", "values")
    kind: str
    values: dict[str, Any]

    def __new__(cls, kind: str, values: dict[str, Any]) -> Note:
        """Write the sentence of that kind."""
        self = super().__new__(cls, _SENTENCES[kind](**values))
        self.kind, self.values = kind, values
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Note, (self.kind, self.values)


def _absent(classes: list[int]) -> str:
    noun, names = "classes" if len(classes) > 1 else "class", ", ".join(map(str, classes))
    return f"validation has no row of {noun} {names}, which therefore had no say in the choice"


def _small(rows: int | None, classes: list[tuple[int, int]], disagreements: int | None) -> str:
    scarce = [] if rows is None else [f"{rows} rows"]
    scarce += [", ".join(f"class {c} has {count}" for c, count in classes)] if classes else []
    scarce += [] if disagreements is None else [f"the paths disagree on {disagreements}"]
    return f"validation is small ({'; '.join(scarce)}): what was chosen on it may be luck"


_SENTENCES: dict[str, Callable[..., str]] = {
    "absent classes": _absent,
    "small validation": _small,
    "shared lesions": (
        "the seeds share validation lesions, so that pooling them adds rows and hardly cases: data.val_by_seed gives "
        "each its own"
    ).format,
    "lost on other seeds": (
        "on seeds that had no say in the choice the gate lost accuracy ({before:.4f} to {after:.4f}): do not expect it "
        "to help"
    ).format,
}


def validation_notes(y: Tensor, n_classes: int, n_disagreements: int) -> tuple[Note, ...]:
    """Note the classes that are absent, and what there is too little of to choose by."""
    counts = y.bincount(minlength=n_classes).tolist()
    absent = [c for c, count in enumerate(counts) if not count]
    scarce = {
        "rows": len(y) if len(y) < _FEW_ROWS else None,
        "classes": [(c, count) for c, count in enumerate(counts) if 0 < count < _FEW_OF_A_CLASS],
        "disagreements": n_disagreements if 0 < n_disagreements < _FEW_DISAGREEMENTS else None,
    }
    notes = [Note("absent classes", {"classes": absent})] if absent else []
    notes += [Note("small validation", scarce)] if any(scarce.values()) else []
    return tuple(notes)
