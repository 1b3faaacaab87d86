from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tests.support import make_problem

from tdumpra import GateThresholds, PrototypeBank, fuse
from tdumpra.core.calibration import class_prior
from tdumpra.method.outputs import ValidationOutputs
from tdumpra.tuning.goal import Goal, check_costs
from tdumpra.tuning.presets import Preset
from tdumpra.tuning.search import Search
from tdumpra.tuning.tune import tune

# a missed class 3 (a melanoma, say) is ten times as dear as any other mistake
COSTS = np.ones((4, 4)) - np.eye(4)
COSTS[3, :3] = 10.0


@pytest.mark.parametrize("seed", [0, 1])
def test_the_cheapest_harmless_gate_wins(seed):
    problem = make_problem(seed, dtype=np.float64)
    preset = Preset(
        kappa=(10.0,), theta=(0.6, 0.9), beta=(0.3, 0.6), margin=(0.0, 0.2), delta=(0.05,), alpha=(0.2, 0.6),
        temperatures=False,
    )  # fmt: skip
    bank = PrototypeBank.fit(problem.train.z, problem.train.y, 2)
    prior = class_prior(torch.from_numpy(problem.train.y), 4)
    val = problem.val
    tuned = tune(bank, ValidationOutputs.check(*val[:3]), prior, Search(preset, Goal("cost", COSTS)))
    p_sim = bank.posterior(val.z, kappa=10.0)
    costs = []
    for rule, *values in itertools.product(
        preset.rule, preset.theta, preset.beta, preset.margin, preset.delta, preset.alpha
    ):
        label = np.asarray(fuse(val.p, p_sim, GateThresholds(*values), rule=rule).p).argmax(1)
        if (label == val.y).mean() >= (val.p.argmax(1) == val.y).mean():
            costs.append(COSTS[val.y, label].mean())
    unchanged = COSTS[val.y, val.p.argmax(1)].mean()
    assert -tuned.best.objective == pytest.approx(min([unchanged, *costs]), abs=1e-12)
    assert min(costs) < unchanged  # there was something to win
    assert tuned.objective == "cost"


def test_costs_of_one_are_the_error_rate():
    problem = make_problem()
    goal = Goal.check("cost", 1 - np.eye(4), n_classes=4)
    score = goal.score(torch.from_numpy(problem.val.p), torch.from_numpy(problem.val.y))
    assert score.objective == pytest.approx(score.accuracy - 1)


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ([[0, 1]], "costs must be a square matrix, .*, not of shape"),
        ([[0, 1], [1]], "costs must be a square matrix of numbers"),
        (np.zeros((3, 3)), "costs are given for 3 classes where there are 2"),
        ([[0, np.nan], [1, 0]], "costs must be finite numbers"),
        ([[0, 1], [1, 2]], "costs make the right decision for class 1 dearer than a wrong one"),
    ],
)
def test_refused_costs(costs, message):
    with pytest.raises(ValueError, match=message):
        check_costs(costs, n_classes=2)


def test_the_objective_cost_needs_costs():
    with pytest.raises(ValueError, match="the objective cost needs costs"):
        Goal.check("cost", n_classes=3)
    with pytest.raises(ValueError, match=r"objective must be one of .*, or cost, not 'luck'"):
        Goal.check("luck", n_classes=3)


def test_a_single_number_is_no_matrix_of_costs():
    with pytest.raises(ValueError, match=r"costs must be a square matrix, .*, not of shape \(\)"):
        Goal.check("cost", 3, n_classes=4)
    assert Goal.check("accuracy", (), n_classes=4).costs is None
