r"""Scores of a posterior against labels, in float64.

Symbols: ``p`` (n, C) probabilities, ``y`` (n,) labels. The predicted class is the first of the most probable ones.
Undefined values are NaN, never 0: a class that is absent from ``y`` has no recall and no ROC curve, and averages leave
it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

Array = np.ndarray
Objective = Literal["balanced_accuracy", "accuracy", "macro_f1", "nll", "cost"]  # that tuning can improve
OBJECTIVES: tuple[Objective, ...] = ("balanced_accuracy", "accuracy", "macro_f1", "nll")  # those that need no costs
_ONE_SIDED = 1.6448536269514722  # the normal quantile of 95 %
METRICS = ("accuracy", "macro_f1", "balanced_accuracy", "macro_auroc", "ece", "nll", "brier")  # of every results table
N_BINS = 15
SMALLEST_PROBABILITY = float(np.finfo(np.float64).eps)  # as in scikit-learn's log_loss


class ClassCounts(NamedTuple):
    """Counts from which accuracy, recall and F1 follow; leading axes hold many settings or replicates at once."""

    correct: Float[Array, "*many c"]  # rows of the class that were predicted as it
    support: Float[Array, "*many c"]  # rows of the class
    predicted: Float[Array, "*many c"]  # rows predicted as the class


class CalibrationBins(NamedTuple):
    """A reliability diagram: rows, mean confidence and accuracy of each bin (NaN where a bin is empty)."""

    rows: Int[Array, " bins"]
    confidence: Float[Array, " bins"]
    accuracy: Float[Array, " bins"]


def class_counts(predicted: Int[Array, " n"], y: Int[Array, " n"], n_classes: int) -> ClassCounts:
    """Count correct, present and predicted rows by class."""
    return ClassCounts(
        correct=np.bincount(y[predicted == y], minlength=n_classes).astype(np.float64),
        support=np.bincount(y, minlength=n_classes).astype(np.float64),
        predicted=np.bincount(predicted, minlength=n_classes).astype(np.float64),
    )


def accuracy(counts: ClassCounts) -> Float[Array, "*many"]:
    """Return the share of rows predicted correctly."""
    return ratio(counts.correct.sum(-1), counts.support.sum(-1))


def balanced_accuracy(counts: ClassCounts) -> Float[Array, "*many"]:
    """Return the mean recall over the classes that occur."""
    return mean_of_defined(ratio(counts.correct, counts.support))


def macro_f1(counts: ClassCounts) -> Float[Array, "*many"]:
    """Return the mean F1 over the classes that occur or are predicted."""
    return mean_of_defined(ratio(2 * counts.correct, counts.support + counts.predicted))


def auroc_by_class(p: Float[Array, "n c"], y: Int[Array, " n"]) -> Float[Array, " c"]:
    """Return the area under each one-vs-rest ROC curve: the chance that a member outranks a non-member, ties half."""
    positives = np.bincount(y, minlength=p.shape[1]).astype(np.float64)
    twice_rank = np.zeros(p.shape[1])  # whole numbers, which are exact in any order
    for c in np.flatnonzero(positives):
        ordered, own = np.sort(p[:, c]), np.sort(p[y == c, c])
        twice_rank[c] = sum(np.searchsorted(ordered, own, side).sum() for side in ("left", "right"))
    outranked = twice_rank / 2 - positives**2 / 2
    return ratio(outranked, positives * (len(y) - positives))


def auroc_influence(p: Float[Array, "n c"], y: Int[Array, " n"]) -> Float[Array, " n"]:
    r"""Return how the mean AUROC over the classes that occur changes with the weight of each row, at weights of one.

    .. math:: u_i = \frac1C \Bigl[ \frac{V_{y_i}(i) - A_{y_i}}{n_{y_i}}
        + \sum_{c \ne y_i} \frac{V_c(i) - A_c}{n - n_c} \Bigr]

    :math:`V_c(i)` is the share of the other side that row :math:`i` is on the right side of, ties half (the placements
    of DeLong, DeLong and Clarke-Pearson, 1988), and :math:`A_c` their mean, the area. The sum is zero.
    """
    influence, classes = np.zeros(len(y)), np.unique(y)
    if len(classes) < 2:
        return influence
    for c in classes:
        member, score = y == c, p[:, c]
        own, others = score[member], score[~member]
        placed, placed_others = _share_below(others, own), 1 - _share_below(own, others)
        influence[member] += (placed - placed.mean()) / len(own)
        influence[~member] += (placed_others - placed_others.mean()) / len(others)
    return influence / len(classes)


def _share_below(values: Float[Array, " m"], at: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return the share of ``values`` below each of ``at``, ties half."""
    ordered = np.sort(values)
    share: Array = (np.searchsorted(ordered, at, "left") + np.searchsorted(ordered, at, "right")) / (2 * len(values))
    return share


def macro_auroc(p: Float[Array, "n c"], y: Int[Array, " n"]) -> float:
    """Return the mean one-vs-rest AUROC over the classes that occur; for two classes, the AUROC of class 1."""
    areas = auroc_by_class(p, y)
    return float(areas[1] if len(areas) == 2 else mean_of_defined(areas))


def bin_numbers(confidence: Float[Array, " n"], n_bins: int = N_BINS) -> Int[Array, " n"]:
    """Return the bin ``(lo, hi]`` of each row; 0 falls into the first, and values above 1 by rounding into the last."""
    edges = np.linspace(0, 1, n_bins + 1)
    numbers: Array = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, n_bins - 1)
    return numbers


def calibration_bins(
    confidence: Float[Array, " n"], correct: Bool[Array, " n"], n_bins: int = N_BINS
) -> CalibrationBins:
    """Sort rows into bins of equal width, as numbered by :func:`bin_numbers`."""
    bins = bin_numbers(confidence, n_bins)
    rows = np.bincount(bins, minlength=n_bins)
    return CalibrationBins(
        rows=rows,
        confidence=ratio(np.bincount(bins, weights=confidence, minlength=n_bins), rows),
        accuracy=ratio(np.bincount(bins, weights=correct, minlength=n_bins), rows),
    )


def calibration_error(bins: CalibrationBins) -> float:
    r"""Return the expected calibration error: :math:`\sum_b \frac{n_b}{n} |\mathrm{acc}_b - \mathrm{conf}_b|`."""
    filled = bins.rows > 0
    gaps = np.abs(bins.accuracy[filled] - bins.confidence[filled])
    return float((bins.rows[filled] * gaps).sum() / bins.rows.sum())


def calibration_noise(confidence: Float[Array, " n"], lesion: Int[Array, " n"] | None = None) -> tuple[float, float]:
    r"""Return the mean and 95 % quantile of the calibration error of a perfectly calibrated posterior on these rows.

    Bins are finite, so it is not zero. A bin's gap is a sum of rows with variance :math:`q(1-q)`, nearly normal, and
    the size of a normal variable has mean :math:`\sigma\sqrt{2/\pi}`. Rows are independent between lesions; those of
    one ``lesion`` count as right or wrong together, the most that they can add.
    """
    deviation_of_row = np.sqrt(np.clip(confidence * (1 - confidence), 0, None))
    lesion = np.arange(len(confidence)) if lesion is None else lesion
    draws, draw = np.unique(N_BINS * lesion + bin_numbers(confidence), return_inverse=True)
    variance = np.bincount(draw, weights=deviation_of_row) ** 2
    sizes = np.sqrt(np.bincount(draws % N_BINS, weights=variance, minlength=N_BINS)) / len(confidence)
    mean, deviation = sizes.sum() * np.sqrt(2 / np.pi), np.sqrt((sizes**2).sum() * (1 - 2 / np.pi))
    return float(mean), float(mean + _ONE_SIDED * deviation)


def expected_calibration_error(p: Float[Array, "n c"], y: Int[Array, " n"], n_bins: int = N_BINS) -> float:
    """Return the calibration error of the top-1 probability."""
    return calibration_error(calibration_bins(p.max(1), p.argmax(1) == y, n_bins))


def classwise_calibration_error(p: Float[Array, "n c"], y: Int[Array, " n"]) -> float:
    """Return the calibration error of each class's probability, averaged over classes."""
    return float(np.mean([calibration_error(calibration_bins(p[:, c], y == c)) for c in range(p.shape[1])]))


def log_loss_by_row(p: Float[Array, "n c"], y: Int[Array, " n"]) -> Float[Array, " n"]:
    """Return -log p_y in nats, at most 36, for a true class with probability zero."""
    loss: Array = -np.log(np.maximum(p[np.arange(len(y)), y], SMALLEST_PROBABILITY))
    return loss


def negative_log_likelihood(p: Float[Array, "n c"], y: Int[Array, " n"]) -> float:
    """Return the mean of -log p_y in nats."""
    return float(log_loss_by_row(p, y).mean())


def brier_score(p: Float[Array, "n c"], y: Int[Array, " n"]) -> float:
    """Return the mean squared distance to the one-hot truth, summed over classes; for two classes half of it."""
    return float(squared_error_by_row(p, y).mean())


def squared_error_by_row(p: Float[Array, "n c"], y: Int[Array, " n"]) -> Float[Array, " n"]:
    """Return each row's part of the Brier score."""
    others = np.einsum("ij,ij->i", p, p) - p[np.arange(len(y)), y] ** 2
    squares: Array = (1 - p[np.arange(len(y)), y]) ** 2 + np.maximum(others, 0)
    return squares / (2 if p.shape[1] == 2 else 1)


def cost_by_row(predicted: Int[Array, " n"], y: Int[Array, " n"], costs: Float[Array, "c c"]) -> Float[Array, " n"]:
    """Return the cost of each decision: ``costs[truth, decision]``."""
    cost: Array = costs[y, predicted]
    return cost


def cheapest_decision(p: Float[Array, "n c"], costs: Float[Array, "c c"]) -> Int[Array, " n"]:
    r"""Return the decision of least expected cost: :math:`\arg\min_d \sum_c p_c \, \mathrm{costs}_{c,d}`."""
    decision: Array = (p @ costs).argmin(1)
    return decision


def sensitivity_at_specificity(
    score: Float[Array, " n"], positive: Bool[Array, " n"], specificity: float
) -> tuple[float, float]:
    """Return the best sensitivity with at least this ``specificity``, and the threshold that reaches it.

    A row is called positive where its score is at least the threshold. NaN without positives or without negatives.
    """
    return sensitivities_at_specificities(score, positive, (specificity,))[0]


def sensitivities_at_specificities(
    score: Float[Array, " n"], positive: Bool[Array, " n"], specificities: Sequence[float]
) -> list[tuple[float, float]]:
    """Return what :func:`sensitivity_at_specificity` does, for several of them at once."""
    negatives, positives = np.sort(score[~positive]), score[positive]
    if not len(negatives) or not len(positives):
        return [(float("nan"), float("nan"))] * len(specificities)
    thresholds = np.append(np.unique(score), np.inf)
    reached = np.searchsorted(negatives, thresholds, side="left") / len(negatives)
    lowest = [thresholds[np.argmax(reached >= each)] for each in specificities]  # that are specific enough
    return [(float((positives >= threshold).mean()), float(threshold)) for threshold in lowest]


def classification_metrics(p: Float[Array, "n c"], y: Int[Array, " n"]) -> dict[str, float]:
    """Return the seven metrics of every results table."""
    counts = class_counts(p.argmax(1), y, p.shape[1])
    return {
        "accuracy": float(accuracy(counts)),
        "macro_f1": float(macro_f1(counts)),
        "balanced_accuracy": float(balanced_accuracy(counts)),
        "macro_auroc": macro_auroc(p, y),
        "ece": expected_calibration_error(p, y),
        "nll": negative_log_likelihood(p, y),
        "brier": brier_score(p, y),
    }


def ratio(numerator: Array | np.generic, denominator: Array | np.generic) -> Array:
    """Divide element by element; NaN where the denominator is zero."""
    numerator, denominator = np.broadcast_arrays(np.asarray(numerator, np.float64), denominator)
    quotient: Array = np.divide(numerator, denominator, out=np.full(numerator.shape, np.nan), where=denominator > 0)
    return quotient


def mean_of_defined(values: Float[Array, "*many c"]) -> Float[Array, "*many"]:
    """Return the mean along the last axis of the values that are not NaN."""
    defined = ~np.isnan(values)
    return ratio(np.where(defined, values, 0.0).sum(-1), defined.sum(-1))
