"""The dose curve: what 50, 100, 200, … local lesions bring, so that a hospital knows how many cases to label.

Each fold of the local lesions is predicted by ways that were fitted on so many lesions of the other folds, with the
dials that were chosen without it: no row has a say in what is applied to it, as in the estimate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tdumpra.core.bootstrap import bootstrap_metrics, group_weights, percentile_interval
from tdumpra.core.groups import lesion_numbers
from tdumpra.models.adapt import FOLDS, LEVEL, Adaptation, Interval, figures_of, shown_metrics
from tdumpra.models.ways import Workbench

Array = np.ndarray
FIRST = 50  # lesions; each size is twice the one before
_MOST_SHARE = (FOLDS - 1) / FOLDS  # of the lesions: one fold is left to be predicted
_REPLICATES = 300
_SEED = 1


class Dose(NamedTuple):
    """What each way reaches with so many local lesions: its figures, and its lead over the model as it is."""

    lesions: int
    figures: dict[str, dict[str, Interval]]
    gains: dict[str, dict[str, Interval]]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "lesions": self.lesions,
            **{
                name: {way: {m: each._asdict() for m, each in of_way.items()} for way, of_way in table.items()}
                for name, table in (("figures", self.figures), ("gains", self.gains))
            },
        }


def sizes_of(n_lesions: int) -> list[int]:
    """Return the sizes that leave a fold to be predicted."""
    sizes, size = [], FIRST
    while size <= _MOST_SHARE * n_lesions:
        sizes.append(size)
        size *= 2
    return sizes


def dose_curve(bench: Workbench, adaptation: Adaptation) -> list[Dose]:
    """Return the curve; empty where there are too few lesions to draw 50 and leave a fold."""
    member = lesion_numbers(bench.local.kin, len(bench.local))
    n_lesions = int(member.max()) + 1
    order = np.random.default_rng(_SEED).permutation(n_lesions)
    return [
        _dose(bench, adaptation, member, out_of_fold(bench, adaptation, member, order, size), size)
        for size in sizes_of(n_lesions)
    ]


def out_of_fold(bench: Workbench, adaptation: Adaptation, member: Array, order: Array, size: int) -> dict[str, Array]:
    """Return each way's posterior of all rows: of each fold from the first ``size`` lesions of the other folds."""
    posteriors: dict[str, Array] = {}
    for left_out, choice in enumerate(adaptation.by_fold):
        inside = adaptation.fold == left_out
        others = order[~np.isin(order, member[inside])]
        train, rows = np.isin(member, others[:size]), np.flatnonzero(inside)
        for way, plan in choice.plans.items():
            p = bench.predict(train, plan, rows)
            posteriors.setdefault(way, np.empty((len(member), p.shape[1])))[rows] = p
    return posteriors


def _dose(bench: Workbench, adaptation: Adaptation, member: Array, posteriors: dict[str, Array], size: int) -> Dose:
    by_way = {}
    for way, p in posteriors.items():
        of_weights = figures_of(p, bench.local.y, adaptation.goal)
        once = of_weights(np.ones((len(member), 1)))
        again = bootstrap_metrics(of_weights, group_weights(member, n_replicates=_REPLICATES, seed=_SEED))
        by_way[way] = {metric: np.concatenate([once[metric], again[metric]]) for metric in once}
    shown = shown_metrics(adaptation.goal)
    figures = {way: {metric: _interval(found[metric]) for metric in shown} for way, found in by_way.items()}
    gains = {
        way: {metric: _interval(found[metric] - by_way["keep"][metric]) for metric in shown}
        for way, found in by_way.items() if way != "keep"
    }  # fmt: skip
    return Dose(size, figures, gains)


def _interval(values: Array) -> Interval:
    return Interval(float(values[0]), *percentile_interval(values[1:], LEVEL))
