from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tdumpra.core.two_samples import (
    expected_accuracy,
    mean_by_group,
    moved,
    outside,
    same_shares_p,
    total_variation,
)


def reference_chance(x: np.ndarray, r: np.ndarray) -> float:
    """P(x < r) + P(x = r) / 2, pair by pair."""
    pairs = [(a, b) for a in x for b in r]
    return sum(1.0 if a < b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)


@pytest.mark.parametrize("seed", range(5))
def test_the_chance_to_lie_below_is_a_count_of_pairs(seed):
    rng = np.random.default_rng(seed)
    x, r = rng.integers(0, 6, 17).astype(float), rng.integers(1, 8, 23).astype(float)  # with ties
    found = moved(x, r)
    assert found.chance_below == pytest.approx(reference_chance(x, r))
    assert found.p_value == pytest.approx(stats.mannwhitneyu(x, r, method="asymptotic").pvalue)
    assert (found.mean, found.reference) == (x.mean(), r.mean())


def test_the_same_values_have_not_moved():
    same = moved(np.ones(4), np.ones(7))
    assert same.chance_below == 0.5
    assert same.p_value == 1
    empty = moved(np.empty(0), np.ones(3))
    assert math.isnan(empty.chance_below)
    assert math.isnan(empty.mean)
    assert empty.reference == 1


def test_a_group_counts_once():
    values, groups = np.array([1.0, 3.0, 5.0, 9.0]), np.array(["b", "b", "a", "c"])
    assert mean_by_group(values, groups).tolist() == [5, 2, 9]


def test_total_variation_by_hand():
    # shares 1/2, 1/2, 0 against 1/4, 1/4, 1/2: half of 1/4 + 1/4 + 1/2
    assert total_variation(np.array([2, 2, 0]), np.array([1, 1, 2])) == pytest.approx(0.5)
    assert total_variation(np.array([3, 1]), np.array([6, 2])) == 0


def test_equal_shares_are_tested_without_classes_that_nobody_has():
    p_value = same_shares_p(np.array([30, 10, 0]), np.array([10, 30, 0]))
    assert p_value == pytest.approx(stats.chi2_contingency([[30, 10], [10, 30]]).pvalue)
    assert same_shares_p(np.array([5, 0]), np.array([9, 0])) == 1


def test_expected_accuracy_by_hand():
    # of four known rows one is wrong: the threshold is the second lowest confidence, 0.6
    known, correct = np.array([0.9, 0.5, 0.6, 0.8]), np.array([True, True, False, True])
    assert expected_accuracy(np.array([0.55, 0.6, 0.7]), known, correct) == pytest.approx(2 / 3)
    assert expected_accuracy(np.array([0.1, 0.9]), known, np.ones(4, bool)) == 0.5  # below the lowest is wrong
    assert expected_accuracy(np.array([0.1, 0.9]), known, np.zeros(4, bool)) == 0


def test_the_estimate_is_exact_where_nothing_has_moved():
    rng = np.random.default_rng(0)
    confidence = rng.random(2000)
    correct = rng.random(2000) < confidence
    assert expected_accuracy(confidence, confidence, correct) == pytest.approx(correct.mean())


def test_few_of_the_reference_and_all_far_rows_are_outside():
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(2000, 3)) * [1, 10, 0.1]
    assert outside(seen, seen).mean() == pytest.approx(0.01, abs=0.001)
    assert outside(np.array([[0.0, 0.0, 2.0], [0.0, 2.0, 0.0]]), seen).tolist() == [True, False]
