"""The comparators that need every training row, against loops."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from tests.evaluation.cases import case_of
from tests.support import fit_and_tune, make_problem, unit

from tdumpra.evaluation.comparators import (
    CACHE_SHARPNESS,
    CACHE_WEIGHT,
    COMPARATORS,
)
from tdumpra.evaluation.rivals import best_harmless
from tdumpra.tuning.goal import Goal


def naive_affinity(z_train: np.ndarray, y_train: np.ndarray, z: np.ndarray, sharpness: float) -> np.ndarray:
    found = np.zeros((len(z), 4))
    for i, query in enumerate(unit(z)):
        for c in range(4):
            members = unit(z_train)[y_train == c]
            found[i, c] = np.mean([math.exp(-sharpness * (1 - float(query @ key))) for key in members])
    return found


def test_tip_adapter():
    problem = make_problem(2, dtype=np.float64)
    case = case_of(fit_and_tune(problem), problem)
    train, val, test = problem.train, problem.val, problem.test
    best, chosen = -np.inf, (0.0, 0.0)
    for sharpness in CACHE_SHARPNESS:
        affinity = naive_affinity(train.z, train.y, val.z, sharpness)
        for weight in (0.0, *CACHE_WEIGHT):
            label = (np.log(val.p) + weight * affinity).argmax(1)
            recall = np.mean([(label[val.y == c] == c).mean() for c in range(4)])
            if (label == val.y).mean() >= (val.p.argmax(1) == val.y).mean() and recall > best + 1e-12:
                best, chosen = recall, (sharpness, weight)
    logits = np.log(test.p) + chosen[1] * naive_affinity(train.z, train.y, test.z, chosen[0])
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = COMPARATORS["tip_adapter"].posterior(case)
    assert found is not None
    assert found.numpy() == pytest.approx(expected, abs=1e-9)
    assert chosen[1] > 0  # something was found


def test_single_prototype():
    problem = make_problem(dtype=np.float64)
    case = case_of(fit_and_tune(problem), problem)
    train, val = problem.train, problem.val
    means = unit(np.stack([unit(train.z)[train.y == c].sum(0) for c in range(4)]))

    def posterior(z: np.ndarray, tau: float) -> np.ndarray:
        scores: np.ndarray = np.exp(unit(z) @ means.T / tau)
        return np.asarray(scores / scores.sum(1, keepdims=True))

    def loss(tau: float) -> float:
        return float(-np.log(posterior(val.z, tau)[np.arange(len(val.y)), val.y]).mean())

    tau = minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-10}).x
    found = COMPARATORS["single_prototype"].posterior(case)
    assert found is not None
    assert found.numpy() == pytest.approx(posterior(problem.test.z, tau), abs=1e-4)


@pytest.mark.parametrize("name", ["tip_adapter", "single_prototype", "paper_gate", "calibrated_gate"])
def test_what_is_absent_is_left_out(name):
    problem = make_problem()
    case = case_of(fit_and_tune(problem), problem)
    assert COMPARATORS[name].posterior(replace(case, train=None, validation=None)) is None


def test_the_first_of_equals_and_no_harm():
    y = torch.tensor([0, 0, 1, 1])
    p = torch.tensor([[0.9, 0.1]] * 4)
    worse = torch.tensor([[0.1, 0.9]] * 3 + [[0.9, 0.1]])  # one right
    better = torch.tensor([[0.9, 0.1]] * 2 + [[0.1, 0.9]] * 2)
    goal = Goal("balanced_accuracy")
    assert best_harmless([("same", p), ("worse", worse), ("better", better), ("too", better)], p, y, goal) == (
        "better",
        True,
    )
    assert best_harmless([("same", p), ("worse", worse)], p, y, goal) == ("same", True)
    assert best_harmless([("worse", worse), ("worse still", worse)], p, y, goal) == ("worse", False)
