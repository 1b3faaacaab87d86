"""The dose curve: what 50, 100, 200, … local lesions bring, so that a hospital knows how many cases to label.

Each size is drawn several times from the local lesions, each way is fitted on the draw with the dials that were chosen
on all of them, and the lesions that were not drawn are predicted. Intervals draw lesions again, and hold the mean over
the draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tdumpra.core.bootstrap import group_weights, percentile_interval
from tdumpra.core.groups import lesion_numbers
from tdumpra.models.adapt import LEVEL, Adaptation, Interval, figures_of, shown_metrics
from tdumpra.models.ways import Plan, Workbench

Array = np.ndarray
FIRST = 50  # lesions; each size is twice the one before
DRAWS = 3
_MOST_SHARE = 0.8  # of the lesions, so that enough are left to be predicted
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
    """Return the sizes that leave enough lesions to be predicted."""
    sizes, size = [], FIRST
    while size <= _MOST_SHARE * n_lesions:
        sizes.append(size)
        size *= 2
    return sizes


def dose_curve(bench: Workbench, adaptation: Adaptation) -> list[Dose]:
    """Return the curve; empty where there are too few lesions to draw 50 and leave some."""
    member = lesion_numbers(bench.local.kin, len(bench.local))
    rng = np.random.default_rng(_SEED)
    orders = [rng.permutation(int(member.max()) + 1) for _ in range(DRAWS)]
    return [_dose(bench, adaptation, member, orders, size) for size in sizes_of(int(member.max()) + 1)]


def _dose(bench: Workbench, adaptation: Adaptation, member: Array, orders: Sequence[Array], size: int) -> Dose:
    drawn = [np.isin(member, order[:size]) for order in orders]
    by_way = {way: _figures(bench, adaptation, member, drawn, plan) for way, plan in adaptation.choice.plans.items()}
    shown = shown_metrics(adaptation.goal)
    figures = {way: {metric: _interval(found[metric]) for metric in shown} for way, found in by_way.items()}
    gains = {
        way: {metric: _interval(found[metric] - by_way["keep"][metric]) for metric in shown}
        for way, found in by_way.items() if way != "keep"
    }  # fmt: skip
    return Dose(size, figures, gains)


def _figures(
    bench: Workbench, adaptation: Adaptation, member: Array, drawn: Sequence[Array], plan: Plan
) -> dict[str, Array]:
    """Return each figure's mean over the draws: on the rows as they are, then in each replicate."""
    parts = []
    for train in drawn:
        rest = np.flatnonzero(~train)
        of_weights = figures_of(bench.predict(train, plan, rest), bench.local.y[rest], adaptation.goal)
        pieces = [of_weights(np.ones((len(rest), 1)))]
        pieces += [of_weights(w[rest]) for w in group_weights(member, n_replicates=_REPLICATES, seed=_SEED)]
        parts.append({metric: np.concatenate([piece[metric] for piece in pieces]) for metric in pieces[0]})
    return {metric: np.mean([part[metric] for part in parts], axis=0) for metric in parts[0]}


def _interval(values: Array) -> Interval:
    return Interval(float(values[0]), *percentile_interval(values[1:], LEVEL))
