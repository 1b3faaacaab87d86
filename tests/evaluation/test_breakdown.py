"""Figures by class and by subgroup, and what retrieval is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, precision_score, recall_score, roc_auc_score, roc_curve
from tests.evaluation.cases import case_of
from tests.support import fit_and_tune, make_problem, random_posterior

from tdumpra.evaluation.breakdown import banded_column, by_class, operating_points
from tdumpra.evaluation.comparators import COMPARATORS, Case, Comparator
from tdumpra.evaluation.evaluate import evaluate
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.method.outputs import TestOutputs

QUICK = EvaluateConfig(bootstrap=50)


def test_classes_against_scikit_learn():
    rng = np.random.default_rng(0)
    p, y = random_posterior(rng, 400, 3), rng.integers(3, size=400)
    settings = EvaluateConfig(class_names=("a", "b", "c"), sensitivity_classes=("b", "2"), specificities=(0.9,))
    table = by_class(p, y, ("a", "b", "c"))
    label = p.argmax(1)
    for key, score in (("recall", recall_score), ("precision", precision_score), ("f1", f1_score)):
        expected = score(y, label, average=None)
        assert [table[name][key] for name in "abc"] == pytest.approx(expected, abs=1e-9)
    assert [table[n]["auroc"] for n in "abc"] == pytest.approx(
        [roc_auc_score(y == c, p[:, c]) for c in range(3)], abs=1e-9
    )
    points = operating_points(p, y, settings, {})
    assert list(points) == ["b", "c"]
    false_alarms, sensitivity, _ = roc_curve(y == 1, p[:, 1], drop_intermediate=False)
    best = sensitivity[1 - false_alarms >= 0.9].max()
    assert points["b"]["0.9"]["sensitivity"] == pytest.approx(best, abs=1e-9)
    assert np.isnan(points["b"]["0.9"]["interval"]).all()  # no replicates


def test_bands():
    ages = np.array([str(a) for a in range(100)] + [""])
    assert sorted(set(banded_column(ages))) == [
        "0 to 24.75",
        "24.75 to 49.5",
        "49.5 to 74.25",
        "74.25 to 99",
        "unknown",
    ]
    assert sorted(set(banded_column(np.array(["1", "2", "1"])))) == ["1", "2"]


def perfect(case: Case) -> torch.Tensor:
    return torch.eye(4, dtype=torch.float64)[case.test.y]


@pytest.fixture(scope="module")
def case() -> Case:
    problem = make_problem(1, dtype=np.float64)
    return case_of(fit_and_tune(problem, n_prototypes=2), problem)


def test_every_row_has_its_operating_points_with_intervals(case):
    settings = replace(QUICK, sensitivity_classes=("1", "3"))
    document = evaluate(case, settings=settings).document
    points = document["operating_points"]
    assert list(points) == list(document["comparators"])
    for name, by_class_name in points.items():
        assert list(by_class_name) == ["1", "3"]
        for of_class in by_class_name.values():
            assert list(of_class) == ["0.8", "0.9", "0.95"]
            assert of_class["0.8"]["sensitivity"] >= of_class["0.95"]["sensitivity"], name
            for point in of_class.values():
                low, high = point["interval"]
                assert 0 <= low <= high <= 1
    assert not [each for each in document["undefined"] if each["where"].startswith("operating_points")]


class TestWorth:
    @staticmethod
    def worth(case: Case, comparators: dict[str, Comparator] = COMPARATORS, **changes: Any) -> dict[str, Any]:
        found: dict[str, Any] = evaluate(case, comparators, replace(QUICK, **changes)).document["retrieval_worth"]
        return found

    def test_the_champions_are_chosen_on_validation(self, case):
        """Comparators that are perfect on test alone must not be chosen."""
        truth = torch.eye(4, dtype=torch.float64)

        def lucky(case: Case) -> torch.Tensor:
            on_test = isinstance(case.test, TestOutputs)
            return truth[case.test.y] if on_test else truth[torch.zeros_like(case.test.y)]

        found = self.worth(case, {**COMPARATORS, "lucky": Comparator("", lucky)})
        assert found["with_bank"] != "lucky"
        assert COMPARATORS[found["with_bank"]].needs_bank
        assert not COMPARATORS[found["without_bank"]].needs_bank

    @pytest.mark.parametrize(("needs_bank", "side", "winner"), [
        (True, "with_bank", "retrieval"), (False, "without_bank", "no retrieval"),
    ])  # fmt: skip
    def test_a_planted_winner_wins(self, case, needs_bank, side, winner):
        found = self.worth(case, {**COMPARATORS, "perfect": Comparator("", perfect, needs_bank)})
        assert (found[side], found["winner"]) == ("perfect", winner)
        sign = 1 if needs_bank else -1
        assert sign * found["difference"] > 0
        assert min(sign * end for end in found["interval"]) > 0
        assert (
            f"balanced accuracy {'better' if needs_bank else 'worse'} by {abs(found['difference']):.4f}"
            in (found["sentence"])
        )

    def test_nobody_wins_against_itself(self, case):
        same = {"student": COMPARATORS["student"], "gate": COMPARATORS["student"]._replace(needs_bank=True)}
        found = self.worth(case, same)
        assert found["winner"] == "neither"
        assert found["interval"] == [0.0, 0.0]

    def test_without_replicates_nothing_was_tested(self, case):
        found = self.worth(case, bootstrap=0)
        assert found["winner"] == "not tested"
        assert np.isnan(found["interval"]).all()
