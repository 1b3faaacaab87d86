"""Notes on the rows that a gate was chosen on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from tdumpra.checks import some_of

_FEW_ROWS = 500  # an accuracy of 0.85 measured on so many has a standard error of 1.6 points: as much as a gate gains
_FEW_OF_A_CLASS = 5
_FEW_DISAGREEMENTS = 50  # only they tell one gate from another


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
    noun, names = "classes" if len(classes) > 1 else "class", some_of([*map(str, classes)])
    return f"validation has no row of {noun} {names}, which therefore had no say in the choice"


def _small(
    rows: int | None, classes: list[tuple[int, int]], disagreements: int | None, tried: int | None = None
) -> str:
    scarce = [] if rows is None else [f"{rows:,} rows"]
    scarce += [some_of([f"class {c} has {count}" for c, count in classes])] if classes else []
    scarce += [] if disagreements is None else [f"the paths disagree on {disagreements:,}"]
    choice = "what was chosen on it" if tried is None else f"the best of {tried:,} settings"
    return f"validation is small ({'; '.join(scarce)}): {choice} may be luck"


def _not_kept_up(gain: str, so: str) -> str:
    return f"on rows that had no say in the choice the gain is not kept up ({gain}): {so}"


_SENTENCES: dict[str, Callable[..., str]] = {
    "absent classes": _absent,
    "small validation": _small,
    "part of validation": (
        "validation has {of:,} rows: everything was chosen on {rows:,} of them, whole groups drawn at random"
    ).format,
    "shared lesions": (
        "the seeds share validation lesions, so that pooling them adds rows and hardly cases: data.val_by_seed gives "
        "each its own"
    ).format,
    "too few disagreements": (
        "the paths disagree on {lesions} validation lesions, and a gate is judged on no fewer than {needed}: it stays "
        "shut"
    ).format,
    "not survived": partial(_not_kept_up, so="the gate stays shut"),
    "not kept up": partial(_not_kept_up, so="do not expect the gate to help"),
    "lost on other seeds": (  # in files of former versions
        "on seeds that had no say in the choice the gate lost accuracy ({before:.4f} to {after:.4f}): do not expect it "
        "to help"
    ).format,
}


def validation_notes(y: Tensor, n_classes: int, n_disagreements: int, n_tried: int) -> tuple[Note, ...]:
    """Note the classes that are absent, and that there is too little of something to choose by."""
    counts = y.bincount(minlength=n_classes).tolist()
    absent = [c for c, count in enumerate(counts) if not count]
    rare = [(c, count) for c, count in enumerate(counts) if 0 < count < _FEW_OF_A_CLASS]
    notes = [Note("absent classes", {"classes": absent})] if absent else []
    if rare or len(y) < _FEW_ROWS or 0 < n_disagreements < _FEW_DISAGREEMENTS:
        numbers = {"rows": len(y), "classes": rare, "disagreements": n_disagreements, "tried": n_tried}
        notes.append(Note("small validation", numbers))
    return tuple(notes)
