"""Rows that count as one: those of a lesion or patient; where nothing is known of that, each row by itself."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

Array = np.ndarray


class LesionSums(NamedTuple):
    """Each lesion's name, and what its rows add up to."""

    names: Array
    sums: Int[Array, " g"]


def lesion_of_each_row(groups: Array | None, n_rows: int) -> Array:
    """The group of each row; without groups its number."""
    return np.arange(n_rows) if groups is None else groups


def lesion_numbers(groups: Array | None, n_rows: int) -> Int[Array, " n"]:
    """The same as numbers from 0 on, in the order of the names."""
    numbers: Array = np.unique(lesion_of_each_row(groups, n_rows), return_inverse=True)[1]
    return numbers


def sum_by_lesion(gained: Int[Array, " n"], lesions: Array) -> LesionSums:
    """What was gained in each lesion, in the order of their names."""
    names, member = np.unique(lesions, return_inverse=True)
    return LesionSums(names, np.bincount(member, weights=gained).astype(np.int64))


def gained_by_lesion(gained: Int[Array, " n"], lesions: Array) -> dict[str, int]:
    """What was gained in each lesion, by name; those where nothing was gained or lost are left out."""
    names, sums = sum_by_lesion(gained, lesions)
    return {str(names[i]): int(sums[i]) for i in np.flatnonzero(sums)}
