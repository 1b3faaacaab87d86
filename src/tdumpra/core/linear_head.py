r"""A linear classifier on pooled features, fitted by weighted likelihood with a penalty on its weights.

Symbols: ``x`` (n, f) features or their coordinates, ``y`` (n,) labels, ``w`` (n,) weights of the rows, :math:`W`
(C, f) and :math:`b` (C,) the head, :math:`\lambda` ``l2``. Everything is deterministic, and float64 but for products
with rows that come in less.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import eigh, qr
from scipy.optimize import minimize

Array = np.ndarray
MOST_DIRECTIONS = 256
ABSENT = 10.0  # nats by which a class without rows stands below all others: unlikely, and still a number
_LEAST_SHARE, _ROUNDING = 1e-12, 1e-13
_STEPS = 2  # of subspace iteration, from directions that are nearly right


class LinearHead(NamedTuple):
    """Weights and intercepts of each class."""

    weight: Float[Array, "c f"]
    bias: Float[Array, " c"]

    def logits(self, x: Float[Array, "n f"]) -> Float[Array, "n c"]:
        """Return unnormalised log-probabilities, in float64."""
        scores: Array = x.astype(np.float64) @ self.weight.astype(np.float64).T + self.bias
        return scores


class Directions(NamedTuple):
    """The principal directions of some rows, scaled so that these rows have a mean squared length of one."""

    mean: Float[Array, " f"]
    basis: Float[Array, "f r"]

    def coordinates(self, x: Float[Array, "n f"]) -> Float[Array, "n r"]:
        """Return rows in these directions, in float32 where they come in that or less."""
        kind = _precision(x)
        found: Array = (x.astype(kind) - self.mean.astype(kind)) @ self.basis.astype(kind)
        return found

    def on_features(self, head: LinearHead) -> LinearHead:
        """Return the head on features that says the same as ``head`` on coordinates."""
        weight = head.weight @ self.basis.T
        return LinearHead(weight, head.bias - weight @ self.mean)


class Moments(NamedTuple):
    """Number, sum and products of some rows. Those of two sets of rows add up to those of both."""

    n: int
    total: Float[Array, " f"]
    products: Float[Array, "f f"]

    @classmethod
    def of(cls, x: Float[Array, "n f"]) -> Moments:
        """Sum up rows."""
        rows = x.astype(np.float64)
        return cls(len(rows), rows.sum(0), rows.T @ rows)

    def plus(self, other: Moments, sign: int = 1) -> Moments:
        """Return the moments of both, or with ``sign`` -1 those of these rows without the others."""
        return Moments(self.n + sign * other.n, self.total + sign * other.total, self.products + sign * other.products)


def principal_directions(
    rows: Moments, most: int = MOST_DIRECTIONS, near: Float[Array, "f k"] | None = None
) -> Directions:
    """Return the directions of largest variance, ``most`` of them at most.

    A head in few directions costs a fraction of one on a thousand features, and the rest is what a penalty shrinks
    first. ``near`` are directions of rows that are mostly the same: from there a few steps lead to the answer.
    """
    mean = rows.total / rows.n
    products = rows.products - rows.n * np.outer(mean, mean)
    r = min(most, len(products))
    if near is None or near.shape[1] < r or r == len(products):
        variance, vectors = eigh(products, subset_by_index=[len(products) - r, len(products) - 1])
    else:
        variance, vectors = _refined(products, near)
    # below this a direction is rounding: of the largest variance, or of the sums that the mean was taken from
    least = max(float(variance[-1]) * _LEAST_SHARE, float(np.trace(rows.products)) * _ROUNDING)
    kept = np.flatnonzero(variance > least)[::-1][:r]
    variance, basis = variance[kept], vectors[:, kept]
    length = np.sqrt(variance.sum() / rows.n) if len(kept) else 1.0
    return Directions(mean, basis / length)


def _refined(products: Float[Array, "f f"], near: Float[Array, "f k"]) -> tuple[Array, Array]:
    """Return eigenvalues, rising, and eigenvectors in the space that subspace iteration reaches."""
    rough, basis = products.astype(np.float32), near.astype(np.float32)
    for _ in range(_STEPS):
        basis = qr(rough @ basis, mode="economic")[0]
    basis = qr(basis.astype(np.float64), mode="economic")[0]
    variance, vectors = eigh(basis.T @ (products @ basis))
    return variance, basis @ vectors


def _precision(x: Array) -> type[np.floating]:
    """Return float64 for such rows, and float32 for others: half the work, with rounding far below a penalty."""
    return np.float64 if x.dtype == np.float64 else np.float32


def fit_linear_head(
    x: Float[Array, "n f"],
    y: Int[Array, " n"],
    w: Float[Array, " n"],
    *,
    n_classes: int,
    l2: float,
    tolerance: float = 1e-7,
) -> LinearHead:
    r"""Fit multinomial logistic regression.

    .. math:: \min_{W, b} \; -\frac{1}{\sum_i w_i} \sum_i w_i \log \mathrm{softmax}(W x_i + b)_{y_i}
        + \frac{\lambda}{2} \lVert W \rVert^2

    The softmax's curvature is at most one half of the features' second moments (Böhning, 1992). Each coordinate is
    scaled by the square root of that bound, after which L-BFGS needs some twenty steps. A class without rows keeps the
    weights zero and an intercept below all others.
    """
    kind = _precision(x)
    rows, share = x.astype(np.float64), np.asarray(w, np.float64) / np.sum(w)
    scale = 1 / np.sqrt((share[:, None] * rows**2).sum(0) / 2 + l2)
    scaled, penalty = (rows * scale).astype(kind), l2 * scale**2
    present = np.unique(y)
    place, truth = np.searchsorted(present, y), np.arange(len(y))
    shape = (len(present), rows.shape[1] + 1)

    def loss(theta: Array) -> tuple[float, Array]:
        head = theta.reshape(shape)
        logits = scaled @ head[:, :-1].T.astype(kind) + head[:, -1]
        logits -= logits.max(1, keepdims=True)
        p = np.exp(logits)
        total = p.sum(1)
        value = float(share @ (np.log(total) - logits[truth, place]) + (penalty * head[:, :-1] ** 2).sum() / 2)
        p *= (share / total)[:, None]
        p[truth, place] -= share
        gradient = np.hstack([p.T.astype(kind) @ scaled + penalty * head[:, :-1], p.sum(0)[:, None]])
        return value, gradient.ravel()

    options = {"maxiter": 1000, "maxcor": 20, "ftol": tolerance, "gtol": 10 * tolerance}
    found = minimize(loss, np.zeros(np.prod(shape)), jac=True, method="L-BFGS-B", options=options).x.reshape(shape)
    weight, bias = np.zeros((n_classes, rows.shape[1])), np.full(n_classes, found[:, -1].min() - ABSENT)
    weight[present], bias[present] = found[:, :-1] * scale, found[:, -1]
    return LinearHead(weight, bias)
