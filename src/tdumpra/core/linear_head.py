r"""A linear classifier on pooled features, fitted by weighted likelihood with a penalty on its weights.

Symbols: ``x`` (n, f) features or their coordinates, ``y`` (n,) labels, ``w`` (n,) weights of the rows, :math:`W`
(C, f) and :math:`b` (C,) the head, :math:`\lambda` ``l2``. Everything is float64 and deterministic.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import eigh
from scipy.optimize import minimize

Array = np.ndarray
MOST_DIRECTIONS = 256
ABSENT = 10.0  # nats by which a class without rows stands below all others: unlikely, and still a number
_LEAST_SHARE = 1e-12  # of the largest variance: below it a direction is rounding


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
        """Return rows in these directions."""
        found: Array = (x.astype(np.float64) - self.mean) @ self.basis
        return found

    def on_features(self, head: LinearHead) -> LinearHead:
        """Return the head on features that says the same as ``head`` on coordinates."""
        weight = head.weight @ self.basis.T
        return LinearHead(weight, head.bias - weight @ self.mean)


def principal_directions(x: Float[Array, "n f"], most: int = MOST_DIRECTIONS) -> Directions:
    """Return the directions of largest variance, ``most`` of them at most.

    A head in few directions costs a fraction of one on a thousand features, and the rest is what a penalty shrinks
    first. With fewer rows than features the small matrix of inner products between rows gives the same directions.
    """
    mean = x.astype(np.float64).mean(0)
    centred = x - mean
    n, f = centred.shape
    small = n < f
    products = centred @ centred.T if small else centred.T @ centred
    r = min(most, len(products))
    variance, vectors = eigh(products, subset_by_index=[len(products) - r, len(products) - 1])
    kept = np.flatnonzero(variance > max(float(variance[-1]), 0.0) * _LEAST_SHARE)[::-1]
    variance, vectors = variance[kept], vectors[:, kept]
    basis = centred.T @ vectors / np.sqrt(variance) if small else vectors
    length = np.sqrt(variance.sum() / n) if len(kept) else 1.0
    return Directions(mean, basis / length)


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
    rows, share = x.astype(np.float64), np.asarray(w, np.float64) / np.sum(w)
    scale = 1 / np.sqrt((share[:, None] * rows**2).sum(0) / 2 + l2)
    scaled, penalty = rows * scale, l2 * scale**2
    present = np.unique(y)
    place, truth = np.searchsorted(present, y), np.arange(len(y))
    shape = (len(present), rows.shape[1] + 1)

    def loss(theta: Array) -> tuple[float, Array]:
        head = theta.reshape(shape)
        logits = scaled @ head[:, :-1].T + head[:, -1]
        logits -= logits.max(1, keepdims=True)
        p = np.exp(logits)
        total = p.sum(1)
        value = float(share @ (np.log(total) - logits[truth, place]) + (penalty * head[:, :-1] ** 2).sum() / 2)
        p *= (share / total)[:, None]
        p[truth, place] -= share
        gradient = np.hstack([p.T @ scaled + penalty * head[:, :-1], p.sum(0)[:, None]])
        return value, gradient.ravel()

    options = {"maxiter": 1000, "maxcor": 20, "ftol": tolerance, "gtol": 10 * tolerance}
    found = minimize(loss, np.zeros(np.prod(shape)), jac=True, method="L-BFGS-B", options=options).x.reshape(shape)
    weight, bias = np.zeros((n_classes, rows.shape[1])), np.full(n_classes, found[:, -1].min() - ABSENT)
    weight[present], bias[present] = found[:, :-1] * scale, found[:, -1]
    return LinearHead(weight, bias)
