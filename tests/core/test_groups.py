from __future__ import annotations

import numpy as np
import pytest

from tdumpra.core.groups import (
    gained_by_lesion,
    group_folds,
    joined_groups,
    lesion_numbers,
    lesion_of_each_row,
    sum_by_lesion,
)

GROUPS = np.array(["b", "a", "b", "c", "c"])


def test_a_row_without_a_group_stands_for_itself():
    assert lesion_of_each_row(GROUPS, 5) is GROUPS
    assert lesion_of_each_row(None, 12).tolist() == list(range(12))
    assert lesion_numbers(None, 12).tolist() == list(range(12))  # in the order of numbers, not of letters
    assert lesion_numbers(GROUPS, 5).tolist() == [1, 0, 1, 2, 2]


def test_groups_that_share_a_mark_are_one():
    # b and c share x, c and d share 2; a stands alone
    groups, marks = np.array(["b", "a", "c", "c", "d"]), np.array(["x", "y", "x", "z", "w"])
    assert joined_groups(groups, marks).tolist() == ["b", "a", "b", "b", "d"]
    assert joined_groups(groups, marks, np.array([1, 3, 4, 2, 2])).tolist() == ["b", "a", "b", "b", "b"]
    assert joined_groups(groups[:0], marks[:0]).tolist() == []


def test_a_long_chain_of_groups_is_one():
    names = np.array([f"{i // 2:05d}" for i in range(20_000)])
    marks = (np.arange(20_000) + 1) // 2  # the second row of each group is a copy of the first of the next
    assert set(joined_groups(names, marks)) == {"00000"}


def test_sums():
    gained = np.array([1, -1, 1, 1, -1])
    sums = sum_by_lesion(gained, GROUPS)
    assert sums.tolist() == [-1, 2, 0]  # of a, b, c
    assert sums.dtype == np.int64
    assert gained_by_lesion(gained, *np.unique(GROUPS, return_inverse=True)) == {"a": -1, "b": 2}
    alone = lesion_of_each_row(None, 5)
    assert gained_by_lesion(gained, alone, alone) == {"0": 1, "1": -1, "2": 1, "3": 1, "4": -1}


def test_no_group_is_in_two_folds_and_classes_are_spread():
    rng = np.random.default_rng(0)
    groups = rng.integers(80, size=300).astype(str)
    y = np.array([int(g) % 4 for g in groups])
    fold = group_folds(groups, y, 5, seed=0)
    for name in np.unique(groups):
        assert len(np.unique(fold[groups == name])) == 1
    by_class = [[len(np.unique(groups[(fold == f) & (y == c)])) for f in range(5)] for c in range(4)]
    assert np.ptp(by_class, axis=1).max() <= 1


def test_without_groups_each_row_is_its_own():
    assert np.bincount(group_folds(None, np.zeros(10, int), 5, seed=0)).tolist() == [2] * 5


def test_the_seed_decides():
    y = np.zeros(50, int)
    assert (group_folds(None, y, 5, seed=1) == group_folds(None, y, 5, seed=1)).all()
    assert (group_folds(None, y, 5, seed=1) != group_folds(None, y, 5, seed=2)).any()


def test_too_few_groups():
    with pytest.raises(ValueError, match="5 folds need at least as many groups, and there are 2"):
        group_folds(np.array(["a", "a", "b"]), np.zeros(3, int), 5, seed=0)
