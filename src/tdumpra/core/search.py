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


def orthant_sums(axes: tuple[Axis, ...], contributions: Float[Array, "n w"]) -> Float[Array, "*grid w"]:
    """Return, for each combination of thresholds, the summed contributions of the rows whose gate it opens."""
    shape = tuple(len(axis.values) for axis in axes)
    reachable = np.all([axis.first_open < len(axis.values) for axis in axes], axis=0)
    corner = np.ravel_multi_index(tuple(axis.first_open[reachable] for axis in axes), shape)
    at_corner = np.stack(
        [np.bincount(corner, weights=column, minlength=int(np.prod(shape))) for column in contributions[reachable].T],
        axis=-1,
    )
    sums = at_corner.reshape(*shape, contributions.shape[1]).astype(np.float64)  # no rows are counted in integers
    for dimension in range(len(shape)):
        sums = sums.cumsum(dimension)
    return sums


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
    rows = np.arange(len(y))
    was_right, is_right = before == y, after == y
    correct, predicted = np.zeros((2, len(y), n_classes))
    correct[rows, y] = is_right.astype(np.float64) - was_right
    np.add.at(predicted, (rows, after), 1.0)
    np.add.at(predicted, (rows, before), -1.0)
    counted = np.stack([np.ones(len(y)), is_right, after != before, is_right & ~was_right, loss_change], axis=1)
    sums = orthant_sums(axes, np.concatenate([correct, predicted, counted], axis=1))
    opened, right, flipped, fixed = (np.rint(sums[..., 2 * n_classes + i]).astype(np.int64) for i in range(4))
    return GridTally(
        correct=sums[..., :n_classes],
        predicted=sums[..., n_classes : 2 * n_classes],
        opened=opened,
        right=right,
        flipped=flipped,
        fixed=fixed,
        loss=sums[..., -1],
    )
