"""The goal of tuning: one of four figures, or the cost of decisions with its sign turned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from tdumpra.core import metrics
from tdumpra.core.metrics import OBJECTIVES, ClassCounts, Objective

Array = np.ndarray


class Score(NamedTuple):
    """A posterior's objective (larger is better) and its accuracy (what must not fall)."""

    objective: float
    accuracy: float


LOSSES = frozenset({"nll", "cost"})  # maximised with their sign turned, and shown without


def objective_name(objective: str) -> str:
    """Return an objective's name in a sentence."""
    return "NLL" if objective == "nll" else objective.replace("_", " ")


def shown_value(objective: str, value: float) -> float:
    """Return the figure as a reader knows it: a loss gets its own sign back."""
    return -value if objective in LOSSES else value


@dataclass(frozen=True, slots=True, eq=False)
class Goal:
    """An objective, with the cost of each decision where that is the objective."""

    objective: Objective = "balanced_accuracy"
    costs: Array | None = None  # (C, C): truth × decision

    @classmethod
    def check(cls, objective: str, costs: Any = None, *, n_classes: int) -> Goal:
        """Refuse what cannot be maximised. ``costs`` may be given with any objective: they are then only reported."""
        check_objective(objective)
        left_out = costs is None or (isinstance(costs, list | tuple) and not costs)  # a configuration's default is ()
        matrix = None if left_out else check_costs(costs, n_classes=n_classes)
        if objective == "cost" and matrix is None:
            raise ValueError("the objective cost needs costs: what each decision costs, a row for each true class")
        return cls(objective, matrix)  # type: ignore[arg-type]

    def row_loss(self, p: Array, y: Array) -> Array:
        """Return each row's loss: its cost, or else its log loss."""
        if self.objective == "cost":
            assert self.costs is not None
            return metrics.cost_by_row(p.argmax(1), y, self.costs)
        return metrics.log_loss_by_row(p, y)

    def value(self, counts: ClassCounts, loss_sum: Array, n_rows: int) -> Array:
        """Return the figure that is maximised, for many settings at once; losses enter with their sign turned."""
        if self.objective in LOSSES:
            return -np.asarray(loss_sum) / n_rows
        measure = {
            "accuracy": metrics.accuracy,
            "balanced_accuracy": metrics.balanced_accuracy,
            "macro_f1": metrics.macro_f1,
        }[self.objective]
        return np.asarray(measure(counts))

    def score(self, p: Tensor, y: Tensor) -> Score:
        """Return objective and accuracy of one posterior."""
        rows, labels = p.double().cpu().numpy(), y.cpu().numpy()
        counts = metrics.class_counts(rows.argmax(1), labels, rows.shape[1])
        loss = self.row_loss(rows, labels).sum()
        return Score(float(self.value(counts, loss, len(labels))), float(metrics.accuracy(counts)))


def check_objective(objective: str) -> None:
    """Refuse an objective that does not exist."""
    if objective not in (*OBJECTIVES, "cost"):
        raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, or cost, not {objective!r}")


def check_costs(costs: Any, *, n_classes: int | None = None) -> Array:
    """Check a square matrix of costs, truth × decision: finite, and the right decision is never the dearest."""
    try:
        matrix = np.asarray(costs, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError("costs must be a square matrix of numbers: a row for each true class") from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"costs must be a square matrix, a row for each true class, not of shape {matrix.shape}")
    if n_classes is not None and len(matrix) != n_classes:
        raise ValueError(f"costs are given for {len(matrix)} classes where there are {n_classes}")
    if not np.isfinite(matrix).all():
        raise ValueError("costs must be finite numbers")
    dearer = np.flatnonzero((np.diag(matrix)[:, None] > matrix).any(1))
    if len(dearer):
        raise ValueError(f"costs make the right decision for class {dearer[0]} dearer than a wrong one")
    return matrix
