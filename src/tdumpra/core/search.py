r"""Every combination of thresholds at once.

A row's gate is open for exactly those combinations whose every threshold is loose enough for it: an orthant of the
grid. What the row contributes (a prediction fixed in its class, one broken, one opening) is therefore added once, at
the corner of its orthant, and running sums along each axis carry it to all the others. A grid of a hundred thousand
combinations costs little more than a single one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

Array = np.ndarray


class Axis(NamedTuple):
    """One threshold's candidates from strict to loose, and the first of them that is loose enough for each row."""

    values: Float[Array, " size"]
    first_open: Int[Array, " n"]  # equal to the number of values where none is


def below(signal: Float[Array, " n"], candidates: tuple[float, ...]) -> Axis:
    """The clause ``signal < threshold``: the smallest threshold is the strictest."""
    values = np.sort(np.asarray(candidates, dtype=signal.dtype))  # compared in the signal's own precision
    return Axis(values, np.searchsorted(values, signal, side="right"))


def above(signal: Float[Array, " n"], candidates: tuple[float, ...]) -> Axis:
    """The clause ``signal > threshold``: the largest threshold is the strictest."""
    values = np.sort(np.asarray(candidates, dtype=signal.dtype))
    return Axis(values[::-1], len(values) - np.searchsorted(values, signal, side="left"))


def orthant_sums(axes: tuple[Axis, ...], contributions: Float[Array, "n w"]) -> Float[Array, "*grid w"]:
    """For each combination of thresholds, the sum of the contributions of the rows that it lets through."""
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
