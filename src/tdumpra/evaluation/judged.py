"""Everything that is told of one comparator. Its posterior is looked at once, and can be let go of afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from tdumpra.core import metrics, selective
from tdumpra.core.bootstrap import Draws, around_whole, bootstrap_metrics, point_name
from tdumpra.evaluation import breakdown
from tdumpra.evaluation.case import Scored
from tdumpra.evaluation.paired import Side
from tdumpra.evaluation.replicates import Posteriors, figures_of
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.tuning.goal import Score

Array = np.ndarray
Replicates = dict[str, Array]


class Judged(NamedTuple):
    """A comparator's part of each section of an evaluation."""

    scores: dict[str, float]
    replicates: Replicates  # empty without a bootstrap
    sections: dict[str, Any]  # by class, operating points, calibration, selective, and costs where they are known
    unsure: dict[str, float]  # the scores where the classifier is unsure
    subgroups: dict[str, dict[str, dict[str, float]]]
    side: Side | None  # where it is compared with others row by row
    on_validation: tuple[Score | None, ...]  # by case


class Draw(NamedTuple):
    """The draws of the test rows' groups, and of their lesions where rows without groups have names: for pairs."""

    groups: Draws | None  # None without a bootstrap
    lesions: Draws | None


def judge(
    scored: Scored,
    posteriors: Posteriors,
    settings: EvaluateConfig,
    draw: Draw,
    subgroups: Mapping[str, Mapping[str, Array]],
    *,
    paired: bool,
) -> Judged:
    """Score one comparator in every way that the settings ask for."""
    p, y, costs = posteriors.test, scored.y, scored.goal.costs
    scores = scores_of(p, scored)
    bare = breakdown.operating_points(p, y, settings, {})
    of_all = (
        None if draw.groups is None or draw.groups.rows is None else _of_all_rows(scored, p, scores, bare, settings)
    )
    replicates = replicates_of(scored, p, settings, draw.groups, of_all, paired=paired)
    below = _refer_below(scored, posteriors.validation, settings)
    sections = {
        "per_class": breakdown.by_class(p, y, settings.names(p.shape[1])),
        "operating_points": breakdown.operating_points(p, y, settings, replicates) if replicates else bare,
        "calibration": breakdown.calibration(p, y, scored.lesion),
        "selective": breakdown.selective_figures(p, y, scored.lesion, below, refer_risk=settings.refer_risk),
    }
    if costs is not None:
        sections["costs"] = breakdown.decision_costs(p, y, costs)
    side = None
    if paired:
        figures = of_all or _plain(figures_of(scored, p, settings, paired=True)(np.ones((len(y), 1))))
        drawn = replicates
        if draw.lesions is not draw.groups:
            drawn = replicates_of(scored, p, settings, draw.lesions, of_all, paired=True)
        side = Side(figures, drawn, p.argmax(1) == y)
    return Judged(
        scores=scores,
        replicates=replicates,
        sections=sections,
        unsure=breakdown.part(p, y, scored.unsure),
        subgroups={
            column: {value: breakdown.part(p, y, rows) for value, rows in values.items()}
            for column, values in subgroups.items()
        },
        side=side,
        on_validation=_on_validation(scored, posteriors.validation),
    )


def scores_of(p: Array, scored: Scored) -> dict[str, float]:
    """Return the metrics of every results table, and the mean cost where costs are known."""
    found, costs = metrics.classification_metrics(p, scored.y), scored.goal.costs
    if costs is not None:
        found["cost"] = float(metrics.cost_by_row(p.argmax(1), scored.y, costs).mean())
    return found


def replicates_of(
    scored: Scored,
    p: Array,
    settings: EvaluateConfig,
    draws: Draws | None,
    of_all: Mapping[str, float] | None = None,
    *,
    paired: bool = False,
) -> Replicates:
    """Return the replicates of all figures; none without a bootstrap. ``of_all`` are the figures, if known."""
    if draws is None:
        return {}
    if draws.rows is None:
        return bootstrap_metrics(figures_of(scored, p, settings, paired=paired), draws.weights())
    if of_all is None:
        of_all = _of_all_rows(
            scored, p, scores_of(p, scored), breakdown.operating_points(p, scored.y, settings, {}), settings
        )
    figures = figures_of(scored, p, settings, paired=paired, rows=draws.rows)
    of_part = figures(np.ones((len(draws.rows), 1)))
    return around_whole(bootstrap_metrics(figures, draws.weights()), of_part, of_all, draws.scale)


def _of_all_rows(
    scored: Scored, p: Array, scores: Mapping[str, float], points: Mapping[str, Any], settings: EvaluateConfig
) -> dict[str, float]:
    """Return what :func:`figures_of` gives where all rows count once, without the memory that it takes for that."""
    names, y = settings.names(p.shape[1]), scored.y
    right = p.argmax(1) == y
    return {
        **scores,
        **{
            point_name(c, each): points[names[c]][f"{each:g}"]["sensitivity"]
            for c in settings.chosen_classes(p.shape[1])
            for each in settings.specificities
        },
        "ambiguous_accuracy": float(metrics.ratio(right[scored.unsure].sum(), scored.unsure.sum())),
        "aurc": float(selective.weighted_areas(p.max(1), ~right, np.ones((len(y), 1)))[0]),
    }


def _plain(figures: Mapping[str, Array]) -> dict[str, float]:
    return {metric: float(values[0]) for metric, values in figures.items()}


def _refer_below(scored: Scored, held_out: tuple[Tensor | None, ...], settings: EvaluateConfig) -> Array | None:
    """Return for each test row the confidence below which its case refers, chosen on that case's validation rows."""
    thresholds = []
    for case, posterior in zip(scored.cases, held_out, strict=True):
        if case.validation is None or posterior is None:
            return None
        p, y = posterior.double().numpy(), case.validation.y.numpy()
        threshold = selective.refer_below(p.max(1), p.argmax(1) != y, risk=settings.refer_risk)
        thresholds.append(np.full(len(case.test), threshold))
    return np.concatenate(thresholds)


def _on_validation(scored: Scored, held_out: tuple[Tensor | None, ...]) -> tuple[Score | None, ...]:
    """Return the scores on each case's validation rows, by which champions are chosen."""
    return tuple(
        None if case.validation is None or p is None else scored.goal.score(p, case.validation.y)
        for case, p in zip(scored.cases, held_out, strict=True)
    )
