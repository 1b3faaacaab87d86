"""Adapt a model to a new place: try the cheap ways under nested cross-validation, and keep what wins or nothing.

Local lesions are dealt into five folds. Ways and dials are chosen on four of them, by folds again, and applied to the
fifth, so that every estimate comes from rows that had no say in what was applied to them. The inner folds are the outer
ones: what is fitted without the folds i and j serves the choice for fold i and the choice for fold j.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from tdumpra.artifacts import jsonable
from tdumpra.core.bootstrap import MetricSums, bootstrap_metrics, group_weights, percentile_interval
from tdumpra.core.gate import GateThresholds
from tdumpra.core.groups import group_folds, lesion_numbers
from tdumpra.core.metrics import cost_by_row
from tdumpra.method.rows import KeptRows
from tdumpra.models.ways import WAYS, Adapted, Plan, Workbench, bank_plans, reading_plans
from tdumpra.tuning.goal import LOSSES, Goal, Score, objective_name, shown_value

Array = np.ndarray
FOLDS = 5
LEVEL = 0.95
REPLICATES = 1000
SHOWN = ("accuracy", "balanced_accuracy", "macro_f1", "nll", "ece")  # of every way
_SEED = 0


class Interval(NamedTuple):
    """A figure with its interval over lesions."""

    value: float
    low: float
    high: float


class Choice(NamedTuple):
    """The best plan of each way on some rows, its score there, and the way that wins."""

    plans: Mapping[str, Plan]
    scores: Mapping[str, Score]
    winner: str

    @property
    def shown(self) -> str:
        """Return the winner, or where the model stays the way that came nearest: at no lower accuracy, if one did."""
        if self.winner != "keep":
            return self.winner
        base = self.scores["keep"]
        rivals = {way: score for way, score in self.scores.items() if way != "keep"}
        harmless = {way: score for way, score in rivals.items() if score.accuracy >= base.accuracy}
        return max(harmless or rivals, key=lambda way: round(rivals[way].objective, 12))


class Part(NamedTuple):
    """Rows to predict (numbers), and the rows to fit on (a mask)."""

    train: Array
    rows: Array


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Adaptation:
    """What was tried on local rows, what it is worth on rows that had no say, and what was kept."""

    goal: Goal
    choice: Choice  # on all local rows
    fold: Array  # of each local row
    by_fold: tuple[Choice, ...]  # where each fold was left out
    posteriors: Mapping[str, Array]  # of the procedure ("chosen") and of each way, out of fold
    figures: Mapping[str, Mapping[str, Interval]]  # of each of them
    gains: Mapping[str, Mapping[str, Interval]]  # of the procedure over each way
    adapted: Adapted | None  # None: nothing won

    @property
    def survives(self) -> bool:
        """Return whether rows without a say confirm the choice: a better objective for sure, and no lower accuracy."""
        return self.choice.winner != "keep" and _confirmed(self.gains["keep"], self.goal)

    def verdict(self) -> str:
        """Say in a sentence what came out."""
        objective, words = self.goal.objective, WAYS[self.choice.shown]
        name = objective_name(objective)
        if self.choice.winner == "keep":
            verb = "lowers" if objective in LOSSES else "raises"
            return f"nothing wins: no way {verb} {name} at no lower accuracy, so the model stays; {words} came nearest"
        now, before, gains = self.figures["chosen"], self.figures["keep"], self.gains["keep"]
        gain = gains[objective]
        found = (
            f"on lesions that had no say {name} is {now[objective].value:.3f} where it was "
            f"{before[objective].value:.3f} ({_signed(gain.value)}, 95% interval {_signed(gain.low)} to "
            f"{_signed(gain.high)})"
        )
        if objective != "accuracy":
            found += f", accuracy {now['accuracy'].value:.3f} where it was {before['accuracy'].value:.3f}"
        if self.survives:
            return f"{words} wins: {found}"
        reason = "accuracy falls" if gains["accuracy"].value < 0 else "that may be chance, and more cases would tell"
        return f"nothing wins: {words} looked best, but {found}: {reason}; the model stays"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""

        def table(figures: Mapping[str, Interval]) -> dict[str, Any]:
            return {metric: each._asdict() for metric, each in figures.items()}

        document: dict[str, Any] = jsonable({
            "objective": self.goal.objective,
            "verdict": self.verdict(),
            "wins": self.survives,
            "way": self.choice.winner if self.survives else "keep",
            "shown": self.choice.shown,
            "chosen_by_fold": [choice.winner for choice in self.by_fold],
            "estimate": table(self.figures["chosen"]),
            "ways": {
                way: {
                    "name": WAYS[way],
                    "dials": plan._asdict(),
                    "words": plan.words(),
                    "figures": table(self.figures[way]),
                    "chosen_minus_this": table(self.gains[way]),
                }
                for way, plan in self.choice.plans.items()
            },
        })  # fmt: skip
        return document


def adapt(bench: Workbench, goal: Goal) -> Adaptation:
    """Choose a way and its dials on the local rows, estimate what such a choice is worth, and fit it on all of them."""
    local = bench.local
    refuse_unusable(local, bench.class_names)
    fold = group_folds(local.kin, local.y, FOLDS, seed=_SEED)  # a copy must not judge what was fitted on its twin
    # first the choice on all rows: what it fits without each fold, the estimate needs too
    choice = choose(bench, [_part(fold, {i}, i) for i in range(FOLDS)], goal)
    by_fold, posteriors = nested(bench, goal, fold)
    figures, gains = compared(posteriors, local, goal)
    everyone = np.ones(len(local), dtype=bool)
    wins = choice.winner != "keep" and _confirmed(gains["keep"], goal)
    return Adaptation(
        goal=goal,
        choice=choice,
        fold=fold,
        by_fold=by_fold,
        posteriors=posteriors,
        figures=figures,
        gains=gains,
        adapted=bench.fit(everyone, choice.plans[choice.winner]) if wins else None,
    )


def refuse_unusable(local: KeptRows, class_names: Sequence[str]) -> None:
    """Refuse rows that nothing can be chosen on."""
    if not local.labelled.all():
        raise ValueError(f"{int((~local.labelled).sum())} of {len(local)} local cases have no label: leave them out")
    lesions, named = len(np.unique(local.kin)), len(np.unique(local.groups))
    if lesions < FOLDS:
        copies = f" ({named} by name, and the rest are copies)" if named > lesions else ""
        raise ValueError(
            f"adapting deals lesions into {FOLDS} folds, and the source has {lesions}{copies}: label more cases, 50 at "
            "least"
        )
    present = np.unique(local.y)
    if len(present) < 2:
        raise ValueError(
            f"all {len(local)} local cases are {class_names[present[0]]!r}: adapting needs cases of two classes or more"
        )


def choose(bench: Workbench, parts: Sequence[Part], goal: Goal) -> Choice:
    """Choose each way's dials, and the best way, by predictions on parts that each stand on other rows.

    The bank is added to each reading of the classifier as that was chosen alone.
    """
    y = torch.from_numpy(np.concatenate([bench.local.y[part.rows] for part in parts]))

    def scores(plans: Sequence[Plan]) -> dict[Plan, Score]:
        by_part = [[bench.predict(part.train, plan, part.rows) for plan in plans] for part in parts]
        joined = (torch.from_numpy(np.concatenate(of_plan)) for of_plan in zip(*by_part, strict=True))
        return {plan: goal.score(p, y) for plan, p in zip(plans, joined, strict=True)}

    tried = scores([plan for reading in bench.readings for plan in reading_plans(reading, goal.objective)])
    base = tried[Plan()]
    alone = [_best({p: s for p, s in tried.items() if p.reading == reading}, base) for reading in bench.readings]
    shut = bench.decision.thresholds == GateThresholds.shut()
    with_bank = scores([plan for each in alone for plan in bank_plans(each, shut=shut)])
    tried |= with_bank
    best = alone + [
        _best({p: s for p, s in with_bank.items() if p.reading == reading}, base) for reading in bench.readings
    ]
    plans = {plan.way: plan for plan in best}
    ordered = {way: plans[way] for way in WAYS if way in plans}
    winner = _best({plan: tried[plan] for plan in ordered.values()}, base)
    return Choice(ordered, {way: tried[plan] for way, plan in ordered.items()}, winner.way)


def _best(tried: Mapping[Plan, Score], base: Score) -> Plan:
    """Return the best objective at no lower accuracy, the first of equals; without one, the most accurate plan."""
    harmless = {plan: score for plan, score in tried.items() if score.accuracy >= base.accuracy}
    if not harmless:
        return max(tried, key=lambda plan: tried[plan].accuracy)
    return max(harmless, key=lambda plan: round(harmless[plan].objective, 12))


def nested(bench: Workbench, goal: Goal, fold: Array) -> tuple[tuple[Choice, ...], dict[str, Array]]:
    """Return what is chosen without each fold, and what the winners and all ways say of the rows left out."""
    n, choices = len(fold), []
    posteriors: dict[str, Array] = {}
    for left_out in range(FOLDS):
        inner = [_part(fold, {left_out, j}, j) for j in range(FOLDS) if j != left_out]
        choice = choose(bench, inner, goal)
        train, rows = _part(fold, {left_out}, left_out)
        for way, plan in choice.plans.items():
            p = bench.predict(train, plan, rows)
            posteriors.setdefault(way, np.empty((n, p.shape[1])))[rows] = p
        posteriors.setdefault("chosen", np.empty_like(posteriors["keep"]))[rows] = posteriors[choice.winner][rows]
        choices.append(choice)
    return tuple(choices), posteriors


def _part(fold: Array, without: set[int], rows: int) -> Part:
    return Part(~np.isin(fold, list(without)), np.flatnonzero(fold == rows))


def figures_of(p: Array, y: Array, goal: Goal) -> Any:
    """Return a posterior's figures as a function of the rows' weights."""
    means = {} if goal.costs is None else {"cost": cost_by_row(p.argmax(1), y, goal.costs)}
    return MetricSums.prepare(p, y, means).metrics


def compared(
    posteriors: Mapping[str, Array], rows: KeptRows, goal: Goal
) -> tuple[dict[str, dict[str, Interval]], dict[str, dict[str, Interval]]]:
    """Return figures of all posteriors, and those of the procedure less each way's, with intervals over lesions."""
    figures = {name: figures_of(p, rows.y, goal) for name, p in posteriors.items()}
    once = {name: of_weights(np.ones((len(rows), 1))) for name, of_weights in figures.items()}
    member = lesion_numbers(rows.kin, len(rows))
    replicates = {
        name: bootstrap_metrics(of_weights, group_weights(member, n_replicates=REPLICATES, seed=_SEED))
        for name, of_weights in figures.items()
    }
    shown = shown_metrics(goal)

    def interval(value: Any, drawn: Array) -> Interval:
        return Interval(float(value), *percentile_interval(drawn, LEVEL))

    found = {
        name: {metric: interval(once[name][metric][0], replicates[name][metric]) for metric in shown}
        for name in posteriors
    }
    gains = {
        name: {
            metric: interval(
                once["chosen"][metric][0] - once[name][metric][0],
                replicates["chosen"][metric] - replicates[name][metric],
            )
            for metric in shown
        }
        for name in posteriors if name != "chosen"
    }  # fmt: skip
    return found, gains


def shown_metrics(goal: Goal) -> tuple[str, ...]:
    """Return the metrics of every table; the cost only where it is the objective."""
    return (*SHOWN, "cost") if goal.costs is not None else SHOWN


def _confirmed(gains: Mapping[str, Interval], goal: Goal) -> bool:
    """Return whether the whole interval of the objective lies on the better side of zero, at no lower accuracy."""
    gain = gains[goal.objective]
    return min(shown_value(goal.objective, end) for end in (gain.low, gain.high)) > 0 and gains["accuracy"].value >= 0


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")
