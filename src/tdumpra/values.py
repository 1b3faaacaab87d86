"""Check single values that a user or a file gives: numbers, words, lists, names. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

SPLITS = ("train", "val", "test")
_LIKE_GROUP = frozenset(
    {"group", "groups", "group_id", "lesion", "lesions", "lesion_id", "patient", "patients", "patient_id"}
)  # what a column of lesions or patients is called


def check_unit_interval(value: float, name: str, *, upper: float = 1.0) -> None:
    """Check a threshold or weight between 0 and ``upper``, both included."""
    _check_number(value, name)
    if not 0 <= value <= upper:  # false for NaN too
        raise ValueError(f"{name} must lie between 0 and {upper:.4g}, not {value!r}")


def check_positive(value: float, name: str) -> None:
    """Check a finite number above zero."""
    _check_number(value, name)
    if not 0 < value < np.inf:
        raise ValueError(f"{name} must be a finite number above 0, not {value!r}")


def _check_number(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise TypeError(f"{name} must be a number, not {value!r}")


def check_count(value: int, name: str, *, least: int = 1) -> None:
    """Check a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


def check_choice(value: Any, name: str, choices: Collection[str]) -> None:
    """Check one of a few words."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def check_text(value: Any, name: str) -> str:
    """Return ``value`` if it is a string."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {value!r}")
    return value


def check_list(value: Any, name: str, length: int | None = None) -> list[Any]:
    """Return ``value`` if it is a list, of that length where one is given."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} must be a list, not {value!r}")
    if length is not None and len(value) != length:
        raise ValueError(f"{name} must have {length} entries, not {len(value)}")
    return list(value)


def check_table(value: Any, name: str) -> dict[str, Any]:
    """Return ``value`` if it is a JSON object."""
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be an object, not {value!r}")
    return value


def misnamed_group(names: Iterable[str]) -> str | None:
    """Return a note if a column seems to name lesions or patients and none is called ``group``."""
    found = [name for name in names if name.casefold() in _LIKE_GROUP]
    if not found or "group" in found:
        return None
    return f"it holds {found[0]!r} and no 'group': rename it if it names lesions or patients"
