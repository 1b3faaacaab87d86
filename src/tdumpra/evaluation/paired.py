"""The gate against a rival on the same rows: differences with intervals over groups, for one seed or several.

Every seed sees the same test rows, so replicate by replicate the differences of the seeds can be averaged: an interval
over lesions of the mean over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tdumpra.core import metrics, significance
from tdumpra.core.bootstrap import MetricSums, group_weights, percentile_interval
from tdumpra.core.groups import gained_by_lesion, lesion_numbers
from tdumpra.core.selective import weighted_areas
from tdumpra.evaluation.comparators import COMPARATORS, Case
from tdumpra.evaluation.settings import EvaluateConfig

Array = np.ndarray
RIVALS = (
    "baseline", "student", "teacher", "temperature", "logit_adjusted", "teacher_adjusted", "second", "second_adjusted",
    "ensemble", "ensemble_adjusted", "similarity", "average",
)  # fmt: skip
LOWER_IS_BETTER = frozenset({"ece", "nll", "brier", "aurc"})


def compare(case: Case, unsure: Array, settings: EvaluateConfig) -> dict[str, Any]:
    """One seed's figures of the gate and its rivals, their replicates, and what the gate gained in each group.

    ``unsure`` marks the rows that are called ambiguous, by the classifier's own confidence.
    """
    y = case.test.y.numpy()
    found = {name: COMPARATORS[name](case) for name in ("gate", *RIVALS, "oracle")}
    posteriors = {name: p.double().numpy() for name, p in found.items() if p is not None}
    lesions = case.test.lesions()
    member = lesion_numbers(lesions, len(y))
    figures = {name: _prepared(p, y, unsure) for name, p in posteriors.items()}
    scores = {name: of(np.ones((len(y), 1))) for name, of in figures.items()}
    chunks = [
        {name: of(w) for name, of in figures.items() if name != "oracle"}
        for w in group_weights(member, n_replicates=settings.bootstrap, seed=settings.seed)
    ]
    right = {name: p.argmax(1) == y for name, p in posteriors.items()}

    def gained(rival: str) -> dict[str, int]:
        return gained_by_lesion(right["gate"].astype(np.int64) - right[rival], lesions)

    return {
        "scores": {name: {metric: float(value[0]) for metric, value in of.items()} for name, of in scores.items()},
        "replicates": {
            name: {metric: np.concatenate([chunk[name][metric] for chunk in chunks]).tolist() for metric in of}
            for name, of in (chunks[0].items() if chunks else ())
        },
        "gained": {name: gained(name) for name in posteriors if name not in ("gate", "oracle")},
        "fixed": {name: int((right["gate"] & ~right[name]).sum()) for name in posteriors},
        "broken": {name: int((~right["gate"] & right[name]).sum()) for name in posteriors},
    }


def over_seeds(compared: Sequence[Mapping[str, Any]], level: float) -> dict[str, Any]:
    """The mean over seeds of the gate's lead over each rival, with intervals and the sign-flip test over groups.

    A positive difference is a better gate, whichever way the metric runs.
    """
    rivals = [name for name in compared[0]["gained"] if all(name in each["gained"] for each in compared)]
    return {rival: _against(rival, compared, level) for rival in rivals}


def headroom_taken(compared: Sequence[Mapping[str, Any]]) -> float | None:
    """The share of the oracle's lead in accuracy over the student that the gate took, over all seeds."""
    means = {
        name: float(np.mean([each["scores"][name]["accuracy"] for each in compared]))
        for name in ("gate", "student", "oracle")
    }
    room = means["oracle"] - means["student"]
    return (means["gate"] - means["student"]) / room if room > 0 else None


def _against(rival: str, compared: Sequence[Mapping[str, Any]], level: float) -> dict[str, Any]:
    def mean_lead(kind: str, metric: str) -> Array:
        """Over seeds. What is undefined comes out of a file as ``None``, and counts as NaN here."""
        sign = -1 if metric in LOWER_IS_BETTER else 1
        gate, other = (
            np.array([each[kind][name][metric] for each in compared], dtype=np.float64) for name in ("gate", rival)
        )
        lead: Array = np.mean(sign * (gate - other), axis=0)
        return lead

    found: dict[str, Any] = {}
    for metric in compared[0]["scores"]["gate"]:
        low = high = float("nan")
        if compared[0]["replicates"]:
            low, high = percentile_interval(mean_lead("replicates", metric), level)
        found[metric] = {"difference": float(mean_lead("scores", metric)), "interval": [low, high]}
    lesions = sorted({name for each in compared for name in each["gained"][rival]})
    sums = np.array([sum(each["gained"][rival].get(name, 0) for each in compared) for name in lesions], dtype=np.int64)
    return {
        **found,
        "fixed": sum(each["fixed"][rival] for each in compared),
        "broken": sum(each["broken"][rival] for each in compared),
        "sign_flip_p": significance.sign_flip_test(sums),
    }


def _prepared(p: Array, y: Array, unsure: Array) -> Callable[[Array], dict[str, Array]]:
    """From weights to the seven metrics, accuracy on unsure rows and the area under risk and coverage, by column."""
    sums, right, asked = MetricSums.prepare(p, y), p.argmax(1) == y, unsure.astype(np.float64)

    def figures(w: Array) -> dict[str, Array]:
        return {
            **sums.metrics(w),
            "ambiguous_accuracy": metrics.ratio((right * asked) @ w, asked @ w),
            "aurc": weighted_areas(p.max(1), ~right, w),
        }

    return figures
