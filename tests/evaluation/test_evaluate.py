from __future__ import annotations

import json
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.evaluation.cases import case_of
from tests.support import Problem, fit_and_tune, make_problem

from tdumpra import DualPathClassifier
from tdumpra.artifacts import jsonable
from tdumpra.core import bootstrap
from tdumpra.core.gate import GateThresholds
from tdumpra.evaluation import case as case_module
from tdumpra.evaluation.comparators import COMPARATORS, Case, Comparator
from tdumpra.evaluation.evaluate import evaluate
from tdumpra.evaluation.replicates import one_by_one
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.method.bank_faiss import NeighbourIndex
from tdumpra.tuning.goal import Goal

QUICK = EvaluateConfig(bootstrap=50)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem(1, dtype=np.float64)


@pytest.fixture(scope="module")
def classifier(problem: Problem) -> DualPathClassifier:
    return fit_and_tune(problem, n_prototypes=2)


@pytest.fixture(scope="module")
def evaluation(classifier: DualPathClassifier, problem: Problem) -> dict[str, Any]:
    return evaluate(case_of(classifier, problem), settings=QUICK).document


class TestContract:
    def test_keys_that_scripts_rely_on(self, evaluation):
        assert {"student", "temperature", "logit_adjusted", "knn", "similarity", "average", "gate", "oracle"} <= set(
            evaluation["comparators"]
        )
        gate = {"n", "opened", "flipped", "fixed", "broken", "mcnemar_p", "harm_upper", "guarantees_similarity"}
        assert {*gate, "thresholds", "headroom_taken", "regret", "misranked"} <= set(evaluation["gate"])

    def test_it_is_json(self, evaluation):
        json.dumps(jsonable(evaluation), allow_nan=False)

    def test_the_same_again(self, evaluation, classifier, problem):
        again = evaluate(case_of(classifier, problem), settings=QUICK).document
        assert jsonable(again) == jsonable(evaluation)

    def test_headroom(self, evaluation):
        gate = evaluation["gate"]
        taken = (gate["accuracy"] - gate["classifier_accuracy"]) / (
            gate["oracle_accuracy"] - gate["classifier_accuracy"]
        )
        assert gate["headroom_taken"] == pytest.approx(taken)
        assert gate["regret"] <= gate["misranked"]  # Proposition A.5


class TestIntervals:
    def test_they_contain_the_figure(self, evaluation):
        for name, of_name in evaluation["intervals"].items():
            for metric in ("accuracy", "nll", "macro_auroc"):
                low, high = of_name[metric]
                assert low <= evaluation["comparators"][name][metric] <= high, (name, metric)

    def test_none_are_given_where_none_are_asked(self, classifier, problem):
        plain = evaluate(case_of(classifier, problem)).document
        assert "intervals" not in plain
        assert plain["retrieval_worth"]["sentence"].count("no interval") == 1
        assert {"where": "retrieval_worth.interval", "reason": "no bootstrap was asked for, or the figure is undefined "
                "in every replicate"} in plain["undefined"]  # fmt: skip


class TestUndefined:
    def test_an_absent_class_is_undefined_with_its_reason(self, classifier, problem):
        kept = problem.test.y != 3
        part = replace_split(problem, kept)
        found = evaluate(case_of(classifier, part)).document
        assert np.isnan(found["per_class"]["gate"]["3"]["recall"])
        assert {"where": "per_class.gate.3.recall", "reason": "no row of this class"} in found["undefined"]
        assert jsonable(found)["per_class"]["gate"]["3"]["recall"] is None


def replace_split(problem: Problem, kept: np.ndarray) -> Problem:
    return problem._replace(test=type(problem.test)(*(column[kept] for column in problem.test)))


class TestParts:
    def test_the_ambiguous_rows(self, classifier, problem, evaluation):
        case = case_of(classifier, problem)
        below = evaluation["ambiguous"]["below"]
        unsure = case.decided.p_cls.max(1).values < below
        assert evaluation["ambiguous"]["n"] == int(unsure.sum())
        accuracy = (case.decided.p.argmax(1) == case.test.y)[unsure].double().mean()
        assert evaluation["ambiguous"]["comparators"]["gate"]["accuracy"] == pytest.approx(float(accuracy))

    def test_no_ambiguous_row(self, classifier, problem):
        found = evaluate(
            case_of(classifier, problem), settings=EvaluateConfig(bootstrap=0, ambiguous_below=0.0)
        ).document
        assert found["ambiguous"]["n"] == 0
        assert np.isnan(found["ambiguous"]["comparators"]["gate"]["accuracy"])
        assert {"where": "ambiguous", "reason": "no rows"} in found["undefined"]

    def test_a_shut_gate_uses_the_middle_of_the_grid(self, classifier, problem):
        case = case_of(classifier, problem)
        shut = replace(case.decision, thresholds=GateThresholds.shut(), calibrated=None)
        found = evaluate(replace(case, decision=shut, decided=shut.decide(case.test.p, case.test.z))).document
        assert found["ambiguous"]["below"] == 0.7
        assert np.isnan(found["gate"]["risk_change_where_open"])
        assert {"where": "gate.risk_change_where_open", "reason": "the gate never opened"} in found["undefined"]

    def test_subgroups_add_up(self, classifier, problem):
        n = len(problem.test.y)
        metadata = {"sex": np.array(["f", "m", ""] * n)[:n], "age": np.linspace(1, 90, n)}
        settings = EvaluateConfig(bootstrap=0, subgroups=("sex", "age"))
        found = evaluate(case_of(classifier, problem, metadata=metadata), settings=settings).document["subgroups"]
        assert list(found["sex"]) == ["f", "m", "unknown"]
        assert len(found["age"]) == 4
        for column in found.values():
            assert sum(part["n"] for part in column.values()) == n
        accuracy = sum(p["n"] * p["comparators"]["gate"]["accuracy"] for p in found["age"].values()) / n
        assert accuracy == pytest.approx(
            evaluate(case_of(classifier, problem)).document["comparators"]["gate"]["accuracy"]
        )

    def test_an_unknown_subgroup(self, classifier, problem):
        with pytest.raises(ValueError, match="subgroups names 'sex'; the outputs carry no metadata columns"):
            evaluate(case_of(classifier, problem), settings=EvaluateConfig(subgroups=("sex",)))


class TestCosts:
    COSTS = np.array([[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1], [20, 20, 20, 0]], float)

    def test_both_decisions(self, classifier, problem):
        case = replace(case_of(classifier, problem), goal=Goal(costs=self.COSTS))
        found = evaluate(case, settings=QUICK).document
        p, y = case.decided.p.numpy(), problem.test.y
        cheapest = [min(range(4), key=lambda d: sum(row[c] * self.COSTS[c, d] for c in range(4))) for row in p]
        assert found["costs"]["gate"]["likeliest"] == pytest.approx(self.COSTS[y, p.argmax(1)].mean())
        assert found["costs"]["gate"]["cheapest"] == pytest.approx(self.COSTS[y, cheapest].mean())
        assert found["comparators"]["gate"]["cost"] == found["costs"]["gate"]["likeliest"]
        assert len(found["intervals"]["gate"]["cost"]) == 2


class TestReferral:
    def test_the_threshold_comes_from_validation(self, classifier, problem, evaluation):
        case = case_of(classifier, problem)
        point = evaluation["selective"]["gate"]["refer"]
        val = classifier.decision_.decide(case.validation.p, case.validation.z).p  # type: ignore[union-attr]
        answered = val.max(1).values >= point["threshold"]
        assert (val.argmax(1) != case.validation.y)[answered].double().mean() <= point["target_risk"]  # type: ignore[union-attr]
        assert point["answered"] + point["referred"] == len(problem.test.y)


class TestOnePass:
    def test_each_comparator_is_scored_once_on_test_and_once_on_validation(self, classifier, problem):
        scored: list[str] = []

        def student(case: Case) -> torch.Tensor:
            scored.append(type(case.test).__name__)
            return case.test.p

        comparators = {**COMPARATORS, "student": COMPARATORS["student"]._replace(posterior=student)}
        found = evaluate(case_of(classifier, problem), comparators, QUICK)
        assert scored == ["TestOutputs", "ValidationOutputs"]
        assert found.compared is not None
        assert found.document["retrieval_worth"]["winner"] != "not tested"

    def test_a_document_alone_is_the_same_document(self, evaluation, classifier, problem):
        alone = evaluate(case_of(classifier, problem), settings=QUICK, paired=False)
        assert alone.compared is None
        assert jsonable(alone.document) == jsonable(evaluation)

    def test_what_was_gained(self, classifier, problem):
        case = case_of(classifier, problem)
        right = {name: (p.argmax(1) == case.test.y).numpy() for name, p in case.decided._asdict().items() if name in
                 ("p", "p_cls")}  # fmt: skip
        gained: dict[str, int] = {}
        for group, after, before in zip(problem.test.groups, right["p"], right["p_cls"], strict=True):
            gained[group] = gained.get(group, 0) + int(after) - int(before)
        assert evaluate(case).gained == {group: count for group, count in gained.items() if count}


class TestRefusals:
    def test_a_comparator_of_another_shape(self, classifier, problem):
        with pytest.raises(ValueError, match=r"the comparator odd returned shape \(160, 3\), not \(160, 4\)"):
            evaluate(case_of(classifier, problem), {"odd": Comparator("", lambda case: case.test.p[:, :3])})

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"class_names": ("a", "b")}, "class_names has 2 entries for 4 classes"),
            ({"sensitivity_classes": ("mel",)}, "sensitivity_classes names 'mel'; there are 0, 1, 2, 3"),
        ],
    )
    def test_settings_that_do_not_fit(self, classifier, problem, settings, message):
        with pytest.raises(ValueError, match=message):
            evaluate(case_of(classifier, problem), settings=EvaluateConfig(**settings))

    @pytest.mark.parametrize("settings", [{"bootstrap": -1}, {"level": 2.0}, {"class_names": ("a", "a")}])
    def test_settings_that_cannot_be(self, settings):
        with pytest.raises(ValueError, match="must"):
            EvaluateConfig(**settings)

    def test_a_test_table_with_other_classes(self, classifier):
        other = make_problem(0, n_classes=5).test
        with pytest.raises(ValueError, match="p_test has 5 classes where 4 are expected"):
            classifier.report(other.p, other.z, other.y)


def test_parts_that_stand_for_all_rows_are_named(classifier, problem, monkeypatch):
    whole = evaluate(case_of(classifier, problem), settings=EvaluateConfig(bootstrap=200)).document
    assert "notes" not in whole
    monkeypatch.setattr(bootstrap, "BOOTSTRAPPED_ROWS", 120)
    monkeypatch.setattr(case_module, "CACHED_ROWS", 200)
    monkeypatch.setattr(case_module, "has_faiss", lambda: False)
    part = evaluate(case_of(classifier, problem), settings=EvaluateConfig(bootstrap=200)).document
    cached, drawn = part["notes"]
    assert "200 of them" in cached
    assert "test rows" in drawn
    for name in ("student", "gate", "oracle"):
        assert part["comparators"][name] == whole["comparators"][name]
        for metric, (low, high) in part["intervals"][name].items():
            lowest, highest = whole["intervals"][name][metric]
            assert 0.5 < (high - low) / (highest - lowest) < 2, (name, metric)
    assert part["comparators"]["knn"] != whole["comparators"]["knn"]


def test_neighbours_of_many_training_rows_are_found_by_an_index(classifier, problem, monkeypatch):
    pytest.importorskip("faiss")
    exact = evaluate(case_of(classifier, problem)).document["comparators"]
    monkeypatch.setattr(case_module, "CACHED_ROWS", 200)
    document = evaluate(case_of(classifier, problem)).document
    found = document["comparators"]
    assert found["knn"]["accuracy"] == pytest.approx(exact["knn"]["accuracy"], abs=0.02)
    assert found["tip_adapter"] != exact["tip_adapter"]
    assert [note for note in document["notes"] if "knn finds the nearest of all training cases" in note]
    assert not [note for note in document["notes"] if "knn and tip_adapter" in note]


def test_an_index_of_neighbours_is_let_go_of(classifier, problem, monkeypatch):
    pytest.importorskip("faiss")
    made: list[weakref.ref[NeighbourIndex]] = []

    def counted(rows):
        index = NeighbourIndex(rows)
        made.append(weakref.ref(index))
        return index

    monkeypatch.setattr(case_module, "NeighbourIndex", counted)
    monkeypatch.setattr(case_module, "CACHED_ROWS", 200)
    held = {
        each.name: len([ref for ref in made if ref()])
        for each in one_by_one([case_of(classifier, problem)], COMPARATORS)
    }
    assert len(made) == 1  # test and validation rows share it
    assert not any(held.values())
