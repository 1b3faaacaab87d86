"""Brushes for lesions and skin, on the square [-1, 1]².

A brush draws the same random numbers at every resolution, so a lesion keeps its shape when the picture grows. All of
it is float64: in float32 another processor's last bit would change a pixel in every other picture.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float64]  # (size, size), rows are y

_SPLINE_VARIANCE = 151 / 315  # mean over a cell of the sum of squared cubic B-spline weights
_ONE_THREAD = 2**18  # multiplications up to which OpenBLAS stays on the calling thread
_NEGLIGIBLE = -30.0  # log of what a bump has faded to; beyond it lie the denormal numbers, which are slow to multiply


@lru_cache(maxsize=16)
def axis(size: int) -> NDArray[np.float64]:
    """Return the pixel centres along one side."""
    return np.asarray((np.arange(size) + 0.5) * (2 / size) - 1, dtype=np.float64)


def smooth_noise(rng: np.random.Generator, cells: int, size: int) -> Field:
    """Draw Gaussian noise of unit variance whose bumps are about ``2 / cells`` wide."""
    weights = _spline_weights(cells, size)
    knots = rng.standard_normal((cells + 3, cells + 3))
    return _product(weights @ knots, weights.T / _SPLINE_VARIANCE)


@lru_cache(maxsize=64)
def _spline_weights(cells: int, size: int) -> NDArray[np.float64]:
    """Return the uniform cubic B-spline basis: (size, cells + 3), rows sum to one."""
    position = (axis(size) + 1) / 2 * cells
    cell = np.minimum(position.astype(int), cells - 1)
    t = position - cell
    basis = np.stack([(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], axis=1) / 6
    weights = np.zeros((size, cells + 3))
    np.put_along_axis(weights, cell[:, None] + np.arange(4), basis, axis=1)
    return weights


def blobs(x: Field, y: Field, radius: Field, height: Field, size: int) -> Field:
    """Sum round Gaussian bumps; each is a product of two profiles, so all of them are one matrix product."""
    offset = (axis(size) - np.stack([x, y])[..., None]) / radius[:, None]  # (2, blobs, size)
    across, down = np.exp(np.maximum(-0.5 * offset * offset, _NEGLIGIBLE))
    return _product((down * height[:, None]).T, across)


def _product(left: Field, right: Field) -> Field:
    """Return ``left @ right`` in slices too small for BLAS to use threads, which fight over busy cores."""
    rows = max(1, _ONE_THREAD // right.size)
    product = np.empty((len(left), right.shape[1]))
    for start in range(0, len(left), rows):
        np.matmul(left[start : start + rows], right, out=product[start : start + rows])
    return product


def scatter(
    rng: np.random.Generator, count: int, radius: tuple[float, float], size: int, *, within: float = 1.0
) -> Field:
    """Scatter ``count`` bumps of various sizes and heights up to about one evenly over a disc."""
    distance = within * np.sqrt(rng.random(count))
    angle = rng.uniform(0, 2 * np.pi, count)
    heights = rng.uniform(0.6, 1.0, count)
    return blobs(distance * np.cos(angle), distance * np.sin(angle), rng.uniform(*radius, count), heights, size)


def step(values: Field, low: float, high: float) -> Field:
    """Return a smooth step from 0 at ``low`` to 1 at ``high``."""
    t = np.clip((values - low) / (high - low), 0, 1)
    return np.asarray(t * t * (3 - 2 * t))


def honeycomb(x: Field, y: Field, period: float) -> Field:
    """Sum three plane waves at 60° to each other, with two cosines: 1 in the holes, 0 on the mesh."""
    k = np.pi / period
    c = np.cos(k * x)
    return np.asarray((2 * c * c + 2 * c * np.cos(np.sqrt(3) * k * y) + 0.5) / 4.5)


def branching_curves(rng: np.random.Generator, trunks: int) -> tuple[Field, Field, Field]:
    """Return points (x, y, relative width) along wandering lines that fork twice, as vessels do."""
    stride = 0.024  # about two radii of the thinnest vessel, so that the points run together
    x0, y0 = rng.uniform(-0.35, 0.35, (2, trunks))
    heading = rng.uniform(0, 2 * np.pi, trunks)
    parts = []
    for width, length in ((1.0, 34), (0.62, 20), (0.38, 12)):
        headings = heading[:, None] + np.cumsum(rng.normal(0, 0.24, (len(heading), length)), axis=1)
        x = x0[:, None] + stride * np.cumsum(np.cos(headings), axis=1)
        y = y0[:, None] + stride * np.cumsum(np.sin(headings), axis=1)
        taper = np.broadcast_to(width * np.linspace(1, 0.5, length), x.shape)
        parts.append(np.stack([x, y, taper]).reshape(3, -1))
        fork = rng.integers(length // 4, length, (len(heading), 2))
        turn = rng.choice([-1.0, 1.0], fork.shape) * rng.uniform(0.4, 1.1, fork.shape)
        x0, y0 = (np.take_along_axis(a, fork, axis=1).ravel() for a in (x, y))
        heading = (np.take_along_axis(headings, fork, axis=1) + turn).ravel()
    x, y, width = np.concatenate(parts, axis=1)
    return x, y, width
