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
_WORDS = {
    "auroc": "AUROC", "macro_auroc": "macro AUROC", "f1": "F1", "macro_f1": "macro-F1", "ece": "ECE", "nll": "NLL",
    "brier": "Brier score", "mcnemar_p": "McNemar's p", "sign_flip_p": "the sign-flip test's p",
}  # fmt: skip
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


def in_words(where: str) -> str:
    """The place of a figure for a reader: ``per_class.student.mel.recall`` is the recall of mel for student."""
    section, *path = where.split(".")
    if section == "per_class" and len(path) > 2:
        return _of_class(*path)
    if section == "intervals" and len(path) == 2:
        return f"the interval of {_figure(path[1])} for {path[0]}"
    if section in ("ambiguous", "subgroups"):
        return _of_part(section, path)
    if section == "retrieval_worth":
        return f"{_figure(path[-1])} of the worth of retrieval" if path else "the worth of retrieval"
    if section == "gate" and path:
        return f"{_figure(path[-1])} of the gate"
    return f"{_figure(path[-1])} for {path[0]}" if len(path) > 1 else _figure(where)


def _of_class(who: str, *path: str) -> str:
    """A class, or a specificity, may have a dot in its name."""
    at = "sensitivity_at_specificity"
    if at in path:
        cut = path.index(at)
        return f"sensitivity at specificity {'.'.join(path[cut + 1 :])} of {'.'.join(path[:cut])} for {who}"
    return f"{_figure(path[-1])} of {'.'.join(path[:-1])} for {who}"


def _of_part(section: str, path: list[str]) -> str:
    cut = path.index("comparators") if "comparators" in path else len(path)
    column, value = (path[0], ".".join(path[1:cut])) if section == "subgroups" and path else ("", "")
    rows = f"rows with {column} {value}" if column else "ambiguous rows"
    who_and_figure = path[cut + 1 :]
    if len(who_and_figure) < 2:
        return f"every figure of {rows}"
    return f"{_figure(who_and_figure[-1])} of {rows} for {who_and_figure[0]}"


def _figure(name: str) -> str:
    return _WORDS.get(name, name.replace("_", " ").replace(".", " "))
