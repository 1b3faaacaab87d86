"""Rivals have the gate's rows, goal and floor: chosen again by loops over every candidate."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score
from tests.evaluation.cases import case_of
from tests.support import Array, fit_and_tune, make_problem, random_posterior

from tdumpra.artifacts import jsonable
from tdumpra.evaluation.comparators import COMPARATORS, Case
from tdumpra.evaluation.evaluate import evaluate
from tdumpra.method.outputs import ValidationOutputs

TUNED = ("logit_adjusted", "second_adjusted", "ensemble_adjusted", "average_adjusted", "ungated")
POWERS = np.arange(21) / 20


@pytest.fixture(scope="module")
def case() -> Case:
    """A case with a second network that is better than the first on validation, so that floors differ."""
    problem = make_problem(3, dtype=np.float64)
    made = case_of(fit_and_tune(problem, n_prototypes=2), problem)
    assert made.validation is not None

    def better(rows: Any, seed: int) -> torch.Tensor:
        mixed = 0.1 * torch.eye(4, dtype=torch.float64)[rows.y] + 0.9 * rows.p
        noise = torch.from_numpy(random_posterior(np.random.default_rng(seed), len(rows), 4))
        drawn = (mixed + 0.3 * noise) * made.decision.prior**0.3  # to common classes
        normalised: torch.Tensor = drawn / drawn.sum(1, keepdim=True)
        return normalised

    return replace(
        made,
        validation=replace(made.validation, p_second=better(made.validation, 0)),
        test=replace(made.test, p_second=better(made.test, 1)),
    )


def paths(case: Case, rows: Any) -> tuple[Array, Array]:
    decided = case.decision.decide(rows.p, rows.z)
    return decided.p_cls.numpy(), decided.p_sim.numpy()


def chosen_by_loops(case: Case, candidates: list[tuple[Any, Array]]) -> Any:
    assert case.validation is not None
    y, plain = case.validation.y.numpy(), case.validation.p.argmax(1).numpy()
    floor = accuracy_score(y, plain)
    best: tuple[float, Any] = (-1.0, None)
    for key, p in candidates:
        label = p.argmax(1)
        value = balanced_accuracy_score(y, label)
        if accuracy_score(y, label) >= floor and value > best[0] + 1e-12:
            best = (value, key)
    return best[1]


def divided(p: Array, case: Case, power: float) -> Array:
    quotient: Array = p / case.decision.prior.numpy() ** power
    quotient /= quotient.sum(1, keepdims=True)
    return quotient


def test_the_average_has_the_prior_power_of_the_others(case):
    p_cls, p_sim = paths(case, case.validation)
    power = chosen_by_loops(case, [(t, divided((p_cls + p_sim) / 2, case, t)) for t in POWERS])
    found = COMPARATORS["average_adjusted"].posterior(case)
    assert found is not None
    expected = divided((case.decided.p_cls.numpy() + case.decided.p_sim.numpy()) / 2, case, power)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert case.choices()["average_adjusted"]["exponent"] == pytest.approx(power)


def test_ungated_fusion_has_the_gates_weight_rule_and_power(case):
    def fused(p_cls: Array, p_sim: Array, alpha: float, rule: str) -> Array:
        if rule == "linear":
            return alpha * p_cls + (1 - alpha) * p_sim
        product: Array = p_cls**alpha * p_sim ** (1 - alpha)
        product /= product.sum(1, keepdims=True)
        return product

    p_cls, p_sim = paths(case, case.validation)
    grid = itertools.product(np.arange(10, -1, -1) / 10, ("linear", "log-linear"), POWERS)
    candidates = [(key, divided(fused(p_cls, p_sim, *key[:2]), case, key[2])) for key in grid]
    alpha, rule, power = chosen_by_loops(case, candidates)
    found = COMPARATORS["ungated"].posterior(case)
    assert found is not None
    expected = divided(fused(case.decided.p_cls.numpy(), case.decided.p_sim.numpy(), alpha, rule), case, power)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    said = case.choices()["ungated"]
    assert (said["alpha"], said["rule"], said["exponent"]) == (pytest.approx(alpha), rule, pytest.approx(power))


def test_a_better_network_is_held_to_the_plain_classifiers_accuracy(case):
    """Held to its own accuracy, it could not spend what it has above the classifier on rare classes."""
    found = COMPARATORS["second_adjusted"].posterior(case)
    on_validation = case.on_validation()
    assert found is not None
    assert on_validation is not None
    p, second = (COMPARATORS[name].posterior(on_validation) for name in ("second_adjusted", "second"))
    assert p is not None
    assert second is not None
    y, plain = on_validation.test.y, on_validation.test.p.argmax(1)
    of_plain, of_second, spent = ((label == y).double().mean() for label in (plain, second.argmax(1), p.argmax(1)))
    assert of_plain <= spent < of_second


def test_a_rival_that_cannot_reach_the_floor_is_left_as_it_is(case):
    assert case.validation is not None
    worse = replace(
        case,
        validation=replace(case.validation, p_second=case.validation.p.flip(1)),
        test=replace(case.test, p_second=case.test.p.flip(1)),
    )
    document = evaluate(worse).document
    assert document["rivals"]["second_adjusted"]["exponent"] == 0.0
    assert document["rivals"]["second_adjusted"]["harmless"] is False
    assert document["rivals"]["logit_adjusted"]["harmless"] is True
    assert document["comparators"]["second_adjusted"] == pytest.approx(document["comparators"]["second_temperature"])


def test_chosen_values_are_in_the_document(case):
    rivals = jsonable(evaluate(case).document["rivals"])
    others = ("temperature", "second_temperature", "ensemble", "tip_adapter", "single_prototype", "paper_gate")
    assert {*TUNED, *others} <= set(rivals)
    assert "second" not in rivals  # taken as it is
    for name in TUNED:
        assert 0 <= rivals[name]["exponent"] <= 1
        assert rivals[name]["harmless"] is True
    assert rivals["ensemble"].keys() == {"temperature", "second_temperature"}
    assert rivals["tip_adapter"].keys() == {"sharpness", "weight"}


def test_the_same_rows_choose(case):
    """Where the gate was chosen on the rows of all seeds, retrieval's scores of all of them are needed."""
    other = ValidationOutputs.check(*make_problem(5, dtype=np.float64).val[:4])
    pooled = replace(case, pool=other)
    assert COMPARATORS["average_adjusted"].posterior(pooled) is None
    asked = []

    def scores(kappa: float) -> torch.Tensor:
        asked.append(kappa)
        found: torch.Tensor = case.decision.bank.class_scores(other.z, kappa=kappa)
        return found

    found = COMPARATORS["ungated"].posterior(replace(pooled, pool_scores=scores))
    alone = COMPARATORS["ungated"].posterior(replace(case, validation=other))
    assert found is not None
    assert alone is not None
    assert torch.equal(found, alone)
    assert asked == [case.decision.kappa]


def test_champions_come_from_all_rivals(case):
    on_validation = case.on_validation()
    assert on_validation is not None
    y = on_validation.test.y.numpy()
    floor = accuracy_score(y, on_validation.test.p.argmax(1))
    values = {}
    for name, comparator in COMPARATORS.items():
        p = comparator.posterior(on_validation)
        if p is not None and name != "oracle" and accuracy_score(y, p.argmax(1)) >= floor:
            values[name] = balanced_accuracy_score(y, p.argmax(1))
    worth = evaluate(case).document["retrieval_worth"]
    for side, needs_bank in (("with_bank", True), ("without_bank", False)):
        own = {name: value for name, value in values.items() if COMPARATORS[name].needs_bank is needs_bank}
        assert own[worth[side]] == pytest.approx(max(own.values()))
    assert COMPARATORS["average_adjusted"].needs_bank
    assert COMPARATORS["ungated"].needs_bank
