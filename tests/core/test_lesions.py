from __future__ import annotations

import numpy as np

from tdumpra.core.lesions import gained_by_lesion, lesion_numbers, lesion_of_each_row, sum_by_lesion

GROUPS = np.array(["b", "a", "b", "c", "c"])


def test_a_row_without_a_group_stands_for_itself():
    assert lesion_of_each_row(GROUPS, 5) is GROUPS
    assert lesion_of_each_row(None, 12).tolist() == list(range(12))
    assert lesion_numbers(None, 12).tolist() == list(range(12))  # in the order of numbers, not of letters
    assert lesion_numbers(GROUPS, 5).tolist() == [1, 0, 1, 2, 2]


def test_sums():
    gained = np.array([1, -1, 1, 1, -1])
    names, sums = sum_by_lesion(gained, GROUPS)
    assert (names.tolist(), sums.tolist()) == (["a", "b", "c"], [-1, 2, 0])
    assert sums.dtype == np.int64
    assert gained_by_lesion(gained, GROUPS) == {"a": -1, "b": 2}
    assert gained_by_lesion(gained, lesion_of_each_row(None, 5)) == {"0": 1, "1": -1, "2": 1, "3": 1, "4": -1}
