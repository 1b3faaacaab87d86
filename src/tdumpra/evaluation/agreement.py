"""Whether outputs are those of seeds of one model: the same classes, groups for all or for none, the same test rows.

Means over seeds, and the intervals and tests over lesions of those means, match the seeds row by row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tdumpra.errors import TdumpraError
from tdumpra.method.output_files import SplitOutputs

Array = np.ndarray
SEEDS = "seeds of one model"


class SeedRows(NamedTuple):
    """What seeds must agree on: their classes, and the test rows without what a model says of them."""

    name: str  # of the file or folder, for a message
    n_classes: int
    class_names: tuple[str, ...]  # empty where the source has only numbers
    y: Array
    groups: Array | None
    ids: Array | None  # where each names one row

    @classmethod
    def of(cls, name: str, splits: SplitOutputs) -> SeedRows:
        """What of a seed's outputs must agree with the others'."""
        test = splits.test
        return cls(name, splits.n_classes, splits.class_names, test.y.numpy(), test.groups, test.own_ids)


def refuse_another_kind(first: SeedRows, other: SeedRows, who: str = SEEDS) -> None:
    """Seeds of a model tell the same classes apart, in the same order, and all of them know lesions or none does."""
    if other.n_classes != first.n_classes:
        _refuse(f"{other.name} has {other.n_classes} classes and {first.name} has {first.n_classes}", who)
    if first.class_names and other.class_names and first.class_names != other.class_names:
        theirs, ours = (", ".join(seed.class_names) for seed in (other, first))
        _refuse(f"{other.name} has the classes {theirs}, and {first.name} has {ours}, in this order", who)
    if (first.groups is None) != (other.groups is None):
        grouped, bare = (first, other) if other.groups is None else (other, first)
        _refuse(f"{grouped.name} has groups and {bare.name} has none", who)


def refuse_other_test_rows(first: SeedRows, other: SeedRows, who: str = SEEDS) -> None:
    """Seeds of a model are scored on the same rows, in whatever order."""
    difference = _difference(first, other)
    if difference is not None:
        raise TdumpraError(
            f"{other.name} and {first.name} differ in {difference}: {who} must share their test rows; "
            "give them different names to evaluate them apart"
        )


def _refuse(difference: str, who: str) -> None:
    raise TdumpraError(f"{difference}: {who} must agree")


def _difference(first: SeedRows, other: SeedRows) -> str | None:
    """The first thing in which the test rows differ, in words."""
    if len(first.y) != len(other.y):
        return f"the number of test rows ({len(other.y):,} and {len(first.y):,})"
    named = first.ids is not None and other.ids is not None
    if first.groups is None and not named:
        if first.ids is not None or other.ids is not None:
            return "whether test rows have ids"
        # rows are known by their place alone
        return None if np.array_equal(first.y, other.y) else "the labels of test rows, which have neither id nor group"
    ours, theirs = _sorted(first, by_id=named), _sorted(other, by_id=named)
    return next((f"the {what} of test rows" for what in ours if not np.array_equal(ours[what], theirs[what])), None)


def _sorted(seed: SeedRows, *, by_id: bool) -> dict[str, Array]:
    """Ids, groups and labels in an order that does not depend on the file's."""
    given = {"ids": seed.ids if by_id else None, "groups": seed.groups, "labels": seed.y}
    columns = {what: column for what, column in given.items() if column is not None}
    order = np.lexsort(tuple(reversed(columns.values())))
    return {what: column[order] for what, column in columns.items()}
