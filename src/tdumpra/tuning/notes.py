"""What a reader should know of the validation rows on which a gate was chosen."""

from __future__ import annotations

from torch import Tensor

_FEW_ROWS = 100
_FEW_OF_A_CLASS = 5
_FEW_DISAGREEMENTS = 20  # only they tell one gate from another


def validation_notes(y: Tensor, n_classes: int, n_disagreements: int) -> tuple[str, ...]:
    """A note on classes that are absent, and one on what there is too little of to choose by."""
    counts = y.bincount(minlength=n_classes).tolist()
    missing = [str(c) for c, count in enumerate(counts) if not count]
    notes = []
    if missing:
        noun = "classes" if len(missing) > 1 else "class"
        notes.append(f"validation has no row of {noun} {', '.join(missing)}, which therefore had no say in the choice")
    small = [f"class {c} has {count}" for c, count in enumerate(counts) if 0 < count < _FEW_OF_A_CLASS]
    scarce = [f"{len(y)} rows"] if len(y) < _FEW_ROWS else []
    scarce += [", ".join(small)] if small else []
    scarce += [f"the paths disagree on {n_disagreements}"] if 0 < n_disagreements < _FEW_DISAGREEMENTS else []
    if scarce:
        notes.append(f"validation is small ({'; '.join(scarce)}): what was chosen on it may be luck")
    return tuple(notes)
