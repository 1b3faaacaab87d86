r"""Selective prediction: risk against coverage, and the threshold below which cases go to a human.

Symbols: ``confidence`` (n,) larger is surer; ``wrong`` (n,) whether the answer is wrong; coverage is the share of rows
that are answered, surest first; risk is the share of wrong answers among them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import digamma

from tdumpra.core.metrics import ratio

Array = np.ndarray
_WEIGHTS = 2**20  # of rows in replicates, in memory at once


class RiskCoverage(NamedTuple):
    """Risk after answering the surest 1, 2, …, n rows."""

    coverage: Float[Array, " n"]
    risk: Float[Array, " n"]


def risk_coverage(confidence: Float[Array, " n"], wrong: Bool[Array, " n"]) -> RiskCoverage:
    """Return the whole curve. Rows of equal confidence have no order: each counts with their mean error."""
    _, level, rows = np.unique(-confidence, return_inverse=True, return_counts=True)  # surest first
    mean_error = np.bincount(level, weights=wrong) / rows
    answered = np.arange(1, len(wrong) + 1)
    return RiskCoverage(answered / len(wrong), np.repeat(mean_error, rows).cumsum() / answered)


def area_under_risk_coverage(confidence: Float[Array, " n"], wrong: Bool[Array, " n"]) -> float:
    """Return the AURC, the mean risk over all coverages. Smaller is better; a random order gives the error rate."""
    return float(risk_coverage(confidence, wrong).risk.mean())


def weighted_areas(
    confidence: Float[Array, " n"], wrong: Bool[Array, " n"], w: Float[Array, "n b"]
) -> Float[Array, " b"]:
    r"""Return the AURC of each column of weights: a row counts as often as its weight. Ties keep the rows' order.

    After :math:`a` answers of which :math:`e` are wrong, :math:`k` copies of a right row meet the risks
    :math:`e/(a+1), …, e/(a+k)`; those of a wrong one, in the same way, one minus such terms of :math:`a-e`. Sums of
    reciprocals are differences of the digamma function.
    """
    order = np.argsort(-confidence, kind="stable")
    together = max(1, _WEIGHTS // max(1, len(order)))
    starts = range(0, w.shape[1], together)
    return np.concatenate([_areas(w[order, start : start + together], wrong[order, None]) for start in starts])


def _areas(counted: Float[Array, "n b"], failed: Bool[Array, "n 1"]) -> Float[Array, " b"]:
    """Return the areas of rows that are in order, surest first."""
    answered = counted.cumsum(0)
    errors = (counted * failed).cumsum(0)
    before = answered - counted
    reciprocals = digamma(answered + 1) - digamma(before + 1)
    risks = np.where(failed, counted - (answered - errors) * reciprocals, errors * reciprocals)
    return ratio(risks.sum(0), answered[-1])  # NaN where nothing counts


def best_area(wrong: Bool[Array, " n"]) -> float:
    """Return the AURC of a confidence that ranks every right answer above every wrong one."""
    return area_under_risk_coverage(-wrong.astype(np.float64), wrong)


def refer_below(confidence: Float[Array, " n"], wrong: Bool[Array, " n"], *, risk: float) -> float:
    """Return the lowest threshold at which at most ``risk`` of the answers are wrong; infinity if there is none."""
    order = np.argsort(-confidence, kind="stable")
    sorted_confidence, errors = confidence[order], wrong[order].cumsum()
    answered = np.arange(1, len(wrong) + 1)
    last_of_level = np.append(sorted_confidence[1:] != sorted_confidence[:-1], True)  # ties are answered together
    safe = np.flatnonzero(last_of_level & (errors <= risk * answered))
    return float(sorted_confidence[safe[-1]]) if len(safe) else float("inf")
