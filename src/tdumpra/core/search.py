r"""Score every combination of thresholds at once.

A row's gate is open for exactly those combinations in which every threshold is loose enough: an orthant of the grid.
The row's contribution (a prediction fixed, one broken, one opening) is therefore added once, at the corner of its
orthant, and cumulative sums along each axis carry it to all other combinations. A grid of a hundred thousand
combinations costs little more than a single one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

Array = np.ndarray


class Axis(NamedTuple):
    """The candidates of a threshold from strict to loose, and for each row the first that is loose enough."""

    values: Float[Array, " size"]
    first_open: Int[Array, " n"]  # equal to the number of values where none is


def below(signal: Float[Array, " n"], candidates: tuple[float, ...]) -> Axis:
    """Return the axis of the clause ``signal < threshold``: the smallest threshold is the strictest."""
    values = np.sort(np.asarray(candidates, dtype=signal.dtype))  # compared in the signal's own precision
    return Axis(values, np.searchsorted(values, signal, side="right"))


def above(signal: Float[Array, " n"], candidates: tuple[float, ...]) -> Axis:
    """Return the axis of the clause ``signal > threshold``: the largest threshold is the strictest."""
    values = np.sort(np.asarray(candidates, dtype=signal.dtype))
    return Axis(values[::-1], len(values) - np.searchsorted(values, signal, side="left"))


class Corners(NamedTuple):
    """The corner of each row's orthant in a grid, of the rows that some combination opens."""

    shape: tuple[int, ...]
    reachable: Bool[Array, " n"]
    corner: Int[Array, " reachable"]

    @classmethod
    def of(cls, axes: tuple[Axis, ...]) -> Corners:
        """Find the corners."""
        shape = tuple(len(axis.values) for axis in axes)
        reachable = np.all([axis.first_open < len(axis.values) for axis in axes], axis=0)
        return cls(shape, reachable, np.ravel_multi_index(tuple(axis.first_open[reachable] for axis in axes), shape))

    def sums(self, value: Float[Array, " n"], column: Int[Array, " n"], n_columns: int) -> Float[Array, "*grid w"]:
        """Return, for each combination, the summed values of the rows that it opens, each in the row's ``column``."""
        place = self.corner * n_columns + column[self.reachable]
        size = int(np.prod(self.shape)) * n_columns
        at_corner = np.bincount(place, weights=value[self.reachable], minlength=size)
        sums = at_corner.reshape(*self.shape, n_columns).astype(np.float64)  # no rows are counted in integers
        for dimension in range(len(self.shape)):
            np.cumsum(sums, axis=dimension, out=sums)
        return sums


def orthant_sums(axes: tuple[Axis, ...], contributions: Float[Array, "n w"]) -> Float[Array, "*grid w"]:
    """Return, for each combination of thresholds, the summed contributions of the rows whose gate it opens."""
    corners, only = Corners.of(axes), np.zeros(len(contributions), dtype=np.int64)
    return np.concatenate([corners.sums(column, only, 1) for column in contributions.T], axis=-1)


class GridTally(NamedTuple):
    """The changes that each combination of thresholds makes, compared with a gate that is shut."""

    correct: Float[Array, "*grid c"]  # rows of each class that are predicted as it: gained minus lost
    predicted: Float[Array, "*grid c"]  # rows predicted as each class: gained minus lost
    opened: Int[Array, "*grid"]
    right: Int[Array, "*grid"]  # open rows whose final label is right
    flipped: Int[Array, "*grid"]  # rows whose label changed
    fixed: Int[Array, "*grid"]  # rows that were wrong and became right
    loss: Float[Array, "*grid"]  # change of the summed row losses

    @property
    def broken(self) -> Int[Array, "*grid"]:
        """Rows that were right and became wrong."""
        lost: Array = self.fixed - np.rint(self.correct.sum(-1)).astype(np.int64)
        return lost


def tally(
    axes: tuple[Axis, ...],
    before: Int[Array, " n"],
    after: Int[Array, " n"],
    y: Int[Array, " n"],
    loss_change: Float[Array, " n"],
    *,
    n_classes: int,
    may_open: Bool[Array, " n"] | None = None,
) -> GridTally:
    """Count, for each combination, how opening the gate changes labels and losses.

    ``before`` and ``after`` are each row's labels with its gate shut and open. Rows that ``may_open`` leaves out stay
    shut under every combination.
    """
    if may_open is not None:
        axes = tuple(Axis(axis.values, axis.first_open[may_open]) for axis in axes)
        before, after, y, loss_change = (column[may_open] for column in (before, after, y, loss_change))
    was_right, is_right = before == y, after == y
    by_class, ones = Corners.of(axes), np.ones(len(y))
    counted = np.stack([ones, is_right, after != before, is_right & ~was_right, loss_change], axis=1)
    sums = orthant_sums(axes, counted)
    opened, right, flipped, fixed = (np.rint(sums[..., i]).astype(np.int64) for i in range(4))
    return GridTally(
        correct=by_class.sums(is_right.astype(np.float64) - was_right, y, n_classes),
        predicted=by_class.sums(ones, after, n_classes) - by_class.sums(ones, before, n_classes),
        opened=opened,
        right=right,
        flipped=flipped,
        fixed=fixed,
        loss=sums[..., -1],
    )
