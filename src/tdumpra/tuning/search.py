"""Scoring every combination of a gate's settings for one similarity posterior, by either kind of gate."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tdumpra.core import metrics, search
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
from tdumpra.method.outputs import ScoredOutputs
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.presets import Preset

Array = np.ndarray
_FOLDS, _FOLD_SEED = 5, 0
# clauses that leave the word to the calibrated gate, but for rows on which the classifier is certain
LEAST_ASKED = GateThresholds(theta=1.0, beta=0.0, margin=0.0, delta=0.0, alpha=0.0)


class Searched(NamedTuple):
    """What each combination of settings scores."""

    objective: Array
    accuracy: Array
    opened: Array


class FittedChances(NamedTuple):
    """The calibrated gate's weights from all rows, and each row's advantage under weights that never saw its group."""

    classifier: Weights
    similarity: Weights
    out_of_fold: Array  # of the rows on which the paths disagree


def search_clauses(p_cls: Tensor, p_sim: Tensor, y: Tensor, preset: Preset, goal: Goal, prior: Tensor) -> Searched:
    """All combinations of rule, alpha, power of the prior and thresholds for one similarity posterior."""
    signals = gate_signals(p_cls, p_sim)
    disagree = signals.label_cls != signals.label_sim  # the fifth clause, and the only rows that can move
    signals = GateSignals(*(signal[disagree] for signal in signals))
    axes = clause_axes(signals, preset.theta, preset.beta, preset.margin, preset.delta)
    return _score_grid(axes, p_cls, p_sim, y, disagree, preset, goal, prior)


def clause_axes(
    signals: GateSignals, theta: tuple[float, ...], beta: tuple[float, ...], margin: tuple[float, ...],
    delta: tuple[float, ...],
) -> tuple[search.Axis, ...]:  # fmt: skip
    """The first four clauses as axes of a grid."""
    return (
        search.below(signals.gamma_cls.numpy(), theta),
        search.above(signals.gamma_sim.numpy(), beta),
        search.above(signals.margin_sim.numpy(), margin),
        search.above(signals.js.numpy(), delta),
    )


def search_calibrated(
    p_cls: Tensor, p_sim: Tensor, y: Tensor, out_of_fold: Array, preset: Preset, goal: Goal, prior: Tensor
) -> Searched:
    """All combinations of the outer settings and margin, each row judged by weights fitted without its group."""
    signals = gate_signals(p_cls, p_sim)
    disagree = signals.label_cls != signals.label_sim
    # a classifier that leaves no doubt at all is not asked, here as in use
    asked = gate_opens(signals, LEAST_ASKED)[disagree].numpy()
    axes = (search.above(np.where(asked, out_of_fold, -np.inf), preset.advantage),)
    return _score_grid(axes, p_cls, p_sim, y, disagree, preset, goal, prior)


def _score_grid(
    axes: tuple[search.Axis, ...],
    p_cls: Tensor,
    p_sim: Tensor,
    y: Tensor,
    can_move: Tensor,
    preset: Preset,
    goal: Goal,
    prior: Tensor,
) -> Searched:
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
        tally = search.tally(axes, before, fused.argmax(1).numpy(), moving, loss_change, n_classes=n_classes)
        counts = ClassCounts(base.correct + tally.correct, base.support, base.predicted + tally.predicted)
        value = goal.value(counts, base_loss.sum() + tally.loss, n_rows)
        grids.append((value, metrics.accuracy(counts), tally.opened))
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
    """The grids of several concentrations as one, along a new first axis."""
    return Searched(*(np.stack(column) for column in zip(*searched, strict=True)))
