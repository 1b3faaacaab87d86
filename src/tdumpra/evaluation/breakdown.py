"""Figures for parts of the test rows: classes, subgroups, referral, costs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from tdumpra.core import metrics, selective
from tdumpra.core.bootstrap import percentile_interval, point_name
from tdumpra.core.risk import share_upper
from tdumpra.evaluation.settings import EvaluateConfig

Array = np.ndarray
_MOST_VALUES = 12  # of a numeric column that is taken as it is; one with more is cut into quarters
_CURVE_POINTS = 101


def by_class(p: Float[Array, "n c"], y: Int[Array, " n"], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return support, recall, precision, F1 and AUROC of each class."""
    counts = metrics.class_counts(p.argmax(1), y, len(names))
    columns = {
        "recall": metrics.ratio(counts.correct, counts.support),
        "precision": metrics.ratio(counts.correct, counts.predicted),
        "f1": metrics.ratio(2 * counts.correct, counts.support + counts.predicted),
        "auroc": metrics.auroc_by_class(p, y),
    }
    return {
        name: {"support": int(counts.support[c]), **{key: float(column[c]) for key, column in columns.items()}}
        for c, name in enumerate(names)
    }


def operating_points(
    p: Float[Array, "n c"], y: Int[Array, " n"], settings: EvaluateConfig, replicates: Mapping[str, Array]
) -> dict[str, dict[str, Any]]:
    """Return the sensitivity for the chosen classes at fixed specificities; intervals need replicates."""
    names, found = settings.names(p.shape[1]), {}
    for c in settings.chosen_classes(p.shape[1]):
        reached = metrics.sensitivities_at_specificities(p[:, c], y == c, settings.specificities)
        found[names[c]] = {
            f"{specificity:g}": {
                "sensitivity": sensitivity,
                "interval": list(percentile_interval(replicates[point_name(c, specificity)], settings.level))
                if replicates
                else [float("nan")] * 2,
            }
            for specificity, (sensitivity, _) in zip(settings.specificities, reached, strict=True)
        }
    return found


def part(p: Float[Array, "n c"], y: Int[Array, " n"], keep: Bool[Array, " n"]) -> dict[str, float]:
    """Score a posterior on some rows; where there are none, every figure is undefined."""
    if not keep.any():
        return dict.fromkeys(metrics.METRICS, float("nan"))
    return metrics.classification_metrics(p[keep], y[keep])


def subgroups(columns: Mapping[str, Array]) -> dict[str, dict[str, Bool[Array, " n"]]]:
    """Return the rows of each value of each column; numbers with many values are cut into quarters."""
    return {
        name: {value: banded == value for value in _in_order(banded)}
        for name, banded in ((name, banded_column(column)) for name, column in columns.items())
    }


def banded_column(column: Array) -> Array:
    """Return a column's values, numbers as the quarter of the rows that they fall into; empty ones as ``unknown``."""
    given = column != ""
    named = np.where(given, column, "unknown")
    try:
        numbers = column[given].astype(np.float64)
    except ValueError:
        return named
    if len(np.unique(numbers)) <= _MOST_VALUES:
        return named
    edges = np.unique(np.quantile(numbers, [0, 0.25, 0.5, 0.75, 1]))
    band = np.clip(np.searchsorted(edges, numbers, side="left") - 1, 0, len(edges) - 2)
    words = np.array([f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges)])
    banded = named.astype(object)
    banded[given] = words[band]
    return banded.astype(np.str_)


def _in_order(values: Array) -> list[str]:
    def key(value: str) -> tuple[bool, float, str]:
        try:
            return False, float(value.split(" ")[0]), value
        except ValueError:
            return True, 0.0, value

    return sorted(map(str, np.unique(values)), key=key)


def calibration(p: Float[Array, "n c"], y: Int[Array, " n"], lesion: Int[Array, " n"]) -> dict[str, Any]:
    """Return the reliability diagram, the class-wise error, and the error that noise alone would give."""
    bins = metrics.calibration_bins(p.max(1), p.argmax(1) == y)
    noise = metrics.calibration_noise(p.max(1), lesion)
    return {
        "classwise_ece": metrics.classwise_calibration_error(p, y),
        "ece_if_calibrated": dict(zip(("mean", "upper"), noise, strict=True)),
        "bins": {name: column.tolist() for name, column in bins._asdict().items()},
    }


def selective_figures(
    p: Float[Array, "n c"],
    y: Int[Array, " n"],
    lesion: Int[Array, " n"],
    thresholds: Float[Array, " n"] | None,
    *,
    refer_risk: float,
) -> dict[str, Any]:
    """Return risk against coverage, and the operating point at ``thresholds``, which validation chose by row."""
    confidence, wrong = p.max(1), p.argmax(1) != y
    curve = selective.risk_coverage(confidence, wrong)
    shown = np.unique(np.linspace(0, len(y) - 1, _CURVE_POINTS).round().astype(int))
    area = float(curve.risk.mean())
    figures: dict[str, Any] = {
        "aurc": area,
        "excess_aurc": area - selective.best_area(wrong),
        "curve": {"coverage": curve.coverage[shown].tolist(), "risk": curve.risk[shown].tolist()},
    }
    if thresholds is not None:
        is_answered = confidence >= thresholds
        answered, errors = int(is_answered.sum()), int(wrong[is_answered].sum())
        chosen = list(dict.fromkeys(thresholds.tolist()))
        figures["refer"] = {
            "target_risk": refer_risk,
            "threshold": chosen[0] if len(chosen) == 1 else chosen,  # a list: of each outer fold
            "coverage": answered / len(y),
            "risk": errors / answered if answered else float("nan"),
            "answered": answered,
            "referred": len(y) - answered,
            "risk_upper": share_upper(wrong[is_answered], lesion[is_answered]) if answered else float("nan"),
        }
    return figures


def decision_costs(p: Float[Array, "n c"], y: Int[Array, " n"], costs: Float[Array, "c c"]) -> dict[str, float]:
    """Return the mean cost of the likeliest class, and of the decision of least expected cost."""
    return {
        "likeliest": float(metrics.cost_by_row(p.argmax(1), y, costs).mean()),
        "cheapest": float(metrics.cost_by_row(metrics.cheapest_decision(p, costs), y, costs).mean()),
    }
