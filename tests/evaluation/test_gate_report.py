from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from tests.support import Array, fit_and_tune, make_problem, random_posterior

from tdumpra import gate_report

# row   classifier  retrieval  final  truth   what happened
#  0        0           0        0      0     all agree, right
#  1        0           1        1      1     fixed
#  2        0           1        1      0     broken
#  3        0           1        1      2     flipped from wrong to wrong
#  4        0           1        0      1     opened, not moved: still wrong, retrieval was right
#  5        1           1        1      0     all agree, wrong
#  6        2           0        2      2     shut, and rightly so
#  7        0           2        2      2     fixed
CLS, SIM, FINAL, TRUTH = (
    [0, 0, 0, 0, 0, 1, 2, 0],
    [0, 1, 1, 1, 1, 1, 0, 2],
    [0, 1, 1, 1, 0, 1, 2, 2],
    [0, 1, 0, 2, 1, 0, 2, 2],
)


def posterior(labels: list[int], top: float) -> Array:
    other = (1 - top) / 2
    return np.full((len(labels), 3), other) + (top - other) * np.eye(3)[labels]


def hand_made(**changes: Any) -> dict[str, Any]:
    final = posterior(FINAL, 0.5)
    final[4] = posterior([0], 0.4)  # moved a little, label kept
    arrays = {"p_cls": posterior(CLS, 0.5), "p_sim": posterior(SIM, 0.9), "p_final": final, "y": TRUTH}
    return gate_report(**{**arrays, **changes})


class TestByHand:
    def test_counts(self):
        report = hand_made()
        counts = {name: report[name] for name in ("n", "opened", "flipped", "fixed", "broken")}
        assert counts == {"n": 8, "opened": 5, "flipped": 4, "fixed": 2, "broken": 1}
        assert all(type(value) is int for value in counts.values())

    def test_accuracies(self):
        report = hand_made()
        assert report["classifier_accuracy"] == 3 / 8  # rows 0, 2, 6
        assert report["similarity_accuracy"] == 4 / 8  # rows 0, 1, 4, 7
        assert report["accuracy"] == 4 / 8  # rows 0, 1, 6, 7
        assert report["oracle_accuracy"] == 6 / 8  # all but 3 and 5

    def test_risk(self):
        report = hand_made()
        assert report["risk_change"] == -1 / 8  # two fixed, one broken
        assert report["open_share"] == 5 / 8
        assert report["risk_change_where_open"] == pytest.approx(-1 / 5)
        assert report["regret"] == 2 / 8  # the oracle is right on two rows more: 2 and 4
        assert report["misranked"] == 2 / 8

    def test_chances(self):
        report = hand_made()
        assert report["p_value"] == pytest.approx(1.0)  # two against one
        assert report["sign_flip_p"] is None
        # 1 - 0.95 = P(at most 1 of 8) at the upper bound
        bound = binomtest(1, 8, alternative="less").proportion_ci(0.95, method="exact").high
        assert report["harm_upper"] == pytest.approx(bound)

    def test_openings_can_be_told(self):
        opened = np.array([0, 1, 1, 1, 1, 0, 1, 1], bool)  # row 6 opened too, and nothing came of it
        report = hand_made(opened=opened)
        assert report["opened"] == 6
        assert report["risk_change_where_open"] == pytest.approx(-1 / 6)
        assert hand_made(opened=opened.tolist())["opened"] == 6

    def test_lesions_are_not_counted_twice(self):
        # fixed: rows 1 and 7, broken: row 2. Alone, the sum of three signs is 1 or -1 in 6 of 8 flips, 3 or -3 in the
        # others: p = 1. Rows 1 and 7 of one lesion: sums of ±2 ± 1, all at least 1 in size: p = 1.
        assert hand_made(groups=list("abcdefgh"))["sign_flip_p"] == 1
        assert hand_made(groups=list("abcdefgb"))["sign_flip_p"] == 1
        # All four of four rows fixed: 2 of 16 flips are as far out; as two lesions, 2 of 4; as one lesion, 2 of 2.
        zeros, ones = posterior([0] * 4, 0.5), posterior([1] * 4, 0.8)
        by_lesion = [gate_report(zeros, ones, ones, [1] * 4, list(names)) for names in ("abcd", "aabb", "aaaa")]
        assert [report["sign_flip_p"] for report in by_lesion] == [2 / 16, 2 / 4, 1]
        assert gate_report(zeros, ones, ones, [1] * 4)["p_value"] == 2 / 16  # McNemar counts images


class TestProperties:
    @pytest.mark.parametrize("seed", range(5))
    def test_identities_on_random_rows(self, seed):
        rng = np.random.default_rng(seed)
        p_cls, p_sim = (random_posterior(rng, 200, 3) for _ in range(2))
        opened = rng.random(200) < 0.3
        p_final = np.where(opened[:, None], 0.3 * p_cls + 0.7 * p_sim, p_cls)
        y = rng.integers(0, 3, 200)
        report = gate_report(p_cls, p_sim, p_final, y)
        assert report["opened"] == opened.sum()
        assert report["fixed"] - report["broken"] == round(200 * (report["accuracy"] - report["classifier_accuracy"]))
        assert report["fixed"] + report["broken"] <= report["flipped"] <= report["opened"]
        # the paper's risk decomposition
        assert report["risk_change"] == pytest.approx(report["classifier_accuracy"] - report["accuracy"])
        assert report["risk_change"] == pytest.approx(report["open_share"] * report["risk_change_where_open"])
        either = (p_cls.argmax(1) == y) | (p_sim.argmax(1) == y)
        assert report["oracle_accuracy"] == pytest.approx(either.mean())
        assert report["regret"] == pytest.approx(report["oracle_accuracy"] - report["accuracy"])
        assert report["regret"] <= report["misranked"] + 1e-12
        expected = binomtest(report["fixed"], report["fixed"] + report["broken"]).pvalue
        assert report["p_value"] == pytest.approx(expected)

    def test_a_gate_that_stayed_shut(self):
        p = posterior(CLS, 0.5)
        report = hand_made(p_final=p)
        assert (report["opened"], report["flipped"], report["p_value"]) == (0, 0, 1.0)
        assert math.isnan(report["risk_change_where_open"])
        assert report["harm_upper"] == pytest.approx(1 - 0.05 ** (1 / 8))  # none of eight


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"p_sim": posterior(SIM, 0.9)[:7]}, ValueError, "p_cls has 8 rows and p_sim has 7"),
            ({"p_final": posterior(SIM, 0.9)[:7]}, ValueError, "p_cls has 8 rows and p_final has 7"),
            ({"p_sim": np.full((8, 2), 0.5)}, ValueError, "p_sim has 2 classes where 3 are expected"),
            ({"p_final": posterior(SIM, 0.9) * 2}, ValueError, "p_final holds 1.8 in row 0"),
            ({"p_cls": posterior(CLS, 0.5) * np.nan}, ValueError, "p_cls has NaN"),
            ({"p_cls": np.zeros((0, 3)), "y": []}, ValueError, "p_cls has no rows"),
            ({"y": [0, 1]}, ValueError, "y has 2 entries for 8 rows"),
            ({"y": [3] * 8}, ValueError, "y must be in the range 0 to 2"),
            ({"groups": ["a"]}, ValueError, "groups needs one entry per row: 8"),
            ({"opened": [True]}, ValueError, "opened needs one entry per row: 8"),
        ],
    )
    def test_each_names_its_argument(self, changes, error, message):
        with pytest.raises(error, match=message):
            hand_made(**changes)


def test_evaluation_is_the_report_under_the_keys_of_its_file():
    problem = make_problem()
    classifier = fit_and_tune(problem)
    test = problem.test
    evaluation = classifier.report(test.p, test.z, test.y, test.groups)
    decision = classifier.decision_
    decided = decision.decide(torch.from_numpy(test.p), torch.from_numpy(test.z))
    expected = gate_report(decided.p_cls, decided.p_sim, decided.p, test.y, test.groups, opened=decided.opened)
    gate = evaluation["gate"]
    assert gate["mcnemar_p"] == expected.pop("p_value")
    assert {name: gate[name] for name in expected} == expected
    assert gate["thresholds"]["theta"] == decision.thresholds.theta
    assert gate["guarantees_similarity"] is decision.guarantees_similarity
    for name in ("rule", "kappa", "tau", "temperature", "prior_exponent"):
        assert gate[name] == getattr(decision, name)
