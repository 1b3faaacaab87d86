"""The gate against its rivals: figures and replicates by loops, and what several seeds say together."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss
from tests.support import Array, fit_and_tune, make_problem, random_posterior

from tdumpra.artifacts import jsonable
from tdumpra.core.bootstrap import group_weights
from tdumpra.core.selective import area_under_risk_coverage
from tdumpra.evaluation import paired
from tdumpra.evaluation.comparators import COMPARATORS, Case
from tdumpra.evaluation.evaluate import evaluate
from tdumpra.evaluation.replicates import ambiguous_rows
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.method.outputs import TestOutputs, TrainOutputs, ValidationOutputs

OWN = ["student", "temperature", "logit_adjusted", "similarity", "average", "average_adjusted", "ungated"]
SETTINGS = EvaluateConfig(bootstrap=70, seed=3, ambiguous_below=0.6)  # more than one chunk of replicates


def make_case(seed: int, *, grouped: bool = True) -> Case:
    """A seed of its own on test rows that all seeds share, beside a baseline."""
    problem, shared = make_problem(seed, dtype=np.float64), make_problem(0, dtype=np.float64).test
    decision = fit_and_tune(problem).decision_
    p = (shared.p + 0.5 * random_posterior(np.random.default_rng(seed), 160, 4)) / 1.5
    test = TestOutputs.check(p, problem.test.z, shared.y, shared.groups if grouped else None)
    test = replace(test, p_baseline=torch.from_numpy(random_posterior(np.random.default_rng(9), 160, 4)))
    return Case(
        train=TrainOutputs.check(problem.train.z, problem.train.y),
        validation=ValidationOutputs.check(*problem.val[:3]),
        test=test,
        decision=decision,
        decided=decision.decide(test.p, test.z),
    )


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [make_case(seed) for seed in range(3)]


@pytest.fixture(scope="module")
def compared(cases: list[Case]) -> list[dict[str, Any]]:
    return [compare(case) for case in cases]


def compare(case: Case, settings: EvaluateConfig = SETTINGS) -> dict[str, Any]:
    found = evaluate(case, settings=settings).compared
    assert found is not None
    return dict(found)


def posterior(case: Case, name: str) -> Array:
    found = COMPARATORS[name].posterior(case)
    assert found is not None
    return found.double().numpy()


def naive(p: Array, y: Array, unsure: Array) -> dict[str, float]:
    label = p.argmax(1)
    return {
        "accuracy": accuracy_score(y, label),
        "balanced_accuracy": balanced_accuracy_score(y, label),
        "nll": log_loss(y, p, labels=range(4)),
        "brier": float(((p - np.eye(4)[y]) ** 2).sum(1).mean()),
        "ambiguous_accuracy": accuracy_score(y[unsure], label[unsure]),
        "aurc": area_under_risk_coverage(p.max(1), label != y),
    }


def test_figures_are_those_of_the_rows(cases, compared):
    for case, found in zip(cases, compared, strict=True):
        rivals = ["baseline", *OWN]
        assert list(found["scores"]) == ["gate", *rivals, "oracle"]
        unsure = ambiguous_rows(case, SETTINGS)
        assert 0 < unsure.sum() < 160
        for name, scores in found["scores"].items():
            expected = naive(posterior(case, name), case.test.y.numpy(), unsure)
            assert {metric: scores[metric] for metric in expected} == pytest.approx(expected), name


def test_replicates_are_those_of_rows_drawn_again(cases, compared):
    case, found = cases[1], compared[1]
    y, unsure = case.test.y.numpy(), ambiguous_rows(case, SETTINGS)
    _, member = np.unique(case.test.groups, return_inverse=True)
    weights = np.concatenate(list(group_weights(member, n_replicates=70, seed=3)), axis=1).astype(int)
    assert "oracle" not in found["replicates"]
    for name in ("gate", "baseline", "logit_adjusted"):
        p = posterior(case, name)
        for b in (0, 1, 40, 69):
            rows = np.repeat(np.arange(160), weights[:, b])
            expected = naive(p[rows], y[rows], unsure[rows])
            of_replicate = {metric: found["replicates"][name][metric][b] for metric in expected}
            assert of_replicate == pytest.approx(expected, abs=1e-9), (name, b)


def test_what_was_gained_lesion_by_lesion(cases, compared):
    for case, found in zip(cases, compared, strict=True):
        y = case.test.y.numpy()
        gate = posterior(case, "gate").argmax(1) == y
        for rival in ("baseline", "student", "logit_adjusted"):
            right = posterior(case, rival).argmax(1) == y
            gained: dict[str, int] = {}
            for group, a, b in zip(case.test.groups, gate, right, strict=True):
                gained[str(group)] = gained.get(str(group), 0) + int(a) - int(b)
            assert found["gained"][rival] == {group: count for group, count in gained.items() if count}
            assert found["fixed"][rival] == (gate & ~right).sum()
            assert found["broken"][rival] == (~gate & right).sum()


def test_the_mean_over_seeds_and_its_interval(compared):
    found = paired.over_seeds(compared, 0.9)
    assert list(found) == ["baseline", *OWN]
    for rival, metric in itertools.product(found, compared[0]["scores"]["gate"]):
        sign = -1 if metric in ("ece", "nll", "brier", "aurc") else 1
        leads = [sign * (each["scores"]["gate"][metric] - each["scores"][rival][metric]) for each in compared]
        assert found[rival][metric]["difference"] == pytest.approx(np.mean(leads)), (rival, metric)
        drawn = np.random.default_rng([0, 3]).integers(3, size=(3, 70))  # seeds are drawn too, one set a replicate
        replicates = [
            np.mean(
                [
                    sign * (compared[s]["replicates"]["gate"][metric][b] - compared[s]["replicates"][rival][metric][b])
                    for s in drawn[:, b]
                ]
            )
            for b in range(70)
        ]
        assert found[rival][metric]["interval"] == pytest.approx(list(np.quantile(replicates, [0.05, 0.95])))


def test_a_better_gate_is_ahead_whichever_way_the_metric_runs(cases):
    """The truth itself in the gate's place, against a baseline of noise."""
    case = cases[0]
    truth = torch.from_numpy(np.eye(4)[case.test.y.numpy()] * 0.96 + 0.01)
    sure = replace(case, decided=case.decided._replace(p=truth))
    lead = paired.over_seeds([compare(sure)], 0.95)["baseline"]
    for metric, found in lead.items():
        if isinstance(found, dict):
            assert found["difference"] > 0, metric
            assert found["interval"][0] > 0, metric
    assert lead["broken"] == 0
    assert lead["sign_flip_p"] < 1e-6


def test_lesions_are_flipped_as_a_whole_over_all_seeds():
    def seed(gained: dict[str, int]) -> dict[str, Any]:
        return {
            "scores": {name: {"accuracy": 0.5} for name in ("gate", "student")},
            "replicates": {}, "gained": {"student": gained}, "fixed": {"student": 3}, "broken": {"student": 1},
        }  # fmt: skip

    seeds = [{"a": 2, "b": 1}, {"a": 1, "b": -2, "c": 1}, {"c": 2, "d": -1}]
    found = paired.over_seeds([seed(each) for each in seeds], 0.95)["student"]
    sums = [3, -1, 3, -1]
    flips = [
        abs(sum(s * x for s, x in zip(signs, sums, strict=True))) for signs in itertools.product((1, -1), repeat=4)
    ]
    assert found["sign_flip_p"] == pytest.approx(np.mean([flip >= abs(sum(sums)) for flip in flips]))
    assert (found["fixed"], found["broken"]) == (9, 3)
    assert np.isnan(found["accuracy"]["interval"]).all()  # no replicates, no interval


def test_the_same_seed_twice_says_no_more_than_once(compared):
    once, twice = (paired.over_seeds(compared[:1] * n, 0.95) for n in (1, 2))
    for rival in once:
        assert twice[rival]["sign_flip_p"] == pytest.approx(once[rival]["sign_flip_p"])
        assert twice[rival]["accuracy"]["interval"] == pytest.approx(once[rival]["accuracy"]["interval"])


def test_seeds_that_disagree_widen_the_interval():
    """Every lesion alike, and seeds apart by two points: lesions alone would leave no interval at all."""

    def seed(lead: float) -> dict[str, Any]:
        gate = {"accuracy": 0.8 + lead}
        return {
            "scores": {"gate": gate, "student": {"accuracy": 0.8}},
            "replicates": {"gate": {"accuracy": [0.8 + lead] * 400}, "student": {"accuracy": [0.8] * 400}},
            "gained": {"student": {}}, "fixed": {"student": 0}, "broken": {"student": 0},
        }  # fmt: skip

    low, high = paired.over_seeds([seed(lead) for lead in (0.0, 0.01, 0.02)], 0.95)["student"]["accuracy"]["interval"]
    assert low < 0.005
    assert high > 0.015
    alone = paired.over_seeds([seed(0.01)], 0.95)["student"]["accuracy"]["interval"]
    assert alone == pytest.approx([0.01, 0.01])


def test_a_rival_that_one_seed_lacks_is_left_out(cases, compared):
    less = replace(cases[1], test=replace(cases[1].test, p_baseline=None))
    one = compare(less)
    found = paired.over_seeds([compared[0], one], 0.95)
    assert list(found) == OWN


def test_without_groups_and_without_replicates(cases):
    bare = make_case(1, grouped=False)
    found = compare(bare, EvaluateConfig(bootstrap=0))
    assert found["replicates"] == {}
    assert set(found["gained"]["baseline"].values()) <= {-1, 1}
    gained = found["gained"]["baseline"]
    assert sum(value > 0 for value in gained.values()) == found["fixed"]["baseline"]
    assert sum(value < 0 for value in gained.values()) == found["broken"]["baseline"]


class TestHeadroom:
    @staticmethod
    def seed(gate: float, student: float, oracle: float) -> dict[str, Any]:
        named = {"gate": gate, "student": student, "oracle": oracle}
        return {"scores": {name: {"accuracy": value} for name, value in named.items()}}

    def test_by_hand(self):
        # means 0.83, 0.80 and 0.90: three of ten points
        seeds = [self.seed(0.82, 0.78, 0.90), self.seed(0.84, 0.82, 0.90)]
        assert paired.headroom_taken(seeds) == pytest.approx(0.3)

    def test_may_be_negative_and_may_not_exist(self):
        assert paired.headroom_taken([self.seed(0.7, 0.8, 0.9)]) == pytest.approx(-1)
        assert paired.headroom_taken([self.seed(0.8, 0.8, 0.8)]) is None


def test_figures_that_are_undefined_survive_the_way_through_a_file(cases: list[Case]) -> None:
    """Nobody is unsure, and a class is absent: what has no value stays without one, and the rest is compared."""
    test = cases[0].test
    kept = cases[0].test.y.numpy() != 0
    case = replace(cases[0], test=test.rows(kept), decided=cases[0].decision.decide(test.p[kept], test.z[kept]))
    found = compare(case, replace(SETTINGS, ambiguous_below=0.0))
    against = paired.over_seeds([json.loads(json.dumps(jsonable(found)))], 0.95)["student"]
    assert np.isnan(against["ambiguous_accuracy"]["difference"])
    assert np.isnan(against["ambiguous_accuracy"]["interval"]).all()
    assert against["accuracy"] == paired.over_seeds([found], 0.95)["student"]["accuracy"]
    assert np.isfinite(against["accuracy"]["interval"]).all()
