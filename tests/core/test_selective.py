from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdumpra.core.selective import (
    area_under_risk_coverage,
    best_area,
    refer_below,
    risk_coverage,
    weighted_areas,
)


def naive_area(confidence: np.ndarray, wrong: np.ndarray) -> float:
    """Answer 1, 2, … rows, surest first, and average the error rates; over all orders of equals."""
    places = range(len(wrong))
    orders = [
        order for order in itertools.permutations(places)
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order))
    ]  # fmt: skip
    areas = [np.mean([wrong[list(order[:k])].mean() for k in range(1, len(wrong) + 1)]) for order in orders]
    return float(np.mean(areas))


@given(st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.9]), st.booleans()), min_size=1, max_size=6))
def test_area_is_the_mean_over_all_orders_of_equals(rows):
    confidence, wrong = np.array([c for c, _ in rows]), np.array([w for _, w in rows])
    assert area_under_risk_coverage(confidence, wrong) == pytest.approx(naive_area(confidence, wrong), abs=1e-12)


def test_by_hand():
    # surest first: right, wrong, right -> risks 0, 1/2, 1/3
    confidence, wrong = np.array([0.5, 0.9, 0.7]), np.array([False, False, True])
    curve = risk_coverage(confidence, wrong)
    assert curve.coverage == pytest.approx([1 / 3, 2 / 3, 1])
    assert curve.risk == pytest.approx([0, 1 / 2, 1 / 3])
    assert area_under_risk_coverage(confidence, wrong) == pytest.approx(5 / 18)
    assert best_area(wrong) == pytest.approx(1 / 9)  # right, right, wrong


def test_the_best_order_is_best_and_no_order_gives_the_error_rate():
    rng = np.random.default_rng(0)
    wrong = rng.random(500) < 0.3
    confidence = rng.random(500) - 0.3 * wrong
    assert best_area(wrong) < area_under_risk_coverage(confidence, wrong) < wrong.mean()
    assert area_under_risk_coverage(np.ones(500), wrong) == pytest.approx(wrong.mean())


class TestWeightedAreas:
    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12))
    def test_a_weight_is_so_many_copies_of_the_row(self, rows):
        n = len(rows)
        confidence = np.random.default_rng(n).permutation(n) / n  # no ties but between copies, which are all alike
        wrong, w = np.array([row[0] for row in rows]), np.array([row[1:] for row in rows], dtype=np.float64)
        w[0] += 1  # no column is empty
        for times, area in zip(w.T.astype(int), weighted_areas(confidence, wrong, w), strict=True):
            repeated = area_under_risk_coverage(np.repeat(confidence, times), np.repeat(wrong, times))
            assert area == pytest.approx(repeated, abs=1e-12)

    def test_unit_weights_give_the_plain_area(self):
        rng = np.random.default_rng(0)
        confidence, wrong = rng.random(3000), rng.random(3000) < 0.2
        found = weighted_areas(confidence, wrong, np.ones((3000, 2)))
        assert found == pytest.approx([area_under_risk_coverage(confidence, wrong)] * 2, abs=1e-12)

    def test_by_hand(self):
        # surest first: one right, then two copies of a wrong row -> risks 0, 1/2, 2/3
        found = weighted_areas(np.array([0.5, 0.9]), np.array([True, False]), np.array([[2.0], [1.0]]))
        assert found == pytest.approx([7 / 18])

    def test_equals_keep_the_rows_order(self):
        confidence, w = np.array([0.5, 0.5]), np.ones((2, 1))
        assert weighted_areas(confidence, np.array([True, False]), w) == pytest.approx([3 / 4])  # risks 1, 1/2
        assert weighted_areas(confidence, np.array([False, True]), w) == pytest.approx([1 / 4])  # risks 0, 1/2


class TestReferral:
    CONFIDENCE = np.array([0.9, 0.8, 0.8, 0.6, 0.5])
    WRONG = np.array([False, True, False, False, True])

    @pytest.mark.parametrize(
        ("risk", "threshold"),
        [
            (0.0, 0.9),  # the first row alone
            (0.2, 0.9),  # with both rows of 0.8 a third is wrong: equals are answered together
            (0.25, 0.6),  # one in four
            (0.4, 0.5),  # two in five
        ],
    )
    def test_the_lowest_threshold_that_is_safe(self, risk, threshold):
        assert refer_below(self.CONFIDENCE, self.WRONG, risk=risk) == threshold

    def test_no_threshold_is_safe(self):
        threshold = refer_below(np.array([0.9, 0.1]), np.array([True, True]), risk=0.5)
        assert threshold == np.inf
