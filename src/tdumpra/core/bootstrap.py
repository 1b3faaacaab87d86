r"""Bootstrap over groups, all seven metrics and all replicates at once.

A replicate draws as many groups as there are, with replacement; a row then counts as often as its group was drawn.
Every metric is a function of a few weighted sums over rows, so the replicates are columns of one product of a sparse
matrix (which rows enter which sum) with the weights.

Symbols: ``p`` (n, C) probabilities, ``y`` (n,) labels, ``w`` (n, B) weights, one column per replicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array, vstack

from tdumpra.core import metrics
from tdumpra.core.metrics import ClassCounts

Array = np.ndarray
_CHUNK = 64  # replicates at once: the weights of some ten thousand rows stay in cache


def group_weights(member: Int[Array, " n"], *, n_replicates: int, seed: int) -> Iterator[Float[Array, "n b"]]:
    """Yield how often each row counts in each replicate, some replicates at a time; ``member`` numbers the groups."""
    rng, n_groups = np.random.default_rng(seed), int(member.max()) + 1
    for start in range(0, n_replicates, _CHUNK):
        size = min(_CHUNK, n_replicates - start)
        drawn = rng.integers(n_groups, size=(size, n_groups)) + n_groups * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * n_groups).reshape(size, n_groups)
        yield np.ascontiguousarray(counts.T, dtype=np.float64)[member]


@dataclass(frozen=True, slots=True, eq=False)
class MetricSums:
    """A posterior prepared for the bootstrap: a matrix whose product with weights gives every sum that metrics need."""

    sums: csr_array  # (rows of sums, n)
    areas: tuple[_Area, ...]
    n_classes: int
    means: tuple[str, ...]  # names of the rows after those of the seven metrics

    @classmethod
    def prepare(
        cls, p: Float[Array, "n c"], y: Int[Array, " n"], means: Mapping[str, Array] | None = None
    ) -> MetricSums:
        """Sort and bin once. ``means`` holds further values per row, of which the weighted means are returned."""
        n, n_classes = p.shape
        means, label = means or {}, p.argmax(1)
        confidence, correct = p.max(1), label == y
        bins = metrics.bin_numbers(confidence)
        squares = ((p - (y[:, None] == np.arange(n_classes))) ** 2).sum(1) / (2 if n_classes == 2 else 1)
        single = np.stack([metrics.log_loss_by_row(p, y), squares, *means.values()])
        sums = vstack(
            [
                _indicator(y, correct.astype(np.float64), n_classes),
                _indicator(y, np.ones(n), n_classes),
                _indicator(label, np.ones(n), n_classes),
                _indicator(bins, correct - confidence, metrics.N_BINS),
                csr_array(single),
            ],
            format="csr",
        )
        classes = (1,) if n_classes == 2 else range(n_classes)
        return cls(sums, tuple(_Area.prepare(p[:, c], y == c) for c in classes), n_classes, tuple(means))

    def metrics(self, w: Float[Array, "n b"]) -> dict[str, Float[Array, " b"]]:
        """Return the seven metrics of ``classification_metrics`` and the further means, for each column of weights."""
        total, c = w.sum(0), self.n_classes
        sums = self.sums @ w
        correct, support, predicted, gaps = np.split(sums[: 3 * c + metrics.N_BINS], [c, 2 * c, 3 * c])
        counts = ClassCounts(correct.T, support.T, predicted.T)
        areas = np.stack([area.under_curve(w) for area in self.areas], axis=-1)
        nll, brier, *means = sums[3 * c + metrics.N_BINS :] / total
        return {
            "accuracy": metrics.accuracy(counts),
            "macro_f1": metrics.macro_f1(counts),
            "balanced_accuracy": metrics.balanced_accuracy(counts),
            "macro_auroc": metrics.mean_of_defined(areas),
            # n_b/n |acc_b - conf_b| is |sum of (correct - confidence) over the bin| / n: an empty bin adds nothing
            "ece": np.abs(gaps).sum(0) / total,
            "nll": nll,
            "brier": brier,
            **dict(zip(self.means, means, strict=True)),
        }


@dataclass(frozen=True, slots=True, eq=False)
class _Area:
    """The ROC curve of a class: its levels are the scores of the members, negatives lie between or level with them."""

    negatives: csr_array  # (2 levels, n): below each level (and above the one before), then level with it
    positives: csr_array  # (levels, n)
    rest: csr_array  # (1, n) negatives above the highest level

    @classmethod
    def prepare(cls, score: Float[Array, " n"], member: Array) -> _Area:
        if 2 * member.sum() > len(member):  # the same area, seen from the smaller side: fewer levels
            score, member = -score, ~member
        levels = np.unique(score[member])
        place = np.searchsorted(levels, score, side="left")  # the first level not below the score
        level_with = np.zeros(len(score), dtype=bool)
        inside = place < len(levels)
        level_with[inside] = levels[place[inside]] == score[inside]
        weight = np.ones(len(score))
        below = _indicator(2 * place + level_with, weight, 2 * len(levels) + 1, where=~member)
        return cls(below[:-1], _indicator(place, weight, len(levels), where=member), below[-1:])

    def under_curve(self, w: Float[Array, "n b"]) -> Float[Array, " b"]:
        """Return the chance that a member outranks a non-member, ties counting half; NaN where either is missing."""
        between = self.negatives @ w
        level_with = between[1::2]
        reached = (between[::2] + level_with).cumsum(0)  # at or below each level
        members = self.positives @ w
        outranked = (members * (reached - level_with / 2)).sum(0)
        negatives = between.sum(0) + (self.rest @ w)[0]
        return metrics.ratio(outranked, members.sum(0) * negatives)


def bootstrap_metrics(
    figures: Mapping[str, Callable[[Array], dict[str, Array]]],
    member: Int[Array, " n"],
    *,
    n_replicates: int,
    seed: int,
) -> dict[str, dict[str, Float[Array, " replicates"]]]:
    """Return replicates of every posterior's figures: functions of weights such as :meth:`MetricSums.metrics`.

    All posteriors see the same replicates, so they can be paired.
    """
    parts: dict[str, list[dict[str, Array]]] = {name: [] for name in figures}
    for w in group_weights(member, n_replicates=n_replicates, seed=seed):
        for name, of_weights in figures.items():
            parts[name].append(of_weights(w))
    return {
        name: {metric: np.concatenate([part[metric] for part in chunks]) for metric in chunks[0]}
        for name, chunks in parts.items()
    }


def percentile_interval(replicates: Float[Array, " replicates"], level: float) -> tuple[float, float]:
    """Return the central interval of the replicates that are not NaN; NaN where all are."""
    defined = replicates[~np.isnan(replicates)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _indicator(
    place: Int[Array, " n"], value: Float[Array, " n"], size: int, *, where: Array | None = None
) -> csr_array:
    """Return a matrix (size, n) with the ``value`` of each row at its ``place``."""
    columns = np.arange(len(place)) if where is None else np.flatnonzero(where)
    return csr_array((value[columns], (place[columns], columns)), shape=(size, len(place)))
