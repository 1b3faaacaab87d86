"""Score every combination of a gate's settings for one similarity posterior."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
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
from tdumpra.core.gate import GateSignals, GateThresholds, fuse_rows, gate_opens, gate_signals
from tdumpra.core.groups import group_folds
from tdumpra.core.metrics import ClassCounts
from tdumpra.core.search import Axis, above, below, tally
from tdumpra.method.outputs import ScoredOutputs
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.presets import PRESETS, Preset

Array = np.ndarray
_FOLDS, _FOLD_SEED = 5, 0
# clauses that always hold, except where the classifier is certain: the calibrated gate decides
LEAST_ASKED = GateThresholds(theta=1.0, beta=0.0, margin=0.0, delta=0.0, alpha=0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """What to search: the candidates, the goal, and whether the classifier is first adjusted for the prior."""

    preset: Preset = PRESETS["default"]
    goal: Goal = field(default_factory=Goal)
    adjust_for_prior: bool = False

    @classmethod
    def check(
        cls,
        preset: str | Preset = "default",
        objective: str = "balanced_accuracy",
        costs: Any = None,
        adjust_prior: bool = False,
        *,
        n_classes: int,
    ) -> Search:
        """Build a search from a user's settings, or say which of them is wrong."""
        return cls(check_preset(preset), Goal.check(objective, costs, n_classes=n_classes), adjust_prior)


DEFAULT_SEARCH = Search()


def check_preset(preset: str | Preset) -> Preset:
    """Return the preset of that name; a :class:`Preset` is returned as it is."""
    if isinstance(preset, Preset):
        return preset
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)} or a Preset, not {preset!r}")
    return PRESETS[preset]


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
    p_cls: Tensor, p_sim: Tensor, y: Tensor, out_of_fold: Array, search: Search, prior: Tensor
) -> Searched:
    """Score all combinations of rule, alpha, power and lead, each row by weights fitted without its group."""
    signals = gate_signals(p_cls, p_sim)
    disagree = signals.label_cls != signals.label_sim
    # a classifier that leaves no doubt at all is not asked, here as in use
    asked = gate_opens(signals, LEAST_ASKED)[disagree].numpy()
    axes = (above(np.where(asked, out_of_fold, -np.inf), search.preset.advantage),)
    return _score_grid(axes, p_cls, p_sim, y, disagree, search, prior)


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
        moved = tally(axes, before, fused.argmax(1).numpy(), moving, loss_change, n_classes=n_classes)
        counts = ClassCounts(base.correct + moved.correct, base.support, base.predicted + moved.predicted)
        value = goal.value(counts, base_loss.sum() + moved.loss, n_rows)
        grids.append((value, metrics.accuracy(counts), moved.opened))
    shape = (len(preset.rule), len(preset.alpha), len(preset.fused_exponent), *(len(axis.values) for axis in axes))
    return Searched(*(np.stack(column).reshape(shape) for column in zip(*grids, strict=True)))


def fit_chances(p_cls: Tensor, p_sim: Tensor, rows: ScoredOutputs) -> FittedChances | None:
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
    return FittedChances(*fit(np.ones(len(y), dtype=bool)), out_of_fold)


def stacked(searched: list[Searched]) -> Searched:
    """Stack the grids of several concentrations along a new first axis."""
    return Searched(*(np.stack(column) for column in zip(*searched, strict=True)))
