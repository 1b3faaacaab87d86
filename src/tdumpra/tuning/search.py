"""Score every combination of a gate's settings for one similarity posterior."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tdumpra.core import metrics
from tdumpra.core.chances import (
    FEWEST_ROWS,
    PRIOR_CLASSIFIER,
    PRIOR_SIMILARITY,
    Weights,
    advantage,
    confidence_features,
    fit_chance,
)
from tdumpra.core.gate import GateSignals, GateThresholds, fuse_rows, gate_opens, gate_signals, is_first_choice
from tdumpra.core.groups import group_folds
from tdumpra.core.metrics import ClassCounts
from tdumpra.core.search import Axis, above, below, tally
from tdumpra.method.outputs import ScoredOutputs
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.presets import PRESETS, Preset, check_preset
from tdumpra.tuning.settings import check_cost_limits

Array = np.ndarray
_FOLDS, _FOLD_SEED = 5, 0


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """What to search: the candidates, the goal, and whether the classifier is first adjusted for the prior."""

    preset: Preset = PRESETS["default"]
    goal: Goal = field(default_factory=Goal)
    adjust_for_prior: bool = False
    max_asked: float = 1.0  # largest share of the rows on which the classifier's confidence may lie below theta
    tolerance: float = 0.0  # of the objective, given up for the theta that asks about the fewest rows

    @classmethod
    def check(
        cls,
        preset: str | Preset = "default",
        objective: str = "balanced_accuracy",
        costs: Any = None,
        adjust_prior: bool = False,
        *,
        n_classes: int,
        max_asked: float = 1.0,
        tolerance: float = 0.0,
    ) -> Search:
        """Build a search from a user's settings, or say which of them is wrong."""
        goal = Goal.check(objective, costs, n_classes=n_classes)
        check_cost_limits(max_asked, tolerance)
        return cls(check_preset(preset), goal, adjust_prior, float(max_asked), float(tolerance))

    def within(self, gamma_cls: Tensor, n_classes: int) -> Search:
        """Return the same search with candidates within the preset's bounds and the share that may be asked about.

        Where a theta would ask about too many of the rows, the largest that does not takes its place.
        """
        preset = self.preset
        if self.max_asked < 1:
            ordered = gamma_cls.double().sort().values
            most = float(ordered[int(self.max_asked * len(ordered))]) if len(ordered) else 1.0
            preset = replace(preset, most_theta=min(preset.most_theta, most))
        return replace(self, preset=preset.bounded(n_classes))


DEFAULT_SEARCH = Search()


class Searched(NamedTuple):
    """The scores of each combination of settings."""

    objective: Array
    accuracy: Array
    opened: Array


class FittedChances(NamedTuple):
    """The calibrated gate's weights from all rows, and each row's advantage under weights that never saw its group."""

    classifier: Weights
    similarity: Weights
    out_of_fold: Array  # of the rows on which the paths disagree
    least: GateThresholds  # what the gate asks for besides


def search_clauses(p_cls: Tensor, p_sim: Tensor, y: Tensor, search: Search, prior: Tensor) -> Searched:
    """Score all combinations of rule, alpha, power of the prior and thresholds for one similarity posterior."""
    signals = gate_signals(p_cls, p_sim)
    disagree = signals.label_cls != signals.label_sim  # the fifth clause, and the only rows that can move
    signals = GateSignals(*(signal[disagree] for signal in signals))
    preset = search.preset
    axes = clause_axes(signals, preset.theta, preset.beta, preset.margin, preset.delta)
    return _score_grid(axes, p_cls, p_sim, y, disagree, search, prior)


def clause_axes(
    signals: GateSignals, theta: tuple[float, ...], beta: tuple[float, ...], margin: tuple[float, ...],
    delta: tuple[float, ...],
) -> tuple[Axis, ...]:  # fmt: skip
    """Return the first four clauses as axes of a grid."""
    return (
        below(signals.gamma_cls.numpy(), theta),
        above(signals.gamma_sim.numpy(), beta),
        above(signals.margin_sim.numpy(), margin),
        above(signals.js.numpy(), delta),
    )


def search_calibrated(
    p_cls: Tensor, p_sim: Tensor, y: Tensor, fit: FittedChances, search: Search, prior: Tensor
) -> Searched:
    """Score all combinations of rule, alpha, power and lead, each row by weights fitted without its group."""
    signals = gate_signals(p_cls, p_sim)
    disagree = signals.label_cls != signals.label_sim
    # a classifier that leaves no doubt at all is not asked, here as in use; nor is retrieval below the bounds
    asked = gate_opens(signals, fit.least)[disagree].numpy()
    axes = (
        below(signals.gamma_cls[disagree].numpy(), calibrated_theta(search)),
        above(np.where(asked, fit.out_of_fold, -np.inf), search.preset.advantage),
    )
    return _score_grid(axes, p_cls, p_sim, y, disagree, search, prior)


def calibrated_theta(search: Search) -> tuple[float, ...]:
    """Return the calibrated gate's candidates of theta: the bound, unless a cheaper gate is asked for."""
    most = search.preset.most_theta
    return tuple(dict.fromkeys((*search.preset.theta, most))) if search.tolerance else (most,)


def _score_grid(
    axes: tuple[Axis, ...],
    p_cls: Tensor,
    p_sim: Tensor,
    y: Tensor,
    can_move: Tensor,
    search: Search,
    prior: Tensor,
) -> Searched:
    preset, goal = search.preset, search.goal
    n_rows, n_classes = p_cls.shape
    labels = y.numpy()
    base = metrics.class_counts(p_cls.argmax(1).numpy(), labels, n_classes)
    base_loss = goal.row_loss(p_cls.double().numpy(), labels)
    p_cls, p_sim, moving = p_cls[can_move], p_sim[can_move], labels[can_move.numpy()]
    loss_before, before = base_loss[can_move.numpy()], p_cls.argmax(1).numpy()
    grids = []
    for rule, alpha, exponent in itertools.product(preset.rule, preset.alpha, preset.fused_exponent):
        fused = fuse_rows(p_cls, p_sim, alpha=alpha, rule=rule, prior=prior, exponent=exponent)
        loss_change = goal.row_loss(fused.double().numpy(), moving) - loss_before
        named = is_first_choice(fused, p_cls, p_sim).numpy() if preset.first_choices_only else None
        after = fused.argmax(1).numpy()
        moved = tally(axes, before, after, moving, loss_change, n_classes=n_classes, may_open=named)
        counts = ClassCounts(base.correct + moved.correct, base.support, base.predicted + moved.predicted)
        value = goal.value(counts, base_loss.sum() + moved.loss, n_rows)
        grids.append((value, metrics.accuracy(counts), moved.opened))
    shape = (len(preset.rule), len(preset.alpha), len(preset.fused_exponent), *(len(axis.values) for axis in axes))
    return Searched(*(np.stack(column).reshape(shape) for column in zip(*grids, strict=True)))


def fit_chances(p_cls: Tensor, p_sim: Tensor, rows: ScoredOutputs, least: GateThresholds) -> FittedChances | None:
    """Fit the calibrated gate on all disagreements, and without each fold in turn; ``None`` if there are few."""
    signals = gate_signals(p_cls, p_sim)
    disagree = signals.label_cls != signals.label_sim
    signals = GateSignals(*(signal[disagree] for signal in signals))
    if int(disagree.sum()) < FEWEST_ROWS:
        return None
    x, y = confidence_features(signals).numpy(), rows.y[disagree]
    right_cls, right_sim = (signals.label_cls == y).numpy(), (signals.label_sim == y).numpy()
    groups = None if rows.groups is None else rows.groups[disagree.numpy()]
    n_groups = len(y) if groups is None else len(np.unique(groups))
    fold = group_folds(groups, y.numpy(), min(_FOLDS, n_groups), seed=_FOLD_SEED)

    def fit(used: Array) -> tuple[Weights, Weights]:
        return (
            fit_chance(x[used], right_cls[used], PRIOR_CLASSIFIER),
            fit_chance(x[used], right_sim[used], PRIOR_SIMILARITY),
        )

    out_of_fold = np.empty(len(y))
    for number in range(fold.max() + 1):
        held_out = fold == number
        part = GateSignals(*(signal[torch.from_numpy(held_out)] for signal in signals))
        out_of_fold[held_out] = advantage(part, *fit(~held_out)).numpy()
    return FittedChances(*fit(np.ones(len(y), dtype=bool)), out_of_fold, least)


def stacked(searched: list[Searched]) -> Searched:
    """Stack the grids of several concentrations along a new first axis."""
    return Searched(*(np.stack(column) for column in zip(*searched, strict=True)))
