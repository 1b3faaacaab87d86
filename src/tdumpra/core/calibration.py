r"""Calibrate a posterior on labelled data: by a temperature, a bias of each class, and division by the class prior.

Symbols: ``p`` probabilities, ``log_p`` their logarithm up to a constant per row, :math:`T` ``temperature``, :math:`b`
``bias``, :math:`\pi` ``prior``, :math:`t` ``exponent``.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tdumpra.core.metrics import SMALLEST_PROBABILITY, negative_log_likelihood
from tdumpra.core.rowwise import softmax_rows

TEMPERATURE_RANGE = (0.05, 20.0)  # a perfectly separated validation set must not sharpen to certainty


def apply_temperature(p: Float[Tensor, "n c"], temperature: float) -> Float[Tensor, "n c"]:
    r"""Scale by a temperature: :math:`p_T \propto p^{1/T}`. The most probable class of each row stays the same.

    ``T = 1`` returns ``p`` itself. Scaling cannot reorder classes, but rounding can make two of them equal, and then
    the label would become the first of them: the former label is lifted by one unit in the last place.
    """
    if temperature == 1:
        return p
    scaled = softmax_rows(p.log() / temperature)
    top, label = scaled.max(-1, keepdim=True)
    former = p.argmax(-1, keepdim=True)
    # The next number above a top probability, as ``nextafter`` gives it, which no exported graph has: what is added
    # lies between half a unit in the last place and a whole one, and rounds up to it.
    half = torch.finfo(p.dtype).eps / 2 * (1 + torch.finfo(p.dtype).eps)
    kept = torch.where(label == former, scaled.gather(-1, former), top + top * half)
    return scaled.scatter(-1, former, kept)


def fit_temperature(log_p: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> float:
    r"""Return the temperature under which the labels are most likely.

    .. math:: \min_T \mathrm{NLL}(\mathrm{softmax}(\log p / T))

    It fits the classifier (given ``log p``) and the similarity posterior (given its scores :math:`q_c`). The likelihood
    has one optimum in :math:`1/T`; a bounded search finds it.
    """
    from scipy.optimize import minimize_scalar  # takes most of a second to import, and only fitting needs it
    from scipy.special import softmax

    rows, y = log_p.double().cpu().numpy(), labels.cpu().numpy()

    def loss(log_temperature: float) -> float:
        return negative_log_likelihood(softmax(rows / math.exp(log_temperature), axis=1), y)

    low, high = (math.log(bound) for bound in TEMPERATURE_RANGE)
    return math.exp(minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-5}).x)


def apply_temperature_and_bias(
    p: Float[Tensor, "n c"], temperature: float, bias: tuple[float, ...]
) -> Float[Tensor, "n c"]:
    r"""Scale by a temperature, and raise or lower each class: :math:`p \propto p^{1/T} e^{b}`. It can change labels.

    Probabilities below the smallest that a log loss knows count as that, as in the fit. Without a bias it is
    :func:`apply_temperature`, which keeps labels.
    """
    if not bias:
        return apply_temperature(p, temperature)
    return softmax_rows(_bounded_log(p) / temperature + torch.tensor(bias, dtype=p.dtype, device=p.device))


def _bounded_log(p: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """Return logarithms that a bias can still move: a zero that came of rounding rules nothing out."""
    return p.clamp(min=SMALLEST_PROBABILITY).log()


def fit_temperature_and_bias(p: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> tuple[float, tuple[float, ...]]:
    r"""Return the temperature and the biases under which the labels are most likely.

    .. math:: \min_{T, b} \mathrm{NLL}(\mathrm{softmax}(\log p / T + b)) + \frac{1}{2n} \lVert b \rVert^2

    The penalty is that of a bias with a standard deviation of one nat before any row was seen. A class without a row
    keeps a bias of zero: nothing is known of it. :func:`apply_temperature_and_bias` takes the same logarithms.
    """
    from scipy.optimize import minimize

    rows = _bounded_log(p.double()).cpu().numpy()
    y = labels.cpu().numpy()
    n, n_classes = rows.shape
    each, seen = np.arange(n), np.bincount(y, minlength=n_classes) > 0

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        inverse, bias = math.exp(-theta[0]), theta[1:]
        scaled = rows * inverse
        logits = scaled + bias
        logits -= logits.max(1, keepdims=True)
        p = np.exp(logits)
        total = p.sum(1)
        value = float((np.log(total) - logits[each, y]).mean() + (bias**2).sum() / (2 * n))
        p /= total[:, None]
        p[each, y] -= 1
        gradient = np.append(-(p * scaled).sum() / n, seen * (p.mean(0) + bias / n))
        return value, gradient

    low, high = (math.log(bound) for bound in TEMPERATURE_RANGE)
    found = minimize(
        loss, np.zeros(n_classes + 1), jac=True, method="L-BFGS-B", bounds=[(low, high)] + [(None, None)] * n_classes,
        options={"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-8},
    ).x  # fmt: skip
    return math.exp(found[0]), tuple(found[1:].tolist())


def adjust_prior(p: Float[Tensor, "n c"], prior: Float[Tensor, " c"], exponent: float) -> Float[Tensor, "n c"]:
    r"""Divide by a power of the class prior (logit adjustment): :math:`p \propto p / \pi^t`. This can change labels."""
    if exponent == 0:
        return p
    return softmax_rows(p.log() - exponent * prior.to(p.dtype).log())


def class_prior(labels: Int[Tensor, " n"], n_classes: int) -> Float[Tensor, " c"]:
    """Return class shares of the training labels. An absent class counts as seen once, so that no share is zero."""
    counts = torch.bincount(labels, minlength=n_classes).clamp(min=1).double()
    return counts / counts.sum()
