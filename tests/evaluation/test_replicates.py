"""Replicates in which everything is chosen again: by loops, and what they do to intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.evaluation.cases import case_of
from tests.support import Array, fit_and_tune, make_problem

from tdumpra.core.groups import lesion_numbers
from tdumpra.core.metrics import classification_metrics
from tdumpra.evaluation import paired
from tdumpra.evaluation.comparators import COMPARATORS, Case
from tdumpra.evaluation.evaluate import evaluate
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.method.decision import Decision
from tdumpra.tuning.presets import PRESETS
from tdumpra.tuning.search import Search
from tdumpra.tuning.tune import tune

SMALL = Search(replace(PRESETS["paper-swapped"], beta=(0.0, 0.5), margin=(0.0, 0.2)))
SETTINGS = EvaluateConfig(bootstrap=30, tuning_replicates=6, level=0.5, seed=4)


@pytest.fixture(scope="module")
def case() -> Case:
    problem = make_problem(1, dtype=np.float64)
    made = case_of(fit_and_tune(problem, n_prototypes=2), problem)
    validation, bank, prior = made.validation, made.decision.bank, made.decision.prior
    assert validation is not None

    def retune(numbers: Array) -> Decision:
        return tune(bank, validation.rows(numbers), prior, SMALL).decision

    decision = retune(np.arange(len(validation)))
    decided = decision.decide(made.test.p, made.test.z)
    return replace(made, decision=decision, decided=decided, retune=retune)


def test_gate_and_rivals_are_chosen_again_on_drawn_lesions(case):
    compared = evaluate(case, settings=SETTINGS).compared
    assert compared is not None
    assert case.validation is not None
    assert case.retune is not None
    of_test, of_validation = (np.random.default_rng([4, stream]) for stream in (1, 2))
    lesion_val = lesion_numbers(case.validation.groups, len(case.validation))
    lesion_test = lesion_numbers(case.test.groups, len(case.test))

    def drawn(lesion: Array, rng: np.random.Generator) -> Array:
        groups = rng.integers(lesion.max() + 1, size=lesion.max() + 1)
        times = [int((groups == each).sum()) for each in lesion]
        return np.repeat(np.arange(len(lesion)), times)

    settings_differ = set()
    for b in range(6):
        rows = drawn(lesion_val, of_validation)
        decision = case.retune(rows)
        settings_differ.add(str(decision.to_json()))
        again = replace(
            case,
            validation=case.validation.rows(rows),
            decision=decision,
            decided=decision.decide(case.test.p, case.test.z),
        )
        on = drawn(lesion_test, of_test)
        for name in ("gate", "student", "logit_adjusted", "average_adjusted"):
            p = COMPARATORS[name].posterior(again)
            assert p is not None
            expected = classification_metrics(p.numpy()[on], case.test.y.numpy()[on])
            found = {metric: compared["tuned"][name][metric][b] for metric in expected}
            assert found == pytest.approx(expected, abs=1e-9), (b, name)
    assert len(settings_differ) > 1


def test_the_leads_stay_and_their_intervals_change(case):
    compared = evaluate(case, settings=SETTINGS).compared
    assert compared is not None
    fixed, tuned = paired.over_seeds([compared], 0.9), paired.with_tuning([compared], 0.9)
    assert list(fixed) == list(tuned)
    for rival in fixed:
        assert set(tuned[rival]) == {metric for metric in fixed[rival] if isinstance(fixed[rival][metric], dict)}
        assert tuned[rival]["accuracy"]["difference"] == fixed[rival]["accuracy"]["difference"]
    low, high = tuned["student"]["balanced_accuracy"]["interval"]
    leads = [
        a - b
        for a, b in zip(*(compared["tuned"][name]["balanced_accuracy"] for name in ("gate", "student")), strict=True)
    ]
    assert (low, high) == pytest.approx(tuple(np.quantile(leads, [0.05, 0.95])))


def test_rows_of_all_seeds_are_drawn_with_their_scores(case):
    assert case.validation is not None
    pool = case.validation.rows(np.arange(len(case.validation))[::-1].copy())
    bank = case.decision.bank
    pooled = replace(case, pool=pool, pool_scores=lambda kappa: bank.class_scores(pool.z, kappa=kappa))
    numbers = np.array([3, 3, 0, 7])
    again = pooled.chosen_again(numbers)
    assert again.choice is not None
    assert torch.equal(again.choice.y, pool.y[numbers])
    scores = again.choice_scores(10.0)
    assert scores is not None
    assert torch.equal(scores, bank.class_scores(pool.z[numbers], kappa=10.0))


def test_a_decision_that_cannot_be_tuned_again(case):
    with pytest.raises(ValueError, match="tuning_replicates needs a decision that can be tuned again"):
        evaluate(replace(case, retune=None), settings=SETTINGS)


@pytest.mark.parametrize(("level", "least"), [(0.95, 40), (0.9, 20), (0.99, 200), (0.5, 4)])
def test_too_few_replicates_for_an_interval(level, least):
    assert EvaluateConfig(tuning_replicates=least, level=level).tuning_replicates == least
    for few in (1, least - 1):
        with pytest.raises(ValueError, match=f"at least {least} "):
            EvaluateConfig(tuning_replicates=few, level=level)
    assert EvaluateConfig(level=1.0).tuning_replicates == 0
    with pytest.raises(ValueError, match="lower level"):
        EvaluateConfig(tuning_replicates=1000, level=1.0)


@pytest.mark.parametrize("value", [-1, 2.5, True])
def test_a_bad_number_of_replicates(value):
    with pytest.raises((TypeError, ValueError), match="tuning_replicates"):
        EvaluateConfig(tuning_replicates=value)
