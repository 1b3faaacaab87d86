r"""Two sets of rows side by side: how far a number or the classes have moved, and what confidence says of accuracy.

Letters: :math:`x` are values of new rows, :math:`r` those of the reference, one for each group.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from tdumpra.core.groups import lesion_numbers

Array = np.ndarray


class Moved(NamedTuple):
    """How a number differs between new rows and the reference."""

    mean: float
    reference: float  # mean
    chance_below: float  # that a new one lies below one of the reference, ties half; 0.5 where nothing moved
    p_value: float  # of Mann and Whitney's test


def mean_by_group(values: Float[Array, " n"], groups: Array) -> Float[Array, " g"]:
    """Return the mean of each group: images of one lesion are no independent witnesses."""
    member = lesion_numbers(groups, len(values))
    means: Array = np.bincount(member, weights=values) / np.bincount(member)
    return means


def moved(x: Float[Array, " n"], reference: Float[Array, " m"]) -> Moved:
    r"""Return the chance that a new value lies below one of the reference, :math:`P(x < r) + P(x = r) / 2`.

    The p-value is that of Mann and Whitney, by the normal law with a correction for ties; NaN where a side is empty.
    """
    if not len(x) or not len(reference):
        mean, before = (float(side.mean()) if len(side) else np.nan for side in (x, reference))
        return Moved(mean, before, np.nan, np.nan)
    from scipy.stats import mannwhitneyu  # takes half a second to import

    found = mannwhitneyu(reference, x, method="asymptotic")  # counts pairs in which the reference is larger
    p_value = 1.0 if np.isnan(found.pvalue) else float(found.pvalue)  # all values are one
    return Moved(float(x.mean()), float(reference.mean()), float(found.statistic / (len(x) * len(reference))), p_value)


def total_variation(counts: Int[Array, " c"], reference: Int[Array, " c"]) -> float:
    r"""Return the share of cases that another mix of classes moves, :math:`\frac12 \sum_c |p_c - q_c|`."""
    return float(np.abs(counts / counts.sum() - reference / reference.sum()).sum() / 2)


def same_shares_p(counts: Int[Array, " c"], reference: Int[Array, " c"]) -> float:
    """Return the p-value of the chi-squared test of equal shares; classes that neither side has are left out."""
    from scipy.stats import chi2_contingency

    table = np.stack([counts, reference])[:, (counts + reference) > 0]
    return float(chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0


def expected_accuracy(confidence: Float[Array, " n"], known: Float[Array, " m"], correct: Bool[Array, " m"]) -> float:
    """Estimate accuracy without labels, by average thresholded confidence (Garg et al., ICLR 2022).

    The threshold is the confidence below which as many of the ``known`` rows lie as are wrong among them; the estimate
    is the share of new rows above it.
    """
    wrong = int((~correct).sum())
    threshold = np.sort(known)[wrong] if wrong < len(known) else np.inf
    return float((confidence >= threshold).mean())


def outside(values: Float[Array, "n k"], reference: Float[Array, "m k"], *, inside: float = 0.99) -> Bool[Array, " n"]:
    """Return which rows lie farther from the reference than that share of its own rows, by Mahalanobis distance."""
    centre = reference.mean(0)
    covariance = np.atleast_2d(np.cov(reference, rowvar=False)) + 1e-8 * np.eye(reference.shape[1])
    whiten = np.linalg.inv(np.linalg.cholesky(covariance)).T
    near, far = (np.linalg.norm((rows - centre) @ whiten, axis=1) for rows in (reference, values))
    beyond: Array = far > np.quantile(near, inside)
    return beyond
