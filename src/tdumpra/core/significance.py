"""Tests of whether a difference could be chance. All are exact: no resampling, no seed."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import beta, binomtest


def mcnemar_exact(fixed: int, broken: int) -> float:
    """Return the two-sided p-value of McNemar's exact test of ``fixed`` against ``broken``; 1 where both are 0."""
    changed = fixed + broken
    return float(binomtest(fixed, changed, 0.5).pvalue) if changed else 1.0


def clopper_pearson_upper(events: int, trials: int, *, level: float = 0.95) -> float:
    """Return the one-sided upper confidence bound of a rate with ``events`` in ``trials``; 1 without trials."""
    return float(beta.ppf(level, events + 1, trials - events)) if events < trials else 1.0


def sign_flip_test(
    differences: Int[np.ndarray, " groups"], *, alternative: Literal["two-sided", "greater"] = "two-sided"
) -> float:
    r"""Return the p-value of the sign-flip test of whole-number differences, one for each independent group.

    Under the null hypothesis each group's difference (fixed minus broken predictions, summed over its images and
    seeds) is as likely negative as positive. The distribution of the sum over all :math:`2^G` flips is the product
    of the polynomials :math:`(x^{d} + x^{-d}) / 2`, which is multiplied out: the p-value is exact.
    """
    sizes = np.abs(differences[differences != 0]).astype(np.int64)
    total = int(sizes.sum())
    chance = np.zeros(2 * total + 1)  # chance[total + s] is the probability of the sum s
    chance[total] = 1.0
    for size in sizes:
        chance = (np.roll(chance, size) + np.roll(chance, -size)) / 2  # no mass ever reaches the wrapped ends
    observed = int(differences.sum())
    if alternative == "greater":
        return min(1.0, float(chance[total + observed :].sum()))
    sums = np.abs(np.arange(-total, total + 1))
    return min(1.0, float(chance[sums >= abs(observed)].sum()))


def holm(p_values: Float[np.ndarray, " m"], level: float) -> Bool[np.ndarray, " m"]:
    """Return which hypotheses Holm's method rejects: the chance of any false rejection is at most ``level``."""
    order = np.argsort(p_values, kind="stable")
    passes = p_values[order] <= level / np.arange(len(order), 0, -1)
    rejected = np.empty(len(order), dtype=bool)
    rejected[order] = np.logical_and.accumulate(passes)
    return rejected


def holm_adjusted(p_values: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """Return Holm's adjusted p-values: the lowest level at which Holm's method rejects each hypothesis."""
    order = np.argsort(p_values, kind="stable")
    stepped = np.maximum.accumulate(p_values[order] * np.arange(len(order), 0, -1))
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def fixed_sequence(p_values: Float[np.ndarray, " m"], level: float) -> Bool[np.ndarray, " m"]:
    """Return which hypotheses are rejected when tested in the given order, each at ``level``, until one is not.

    The order must be fixed beforehand; then the chance of one false rejection is at most ``level``.
    """
    rejected: np.ndarray = np.logical_and.accumulate(p_values <= level)
    return rejected
