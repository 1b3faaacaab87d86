"""Why a figure has no value. What is not defined is shown as undefined with its reason, never as 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_REASONS = {
    "macro_auroc": "no class has both members and others among these rows",
    "auroc": "the class, or every other one, is absent from these rows",
    "recall": "no row of this class",
    "precision": "never predicted",
    "f1": "neither present nor predicted",
    "risk_change_where_open": "the gate never opened",
    "gate_accuracy": "the gate never opened",
    "headroom_taken": "retrieval is never right where the classifier is wrong: there is no headroom",
    "risk": "nothing is answered at this threshold",
    "risk_upper": "nothing is answered at this threshold",
    "threshold": "no threshold keeps the errors so low on validation",
    "mcnemar_p": "given for each seed: rows of several seeds are not independent",
    "interval": "no bootstrap was asked for, or the figure is undefined in every replicate",
    "confidence": "an empty bin",
    "accuracy": "an empty bin, or no rows",
}
_SILENT = {"bins"}  # an empty bin of a reliability diagram is no news


def undefined_figures(figures: Any, where: str = "") -> list[dict[str, str]]:
    """Every NaN or infinity in a tree of results, with its place and the reason."""
    if isinstance(figures, Mapping):
        if figures.get("n") == 0 and "comparators" in figures:
            return [{"where": where, "reason": "no rows"}]
        found = [
            undefined_figures(value, f"{where}.{name}" if where else str(name))
            for name, value in figures.items()
            if name not in _SILENT
        ]
        return [each for part in found for each in part]
    if isinstance(figures, list | tuple) and figures and all(isinstance(value, float) for value in figures):
        return undefined_figures(figures[0], where)  # an interval: both ends, or neither
    if isinstance(figures, float) and not abs(figures) < float("inf"):
        return [{"where": where, "reason": _reason(where)}]
    return []


def _reason(where: str) -> str:
    parts = where.split(".")
    if parts[0] == "intervals" or parts[-1] == "interval":
        return _REASONS["interval"]
    if len(parts) > 1 and parts[-2] == "sensitivity_at_specificity":
        return _REASONS["auroc"]
    return _REASONS.get(parts[-1], "these rows do not define it")
