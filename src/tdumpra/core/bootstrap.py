r"""Bootstrap over groups, all seven metrics and all replicates at once.

A replicate draws as many groups as there are, with replacement; a row then counts as often as its group was drawn.
Every metric is a function of a few weighted sums over rows, so the replicates are columns of one product of a sparse
matrix (which rows enter which sum) with the weights.

Symbols: ``p`` (n, C) probabilities, ``y`` (n,) labels, ``w`` (n, B) weights, one column per replicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Integer
from scipy.sparse import csr_array, vstack

from tdumpra.core import metrics
from tdumpra.core.groups import drawn_rows
from tdumpra.core.metrics import ClassCounts

Array = np.ndarray
BOOTSTRAPPED_ROWS = 50_000  # of more, a part is drawn again
MOST_CURVES = 50  # classes whose ROC curves are followed from replicate to replicate; of more, to first order
_UNBOUNDED = frozenset({"nll", "brier", "cost"})  # all other figures lie between 0 and 1
_CHUNK = 64  # replicates at once: the weights of some ten thousand rows stay in cache


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    r"""How often each group is drawn in each replicate: made once, and the same for every posterior.

    Of many rows, the replicates are those of a part of the groups, m of n drawn at random. A replicate of a part strays
    further from the part's own figure than one of all rows would from theirs, by :math:`\sqrt{n/m}` (Bickel, Götze and
    van Zwet, 1997); ``scale`` is the reciprocal.
    """

    rows: Int[Array, " m"] | None  # the rows that replicates are made of; None: all
    member: Int[Array, " m"]  # the number of each row's group, among those that are drawn from
    times: tuple[Integer[Array, "_ groups"], ...]  # some replicates after the other
    scale: float = 1.0

    @classmethod
    def make(cls, member: Int[Array, " n"], *, n_replicates: int, seed: int) -> Draws:
        """Draw groups, which ``member`` numbers; of groups with very many rows, those of a part."""
        rows, scale = None, 1.0
        if len(member) > BOOTSTRAPPED_ROWS:
            rows = np.flatnonzero(drawn_rows(member, BOOTSTRAPPED_ROWS))
            n_groups, member = int(member.max()) + 1, np.unique(member[rows], return_inverse=True)[1]
            scale = float(np.sqrt((int(member.max()) + 1) / n_groups))
        times = (counts.astype(np.min_scalar_type(counts.max())) for counts in _times(member, n_replicates, seed))
        return cls(rows, member, tuple(times), scale)

    def weights(self) -> Iterator[Float[Array, "m b"]]:
        """Yield how often each row counts in each replicate, some replicates at a time."""
        for counts in self.times:
            yield np.ascontiguousarray(counts.T, dtype=np.float64)[self.member]


def group_weights(member: Int[Array, " n"], *, n_replicates: int, seed: int) -> Iterator[Float[Array, "n b"]]:
    """Yield how often each row counts in each replicate, some replicates at a time; ``member`` numbers the groups."""
    for counts in _times(member, n_replicates, seed):
        yield np.ascontiguousarray(counts.T, dtype=np.float64)[member]


def _times(member: Int[Array, " n"], n_replicates: int, seed: int) -> Iterator[Int[Array, "b groups"]]:
    """Yield how often each group is drawn, some replicates at a time."""
    rng, n_groups = np.random.default_rng(seed), int(member.max()) + 1
    for start in range(0, n_replicates, _CHUNK):
        size = min(_CHUNK, n_replicates - start)
        drawn = rng.integers(n_groups, size=(size, n_groups)) + n_groups * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * n_groups).reshape(size, n_groups)


def drawn_groups(member: Int[Array, " n"], rng: np.random.Generator) -> Int[Array, " n"]:
    """Return how often each row counts in one replicate."""
    n_groups = int(member.max()) + 1
    times: Array = np.bincount(rng.integers(n_groups, size=n_groups), minlength=n_groups)[member]
    return times


def over_drawn_seeds(replicates: Float[Array, "s b"], *, seed: int) -> Float[Array, " b"]:
    """Return the mean over seeds of each replicate, in which the seeds are drawn with replacement too.

    Replicate by replicate all seeds see the same groups. Every call with the same shape draws the same seeds, so that
    figures can be paired.
    """
    n_seeds, n_replicates = replicates.shape
    drawn = np.random.default_rng([seed, n_seeds]).integers(n_seeds, size=(n_seeds, n_replicates))
    means: Array = np.take_along_axis(replicates, drawn, axis=0).mean(0)
    return means


@dataclass(frozen=True, slots=True, eq=False)
class MetricSums:
    """A posterior prepared for the bootstrap: a matrix whose product with weights gives every sum that metrics need."""

    sums: csr_array  # (rows of sums, n)
    curves: Mapping[int, _Curve]  # of the classes whose area or operating points are wanted
    n_classes: int
    means: tuple[str, ...]  # names of the rows after those of the seven metrics
    points: Mapping[int, tuple[float, ...]]  # specificities at which a class's sensitivity is wanted
    auroc: tuple[float, Float[Array, " n"]] | None = None  # of many classes: the mean area, and each row's influence

    @classmethod
    def prepare(
        cls,
        p: Float[Array, "n c"],
        y: Int[Array, " n"],
        means: Mapping[str, Array] | None = None,
        points: Mapping[int, tuple[float, ...]] | None = None,
    ) -> MetricSums:
        """Sort and bin once.

        ``means`` holds further values per row, of which the weighted means are returned; ``points`` the specificities
        at which the sensitivity of a class is returned, under the name that :func:`point_name` gives.
        """
        n, n_classes = p.shape
        means, label = means or {}, p.argmax(1)
        confidence, correct = p.max(1), label == y
        bins = metrics.bin_numbers(confidence)
        single = np.stack([metrics.log_loss_by_row(p, y), metrics.squared_error_by_row(p, y), *means.values()])
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
        points = points or {}
        averaged, auroc = _averaged(n_classes), None
        if n_classes > MOST_CURVES:
            averaged, auroc = (), (metrics.macro_auroc(p, y), metrics.auroc_influence(p, y))
        curves = {c: _Curve.prepare(p[:, c], y == c) for c in sorted({*averaged, *points})}
        return cls(sums, curves, n_classes, tuple(means), points, auroc)

    def metrics(self, w: Float[Array, "n b"]) -> dict[str, Float[Array, " b"]]:
        """Return the seven metrics of ``classification_metrics`` and the further means, for each column of weights."""
        total, c = w.sum(0), self.n_classes
        sums = self.sums @ w
        correct, support, predicted, gaps = np.split(sums[: 3 * c + metrics.N_BINS], [c, 2 * c, 3 * c])
        counts = ClassCounts(correct.T, support.T, predicted.T)
        found = {c: curve.figures(w, self.points.get(c, ())) for c, curve in self.curves.items()}
        if self.auroc is None:
            area = metrics.mean_of_defined(np.stack([found[c][0] for c in _averaged(c)], axis=-1))
        else:
            mean, influence = self.auroc
            area = np.clip(mean + influence @ w, 0, 1)
        nll, brier, *means = sums[3 * c + metrics.N_BINS :] / total
        return {
            "accuracy": metrics.accuracy(counts),
            "macro_f1": metrics.macro_f1(counts),
            "balanced_accuracy": metrics.balanced_accuracy(counts),
            "macro_auroc": area,
            # n_b/n |acc_b - conf_b| is |sum of (correct - confidence) over the bin| / n: an empty bin adds nothing
            "ece": np.abs(gaps).sum(0) / total,
            "nll": nll,
            "brier": brier,
            **dict(zip(self.means, means, strict=True)),
            **{
                point_name(number, specificity): sensitivity
                for number, specificities in self.points.items()
                for specificity, sensitivity in zip(specificities, found[number][1], strict=True)
            },
        }


def point_name(number: int, specificity: float) -> str:
    """Return the name of a class's sensitivity at a specificity among the figures of :class:`MetricSums`."""
    return f"sensitivity of {number} at {specificity:g}"


def _averaged(n_classes: int) -> tuple[int, ...]:
    """Return the classes whose areas are averaged: of two, the second."""
    return (1,) if n_classes == 2 else tuple(range(n_classes))


@dataclass(frozen=True, slots=True, eq=False)
class _Curve:
    """The ROC curve of a class: its levels are the scores of the members, negatives lie between or level with them."""

    negatives: csr_array  # (2 levels, n): below each level (and above the one before), then level with it
    positives: csr_array  # (levels, n)
    rest: csr_array  # (1, n) negatives above the highest level
    turned: bool  # members are in truth those of the other classes, and scores have their sign turned

    @classmethod
    def prepare(cls, score: Float[Array, " n"], member: Array) -> _Curve:
        turned = bool(2 * member.sum() > len(member))
        if turned:  # the same area, seen from the smaller side: fewer levels
            score, member = -score, ~member
        levels = np.unique(score[member])
        place = np.searchsorted(levels, score, side="left")  # the first level not below the score
        level_with = np.zeros(len(score), dtype=bool)
        inside = place < len(levels)
        level_with[inside] = levels[place[inside]] == score[inside]
        weight = np.ones(len(score))
        below = _indicator(2 * place + level_with, weight, 2 * len(levels) + 1, where=~member)
        return cls(below[:-1], _indicator(place, weight, len(levels), where=member), below[-1:], turned)

    def figures(
        self, w: Float[Array, "n b"], specificities: Sequence[float] = ()
    ) -> tuple[Float[Array, " b"], list[Float[Array, " b"]]]:
        """Return the chance that a member outranks a non-member, ties half, and the sensitivity at each specificity.

        NaN where members or others are missing. A row is called where its score is at least the threshold; thresholds
        between two members' scores call the same members, so that the members' own scores suffice.
        """
        between = self.negatives @ w
        level_with = between[1::2]
        reached = (between[::2] + level_with).cumsum(0)  # at or below each level
        members = self.positives @ w
        outranked = (members * (reached - level_with / 2)).sum(0)
        negatives = between.sum(0) + (self.rest @ w)[0]
        area = metrics.ratio(outranked, members.sum(0) * negatives)
        if not specificities:
            return area, []
        return area, self._sensitivities(reached - level_with, members, negatives, specificities)

    def _sensitivities(
        self, below: Array, members: Array, negatives: Array, specificities: Sequence[float]
    ) -> list[Float[Array, " b"]]:
        """Return the sensitivity at each specificity; ``below`` weighs the negatives strictly below each level."""
        total = members.sum(0)
        if not self.turned:
            reached = metrics.ratio(below, negatives)
            found = [metrics.ratio((members * (reached >= each)).sum(0), total) for each in specificities]
            return [np.where(negatives > 0, each, np.nan) for each in found]
        # From the other side: as many of the lowest levels are called as the specificity leaves room for, and with
        # them all rows of the class that lie strictly below the first level that is not.
        left = metrics.ratio(total - members.cumsum(0), total)
        everyone = np.vstack([below, negatives])
        called = [np.take_along_axis(everyone, (left >= each).sum(0)[None], axis=0)[0] for each in specificities]
        return [np.where(total > 0, metrics.ratio(each, negatives), np.nan) for each in called]


def bootstrap_metrics(
    figures: Callable[[Array], dict[str, Array]], weights: Iterable[Float[Array, "n b"]]
) -> dict[str, Float[Array, " replicates"]]:
    """Return the replicates of figures: of functions of the rows' weights, such as :meth:`MetricSums.metrics`."""
    parts = [figures(w) for w in weights]
    return {metric: np.concatenate([part[metric] for part in parts]) for metric in parts[0]}


def around_whole(
    replicates: Mapping[str, Array], of_part: Mapping[str, Array], of_all: Mapping[str, float], scale: float
) -> dict[str, Float[Array, " replicates"]]:
    """Return replicates of a part of the rows as replicates of all rows, around the figures ``of_all``."""
    found = {}
    for metric, values in replicates.items():
        moved = of_all[metric] + scale * (values - of_part[metric])
        found[metric] = moved if metric in _UNBOUNDED else np.clip(moved, 0, 1)
    return found


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
