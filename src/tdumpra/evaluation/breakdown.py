"""Figures for parts of the test rows (classes, subgroups, referral), and what retrieval is worth."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tdumpra.core import metrics, selective
from tdumpra.core.bootstrap import percentile_interval
from tdumpra.core.significance import clopper_pearson_upper
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.tuning.goal import LOSSES, Goal, objective_name

Array = np.ndarray
_MOST_VALUES = 12  # of a numeric column that is taken as it is; one with more is cut into quarters
_CURVE_POINTS = 101


def by_class(p: Float[Array, "n c"], y: Int[Array, " n"], settings: EvaluateConfig) -> dict[str, dict[str, Any]]:
    """Return support, recall, precision, F1, AUROC and, for chosen classes, sensitivity at fixed specificity."""
    n_classes = p.shape[1]
    names, chosen = settings.names(n_classes), set(settings.chosen_classes(n_classes))
    counts = metrics.class_counts(p.argmax(1), y, n_classes)
    columns = {
        "recall": metrics.ratio(counts.correct, counts.support),
        "precision": metrics.ratio(counts.correct, counts.predicted),
        "f1": metrics.ratio(2 * counts.correct, counts.support + counts.predicted),
        "auroc": metrics.auroc_by_class(p, y),
    }
    table: dict[str, dict[str, Any]] = {}
    for c, name in enumerate(names):
        table[name] = {"support": int(counts.support[c]), **{key: float(column[c]) for key, column in columns.items()}}
        if c in chosen:
            table[name]["sensitivity_at_specificity"] = {
                f"{specificity:g}": metrics.sensitivity_at_specificity(p[:, c], y == c, specificity)[0]
                for specificity in settings.specificities
            }
    return table


def part(posteriors: Mapping[str, Array], y: Int[Array, " n"], keep: Bool[Array, " n"]) -> dict[str, Any]:
    """Score all comparators on some rows; where there are none, every figure is undefined."""
    if not keep.any():
        undefined = dict.fromkeys(metrics.METRICS, float("nan"))
        return {"n": 0, "comparators": dict.fromkeys(posteriors, undefined)}
    scores = {name: metrics.classification_metrics(p[keep], y[keep]) for name, p in posteriors.items()}
    return {"n": int(keep.sum()), "comparators": scores}


def by_subgroup(
    posteriors: Mapping[str, Array], y: Int[Array, " n"], columns: Mapping[str, Array]
) -> dict[str, dict[str, Any]]:
    """Score all comparators within each value of each column; numbers with many values are cut into quarters."""
    return {
        name: {value: part(posteriors, y, banded == value) for value in _in_order(banded)}
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


def calibration(p: Float[Array, "n c"], y: Int[Array, " n"]) -> dict[str, Any]:
    """Return the reliability diagram, the class-wise error, and the error that noise alone would give."""
    bins = metrics.calibration_bins(p.max(1), p.argmax(1) == y)
    noise = metrics.calibration_noise(p.max(1))
    return {
        "classwise_ece": metrics.classwise_calibration_error(p, y),
        "ece_if_calibrated": dict(zip(("mean", "upper"), noise, strict=True)),
        "bins": {name: column.tolist() for name, column in bins._asdict().items()},
    }


def selective_figures(
    p: Float[Array, "n c"], y: Int[Array, " n"], chosen_on: tuple[Array, Array] | None, *, refer_risk: float
) -> dict[str, Any]:
    """Return risk against coverage, and the operating point whose threshold validation chose for ``refer_risk``."""
    confidence, wrong = p.max(1), p.argmax(1) != y
    curve = selective.risk_coverage(confidence, wrong)
    shown = np.unique(np.linspace(0, len(y) - 1, _CURVE_POINTS).round().astype(int))
    area = float(curve.risk.mean())
    figures: dict[str, Any] = {
        "aurc": area,
        "excess_aurc": area - selective.best_area(wrong),
        "curve": {"coverage": curve.coverage[shown].tolist(), "risk": curve.risk[shown].tolist()},
    }
    if chosen_on is not None:
        p_val, y_val = chosen_on
        threshold = selective.refer_below(p_val.max(1), p_val.argmax(1) != y_val, risk=refer_risk)
        point = selective.operating_point(confidence, wrong, threshold)
        is_answered = confidence >= threshold
        answered, errors = int(is_answered.sum()), int(wrong[is_answered].sum())
        figures["refer"] = {
            "target_risk": refer_risk,
            **point._asdict(),
            "answered": answered,
            "referred": len(y) - answered,
            "risk_upper": clopper_pearson_upper(errors, answered) if answered else float("nan"),
        }
    return figures


def decision_costs(p: Float[Array, "n c"], y: Int[Array, " n"], costs: Float[Array, "c c"]) -> dict[str, float]:
    """Return the mean cost of the likeliest class, and of the decision of least expected cost."""
    return {
        "likeliest": float(metrics.cost_by_row(p.argmax(1), y, costs).mean()),
        "cheapest": float(metrics.cost_by_row(metrics.cheapest_decision(p, costs), y, costs).mean()),
    }


def retrieval_worth(
    on_validation: Mapping[str, Tensor],
    y_val: Tensor,
    scores: Mapping[str, Mapping[str, float]],
    replicates: Mapping[str, Mapping[str, Array]],
    goal: Goal,
    *,
    with_bank: Set[str],
    level: float,
) -> dict[str, Any]:
    """Compare the best comparator that uses the bank with the best that does not, at no loss of accuracy.

    Each side's champion is chosen on validation for the same goal; test compares the two, by ``scores`` and, for the
    interval, ``replicates``.
    """
    floor = goal.score(on_validation["student"], y_val).accuracy
    on_val = {name: goal.score(p, y_val) for name, p in on_validation.items() if name != "oracle"}

    def champion(names: Set[str]) -> str:
        harmless = [name for name in on_val if name in names and on_val[name].accuracy >= floor]
        return max(harmless, key=lambda name: round(on_val[name].objective, 12), default="student")

    ours, rival = champion(with_bank), champion(on_val.keys() - with_bank)
    metric, sign = (goal.objective, -1 if goal.objective in LOSSES else 1)
    difference = sign * (scores[ours][metric] - scores[rival][metric])
    low = high = float("nan")
    winner = "not tested"
    if replicates:
        low, high = percentile_interval(sign * (replicates[ours][metric] - replicates[rival][metric]), level)
        winner = "retrieval" if low > 0 else "no retrieval" if high < 0 else "neither"
    found = {
        "objective": goal.objective,
        "with_bank": ours,
        "without_bank": rival,
        "with_bank_value": scores[ours][metric],
        "without_bank_value": scores[rival][metric],
        "difference": difference,
        "interval": [low, high],
        "with_bank_accuracy": scores[ours]["accuracy"],
        "without_bank_accuracy": scores[rival]["accuracy"],
        "winner": winner,
    }
    return {**found, "sentence": _worth_sentence(found, level)}


_WINNERS = {
    "retrieval": "retrieval won: {with_bank} beats {without_bank}, each the best of its side on validation",
    "no retrieval": "retrieval lost: {without_bank}, which needs no bank, beats {with_bank}",
    "not tested": "{with_bank} (with the bank) against {without_bank} (without) was not tested",
    "neither": "nobody won between {with_bank} (with the bank) and {without_bank} (without)",
}


def _worth_sentence(found: Mapping[str, Any], level: float) -> str:
    difference, (low, high) = found["difference"], found["interval"]
    span = "no interval" if np.isnan(low) else f"{level:.0%} interval {low:+.4f} to {high:+.4f}".replace("-", "−")
    return (
        f"{_WINNERS[found['winner']].format(**found)}: {objective_name(found['objective'])} "
        f"{'better' if difference >= 0 else 'worse'} by {abs(difference):.4f} with the bank ({span}), at accuracy "
        f"{found['with_bank_accuracy']:.4f} against {found['without_bank_accuracy']:.4f}"
    )
