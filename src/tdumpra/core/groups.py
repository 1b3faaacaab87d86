"""Rows that count as one because they show the same lesion or patient. Without groups, each row is its own group."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int

Array = np.ndarray


def lesion_of_each_row(groups: Array | None, n_rows: int) -> Array:
    """Return the group of each row, or the row's number where there are no groups."""
    return np.arange(n_rows) if groups is None else groups


def lesion_numbers(groups: Array | None, n_rows: int) -> Int[Array, " n"]:
    """Return the group of each row as a number from 0 on, in the order of the names."""
    numbers: Array = np.unique(lesion_of_each_row(groups, n_rows), return_inverse=True)[1]
    return numbers


def joined_groups(groups: Array, *marks: Array) -> Array:
    """Return the group of each row; groups whose rows share a mark are one, under the first of their names."""
    names, joint = np.unique(groups, return_inverse=True)
    members = [np.unique(column, return_inverse=True)[1] for column in (groups, *marks)]
    while True:
        before = joint
        for member in members:
            lowest = np.full(len(member), len(names))
            np.minimum.at(lowest, member, joint)
            joint = lowest[member]
        if np.array_equal(joint, before):
            found: Array = names[joint]
            return found


def sum_by_lesion(gained: Int[Array, " n"], lesions: Array) -> Int[Array, " g"]:
    """Sum ``gained`` over the rows of each lesion, in the order of the names."""
    return np.bincount(lesion_numbers(lesions, len(lesions)), weights=gained).astype(np.int64)


def count_by_lesion(lesions: Array) -> Int[Array, " g"]:
    """Count the rows of each lesion, in the order of the names."""
    return sum_by_lesion(np.ones(len(lesions), dtype=np.int64), lesions)


def gained_by_lesion(gained: Int[Array, " n"], names: Array, member: Int[Array, " n"]) -> dict[str, int]:
    """Return the sums by name, without the lesions whose sum is zero; ``member`` numbers the lesion of each row."""
    sums = np.bincount(member, weights=gained).astype(np.int64)
    return {str(names[i]): int(sums[i]) for i in np.flatnonzero(sums)}


def drawn_rows(member: Int[Array, " n"], most: int, *, seed: int = 0) -> Bool[Array, " n"]:
    """Mark the rows of groups that are drawn at random until another would make them more than ``most`` rows.

    ``member`` numbers the groups. There is always one.
    """
    sizes = np.bincount(member)
    order = np.random.default_rng(seed).permutation(len(sizes))
    drawn = np.zeros(len(sizes), dtype=bool)
    drawn[order[: max(1, int(np.searchsorted(sizes[order].cumsum(), most, side="right")))]] = True
    rows: Array = drawn[member]
    return rows


def group_folds(groups: Array | None, y: Int[Array, " n"], n_folds: int, *, seed: int) -> Int[Array, " n"]:
    """Return the fold of each row. No group is split, and folds have similar class shares.

    Groups are shuffled and then dealt out in turn, class by class.
    """
    _, first, member = np.unique(lesion_of_each_row(groups, len(y)), return_index=True, return_inverse=True)
    if len(first) < n_folds:
        raise ValueError(f"{n_folds} folds need at least as many groups, and there are {len(first)}")
    shuffled = np.random.default_rng(seed).permutation(len(first))
    dealt = shuffled[np.argsort(y[first][shuffled], kind="stable")]  # a group's class is that of its first row
    fold = np.empty(len(first), dtype=np.int64)
    fold[dealt] = np.arange(len(first)) % n_folds
    return fold[member]
