"""Figures without a value: each is shown as undefined with its reason, never as 0."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tdumpra.evaluation.metrics_table import METRICS

UNDEFINED = "undefined"
_REASONS = {
    "no rows": "no rows",
    "one class": "no class has both members and others among these rows",
    "no rivals": "the class, or every other one, is absent from these rows",
    "absent": "no row of this class",
    "never predicted": "never predicted",
    "neither": "neither present nor predicted",
    "shut": "the gate never opened",
    "no headroom": "retrieval is never right where the classifier is wrong: there is no headroom",
    "nothing answered": "nothing is answered at this threshold",
    "no threshold": "no threshold keeps the errors so low on validation",
    "no interval": "no bootstrap was asked for, or the figure is undefined in every replicate",
    "seeds": "given for each seed: their rows are the same",
    "other": "these rows do not define it",
}
_KINDS = {
    "accuracy": "no rows", "macro_auroc": "one class", "auroc": "no rivals", "recall": "absent",
    "sensitivity": "no rivals",
    "precision": "never predicted", "f1": "neither", "risk_change_where_open": "shut", "headroom_taken": "no headroom",
    "risk": "nothing answered", "risk_upper": "nothing answered", "threshold": "no threshold",
    "interval": "no interval",
}  # fmt: skip
_WORDS = {"auroc": "AUROC", "f1": "F1", "mcnemar_p": "McNemar's p", "sign_flip_p": "the sign-flip test's p"}
_POINT = re.compile(r"(.*)\.(0\.\d+|0|1)")  # a class and a specificity; both may have a dot
_SILENT = {"bins"}  # an empty bin of a reliability diagram is no news


class Undefined(NamedTuple):
    """The place of a figure in an evaluation, and the kind of reason why it has no value."""

    where: str
    kind: str

    def to_json(self) -> dict[str, str]:
        """Return the place and the reason in words."""
        return {"where": self.where, "reason": _REASONS[self.kind]}


def undefined_figures(figures: Any, where: str = "") -> list[Undefined]:
    """Find every NaN or infinity in a tree of results."""
    if isinstance(figures, Mapping):
        if figures.get("n") == 0 and "comparators" in figures:
            return [Undefined(where, "no rows")]
        return [
            each
            for name, value in figures.items()
            if name not in _SILENT and not (name == "interval" and "sensitivity" in figures)
            for each in undefined_figures(value, f"{where}.{name}" if where else str(name))
        ]
    if isinstance(figures, list | tuple) and figures and all(isinstance(value, float) for value in figures):
        return undefined_figures(figures[0], where)  # an interval: both ends, or neither
    if isinstance(figures, float) and not abs(figures) < float("inf"):
        return [Undefined(where, _kind(where.split(".")))]
    return []


def _kind(path: list[str]) -> str:
    if path[0] == "intervals":
        return "no interval"
    return _KINDS.get(path[-1], "other")


def in_words(where: str) -> str:
    """Tell the place of a figure: ``per_class.student.mel.recall`` is the recall of mel for student."""
    section, *path = where.split(".")  # the name of a class, or a specificity, may have a dot too
    figure = _figure(path[-1] if path else section)
    if section in ("ambiguous", "subgroups"):
        cut = path.index("comparators") if "comparators" in path else len(path)
        rows = "rows that the classifier is unsure of"
        if section == "subgroups":
            rows = f"rows with {path[0]} {'.'.join(path[1:cut])}"
        return f"every figure of {rows}" if cut == len(path) else f"{figure} of {rows} for {path[cut + 1]}"
    if section == "per_class":
        return f"{figure} of {'.'.join(path[1:-1])} for {path[0]}"
    if section == "operating_points" and (point := _POINT.fullmatch(".".join(path[1:-1]))):
        return f"{figure} at specificity {point[2]} of {point[1]} for {path[0]}"
    if section in ("gate", "retrieval_worth"):
        return f"{figure} of {'the gate' if section == 'gate' else 'the worth of retrieval'}"
    if section == "intervals":
        return f"the interval of {figure} for {path[0]}"
    return f"{figure} for {path[0]}" if len(path) > 1 else figure


def _figure(name: str) -> str:
    return METRICS[name].word if name in METRICS else _WORDS.get(name, name.replace("_", " "))
