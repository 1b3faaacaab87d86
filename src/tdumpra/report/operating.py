"""What whoever would use the gate asks first: its work on 1,000 images, its operating points, its cost, its rivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tdumpra.evaluation.comparators import words_of
from tdumpra.report import charts
from tdumpra.report.kit import number, percent
from tdumpra.report.sections import chart, csv_link

_PARTS = {"validation": "validation", "test": "test"}
_COUNTS = {"opened": "the gate opened", "fixed": "predictions it fixed", "broken": "predictions it broke"}
_MOVES = {"gained": "newly found", "lost": "newly missed", "falsely_called": "newly called in error"}


def per_1000(evaluation: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the gate did on 1,000 images of validation and of test, side by side, and by class."""
    found = evaluation.get("per_1000")
    if not found:
        return None
    parts = {part: words for part, words in _PARTS.items() if found.get(part)}
    first = found[next(iter(parts))]

    def cells(of_part: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
        return [number(of_part[key], 1) for key in keys]

    by_class = [
        {"name": name, "cells": [number(found[part]["by_class"][name][move], 1) for move in _MOVES for part in parts]}
        for name in first["by_class"]
    ]
    data = [
        {"class": name, "part": part, **found[part]["by_class"][name]} for name in first["by_class"] for part in parts
    ]
    return {
        "parts": list(parts.values()),
        "rows": [{"words": words, "cells": [cells(found[part], [key])[0] for part in parts]}
                 for key, words in _COUNTS.items()],
        "moves": list(_MOVES.values()),
        "by_class": by_class,
        "data": csv_link([{"part": part, **{key: found[part][key] for key in _COUNTS}} for part in parts] + data),
    }  # fmt: skip


def operating_points(evaluation: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return each named class's sensitivity of every row at fixed specificities, with intervals."""
    found = evaluation.get("operating_points")
    if not found:
        return None
    first = next(iter(found.values()))
    return [_points_of(name, found, list(points)) for name, points in first.items()]


def _points_of(name: str, found: Mapping[str, Any], specificities: list[str]) -> dict[str, Any]:
    def cell(point: Mapping[str, Any]) -> dict[str, str]:
        low, high = point.get("interval") or (None, None)
        spread = "" if low is None or low != low else f"{low:.3f}–{high:.3f}"
        return {"value": number(point["sensitivity"], 3), "spread": spread}

    return {
        "name": name,
        "headings": [f"at {percent(float(each))} specificity" for each in specificities],
        "rows": [
            {"name": who, "words": words_of(who), "cells": [cell(of_who[name][each]) for each in specificities]}
            for who, of_who in found.items()
            if name in of_who and who != "oracle"  # it bounds the accuracy, not the order of the cases
        ],
        "data": csv_link(
            [
                {"comparator": who, "specificity": each, "sensitivity": of_who[name][each]["sensitivity"]}
                for who, of_who in found.items()
                if name in of_who
                for each in specificities
            ]
        ),
    }


def cost_curve(evaluation: Mapping[str, Any]) -> dict[str, Any] | None:
    """Draw accuracy and balanced accuracy over the share of images that need the second network."""
    curve = evaluation.get("cost_curve")
    if not curve:
        return None
    theta = _theta(evaluation)
    words = (
        "A case is asked about if the classifier’s top probability lies below θ: only then is a second network run, or "
        "the bank consulted. The gate moves predictions where its other conditions hold too; plain averaging takes the "
        "mean of both opinions on every case that is asked about."
    )
    caption = "The test curve is for reading, not for choosing."
    if theta and theta in curve["theta"]:  # a gate that is shut asks about nobody
        caption = f"Dashed: the θ in use. {caption}"
        asked = curve["asked"][curve["theta"].index(theta)]
        words += (
            f" At the θ in use, {theta:.2g}, {percent(asked)} of the test cases are asked about; a bound on that share "
            "(tune.max_asked) holds for validation cases."
        )
    return {"words": words, "chart": chart(charts.cost_curve(curve, theta), "cost_curve", caption)}


def _theta(evaluation: Mapping[str, Any]) -> float | None:
    thresholds = evaluation["gate"].get("thresholds")
    return thresholds["theta"] if isinstance(thresholds, Mapping) else None  # seeds and folds have one each


def rivals(evaluation: Mapping[str, Any]) -> list[dict[str, str]] | None:
    """Return what each row chose for itself on validation."""
    found = evaluation.get("rivals")
    if not found:
        return None
    return [{"name": name, "words": words_of(name), "chosen": _chosen(values)} for name, values in found.items()]


def _chosen(values: Any) -> str:
    """Tell settings in a line; of several folds, fold by fold."""
    if isinstance(values, Sequence) and not isinstance(values, str):
        return "; ".join(f"fold {number}: {_chosen(each)}" for number, each in enumerate(values))
    flat = _flat(values)
    missed = flat.pop("harmless", True) is False
    said = ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in flat.items())
    return f"{said} (nothing kept the accuracy of the classifier alone, so it is left unadjusted)" if missed else said


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are set, without the tables that hold them."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value)
        elif value is not None and not isinstance(value, list | tuple):  # fitted weights are no setting
            flat[name] = value
    return flat


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, int | float) else str(value)
