from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from tests.evaluation.cases import case_of
from tests.support import Array, fit_and_tune, make_problem, random_posterior

from tdumpra import classification_metrics, gate_report
from tdumpra.core.gate import GateThresholds
from tdumpra.evaluation.comparators import Case
from tdumpra.evaluation.evaluate import evaluate
from tdumpra.evaluation.gate_report import per_thousand
from tdumpra.evaluation.rivals import calibrated
from tdumpra.evaluation.settings import EvaluateConfig

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

    def test_harm_counts_lesions(self):
        """Nothing broken in eight images of four lesions: no more is known than of four."""
        shut = {"p_final": posterior(CLS, 0.5)}
        assert hand_made(**shut, groups=list("aabbccdd"))["harm_upper"] == pytest.approx(1 - 0.05 ** (1 / 4))
        assert hand_made(groups=list("abcdefgh"))["harm_upper"] == pytest.approx(hand_made()["harm_upper"])

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


class TestPerThousand:
    def test_by_hand(self):
        # rows: mel gained, mel lost, nv newly called mel, wrong before and after, untouched, opened without a change
        y = np.array([1, 1, 0, 2, 0, 0, 0, 0])
        before = np.array([0, 1, 0, 0, 0, 0, 0, 0])
        after = np.array([1, 0, 1, 1, 0, 0, 0, 0])
        opened = np.array([True] * 5 + [False] * 3)
        found = per_thousand(before, after, opened, y, {"mel": 1, "bcc": 2})
        assert (found["opened"], found["fixed"], found["broken"]) == (625, 125, 250)
        assert found["by_class"]["mel"] == {"gained": 125, "lost": 125, "falsely_called": 250}
        assert found["by_class"]["bcc"] == {"gained": 0, "lost": 0, "falsely_called": 0}

    def test_an_evaluation_counts_the_classes_that_are_named(self, case):
        document = evaluate(case, settings=EvaluateConfig(bootstrap=0, sensitivity_classes=("2",))).document
        test, gate = document["per_1000"]["test"], document["gate"]
        assert gate["opened"] > 0
        for name in ("opened", "fixed", "broken"):
            assert test[name] == pytest.approx(1000 * gate[name] / gate["n"])
        assert list(test["by_class"]) == ["2"]
        assert document["per_1000"]["validation"] is None  # an evaluation alone has no estimate


@pytest.fixture(scope="module")
def case() -> Case:
    problem = make_problem(1, dtype=np.float64)
    return case_of(fit_and_tune(problem, n_prototypes=2), problem)


class TestCostCurve:
    def test_the_gate_with_another_theta(self, case):
        curve = evaluate(case).document["cost_curve"]
        assert (curve["theta"][0], curve["theta"][-1]) == (0.0, 1.0)
        y = case.test.y
        for i, theta in enumerate(curve["theta"]):
            moved = replace(case.decision, thresholds=replace(case.decision.thresholds, theta=theta))
            decided = moved.decide(case.test.p, case.test.z)
            asked = decided.signals.gamma_cls < theta
            averaged = torch.where(asked[:, None], (decided.p_cls + decided.p_sim) / 2, decided.p_cls)
            assert curve["asked"][i] == pytest.approx(asked.double().mean().item())
            for name, p in (("gate", decided.p), ("average", averaged)):
                expected = classification_metrics(p, y)
                for metric in ("accuracy", "balanced_accuracy", "nll"):
                    assert curve[name][metric][i] == pytest.approx(expected[metric]), (name, metric, theta)

    def test_its_own_theta_gives_its_own_figures(self, case):
        document = evaluate(case).document
        curve, gate = document["cost_curve"], document["comparators"]["gate"]
        assert case.decision.thresholds.theta in curve["theta"]
        own = curve["theta"].index(case.decision.thresholds.theta)
        assert curve["gate"]["accuracy"][own] == pytest.approx(gate["accuracy"])
        assert curve["gate"]["nll"][0] == pytest.approx(document["comparators"]["temperature"]["nll"])

    def test_a_second_network_is_the_second_opinion(self, case):
        assert case.validation is not None
        p_second = {"validation": case.validation.p.flip(0), "test": case.test.p.flip(1)}
        with_network = replace(
            case,
            validation=replace(case.validation, p_second=p_second["validation"]),
            test=replace(case.test, p_second=p_second["test"]),
        )
        curve = evaluate(with_network).document["cost_curve"]
        network = calibrated(with_network, "p_second")
        assert network is not None
        everywhere = torch.where(case.decided.signals.gamma_cls[:, None] < 1, network.test, case.decided.p_cls)
        p = (case.decided.p_cls + everywhere) / 2
        expected = classification_metrics(p, case.test.y)
        assert curve["average"]["accuracy"][-1] == pytest.approx(expected["accuracy"])

    def test_a_shut_gate_is_level(self, case):
        shut = replace(case.decision, thresholds=GateThresholds.shut(), calibrated=None)
        held = replace(case, decision=shut, decided=shut.decide(case.test.p, case.test.z))
        gate = evaluate(held).document["cost_curve"]["gate"]
        assert all(len(set(values)) == 1 for values in gate.values())
