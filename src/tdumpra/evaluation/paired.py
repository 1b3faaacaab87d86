"""The gate against its rivals on the same rows: differences with intervals over groups, for one seed or several.

Every seed sees the same test rows, so replicate by replicate the differences of the seeds can be averaged. Of several
seeds, each replicate draws the seeds again as well: the interval holds for other lesions and other trainings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tdumpra.core import metrics, significance
from tdumpra.core.bootstrap import over_drawn_seeds, percentile_interval
from tdumpra.core.groups import gained_by_lesion
from tdumpra.core.selective import weighted_areas
from tdumpra.evaluation.metrics_table import METRICS

Array = np.ndarray
Figures = Callable[[Array], dict[str, Array]]  # from the rows' weights to figures, one for each column


def with_selective_figures(figures: Figures, p: Array, y: Array, unsure: Array) -> Figures:
    """Add accuracy on unsure rows and the area under risk and coverage to the figures of a posterior."""
    right, asked = p.argmax(1) == y, unsure.astype(np.float64)

    def more(w: Array) -> dict[str, Array]:
        return {
            **figures(w),
            "ambiguous_accuracy": metrics.ratio((right * asked) @ w, asked @ w),
            "aurc": weighted_areas(p.max(1), ~right, w),
        }

    return more


class Side(NamedTuple):
    """What is compared of a posterior, row by row."""

    figures: Mapping[str, float]
    replicates: Mapping[str, Array]  # of the figures; empty without a bootstrap
    right: Array  # whether each row is


def compare(sides: Mapping[str, Side], lesions: Array, member: Array) -> dict[str, Any]:
    """Return one seed's figures of the gate and its rivals, their replicates, and the gate's gain in each lesion.

    ``lesions`` are names, and ``member`` is the number of each row's lesion among them.
    """
    gate = sides["gate"]
    shown = [metric for metric in gate.figures if metric in METRICS and metric != "cost"]

    def gained(rival: Side) -> dict[str, int]:
        return gained_by_lesion(gate.right.astype(np.int64) - rival.right, lesions, member)

    return {
        "scores": {name: {metric: side.figures[metric] for metric in shown} for name, side in sides.items()},
        "replicates": {
            name: {metric: side.replicates[metric].tolist() for metric in shown}
            for name, side in sides.items()
            if name != "oracle" and side.replicates
        },
        "gained": {name: gained(side) for name, side in sides.items() if name not in ("gate", "oracle")},
        "fixed": {name: int((gate.right & ~side.right).sum()) for name, side in sides.items()},
        "broken": {name: int((~gate.right & side.right).sum()) for name, side in sides.items()},
    }


def over_seeds(compared: Sequence[Mapping[str, Any]], level: float, *, seed: int = 0) -> dict[str, Any]:
    """Return the mean over seeds of the gate's lead over each rival, with intervals and the sign-flip test.

    A positive difference is a better gate, whichever way the metric runs. ``seed`` is that of the draws of seeds.
    """
    return {
        rival: {
            **_leads(rival, compared, "replicates", level, seed),
            "fixed": sum(each["fixed"][rival] for each in compared),
            "broken": sum(each["broken"][rival] for each in compared),
            "sign_flip_p": sign_flip_over_seeds([each["gained"][rival] for each in compared]),
        }
        for rival in _rivals(compared)
    }


def with_tuning(compared: Sequence[Mapping[str, Any]], level: float, *, seed: int = 0) -> dict[str, Any]:
    """Return the same leads with intervals that include the choice on validation."""
    return {rival: _leads(rival, compared, "tuned", level, seed) for rival in _rivals(compared)}


def _rivals(compared: Sequence[Mapping[str, Any]]) -> list[str]:
    return [name for name in compared[0]["gained"] if all(name in each["gained"] for each in compared)]


def sign_flip_over_seeds(gained: Sequence[Mapping[str, int]]) -> float:
    """Return the p-value of the sign-flip test over lesions of what all seeds together gained in each."""
    lesions = sorted({name for of_seed in gained for name in of_seed})
    sums = np.array([sum(of_seed.get(name, 0) for of_seed in gained) for name in lesions], dtype=np.int64)
    return significance.sign_flip_test(sums)


def headroom_taken(compared: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of the oracle's lead in accuracy over the student that the gate took, over all seeds."""
    gate, student, oracle = (
        float(np.mean([each["scores"][name]["accuracy"] for each in compared]))
        for name in ("gate", "student", "oracle")
    )
    return (gate - student) / (oracle - student) if oracle > student else None


def _leads(
    rival: str, compared: Sequence[Mapping[str, Any]], kind: str, level: float, seed: int
) -> dict[str, dict[str, Any]]:
    """Return the mean lead in each metric; its interval is of the replicates of that ``kind``."""

    def lead(of: str, metric: str) -> Array:
        """Return the lead by seed; a figure that a file says is undefined (``None``) counts as NaN."""
        sign = -1 if METRICS[metric].lower_is_better else 1
        gate, other = (
            np.array([each[of][name][metric] for each in compared], dtype=np.float64) for name in ("gate", rival)
        )
        return sign * (gate - other)

    found: dict[str, dict[str, Any]] = {}
    for metric in compared[0]["scores"]["gate"]:
        low = high = float("nan")
        if compared[0][kind]:
            low, high = percentile_interval(over_drawn_seeds(lead(kind, metric), seed=seed), level)
        found[metric] = {"difference": float(lead("scores", metric).mean()), "interval": [low, high]}
    return found
