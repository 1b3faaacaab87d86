"""An evaluation over the seeds of a model: means, deviations, and the test across seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tdumpra import __version__
from tdumpra.core import significance
from tdumpra.evaluation import paired

_COUNTS = ("n", "opened", "flipped", "fixed", "broken")


class Figure(NamedTuple):
    """A mean over seeds with its standard deviation, which one seed does not have."""

    mean: float | None  # None where the data do not define it
    std: float | None = None


def mean_and_deviation(values: Iterable[float | None]) -> Figure:
    """Return mean and (sample) standard deviation; undefined as soon as one seed's value is."""
    known = list(values)
    if not known or any(value is None or value != value for value in known):
        return Figure(None)
    return Figure(float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else None)  # type: ignore[arg-type]


class SeedResult(NamedTuple):
    """One seed's evaluation and what means over seeds need of it."""

    evaluation: dict[str, Any]
    gained: Mapping[str, int]
    compared: Mapping[str, Any] | None


def over_seeds(by_seed: Mapping[int, SeedResult]) -> dict[str, Any]:
    """Return one seed's evaluation as it is; of several, the means of the metrics with each seed's evaluation below."""
    evaluations = {str(seed): result.evaluation for seed, result in by_seed.items()}
    first = next(iter(evaluations.values()))
    compared = [result.compared for result in by_seed.values() if result.compared is not None]
    shared: dict[str, Any] = {}
    if len(compared) == len(by_seed):
        level = first.get("bootstrap", {}).get("level", 0.95)
        shared = {"paired": paired.over_seeds(compared, level), "headroom_taken": paired.headroom_taken(compared)}
    if len(by_seed) == 1:
        return {**first, "seeds": list(by_seed), **shared}
    figures = {
        name: {
            metric: mean_and_deviation(each["comparators"][name][metric] for each in evaluations.values())
            for metric in scores
        }
        for name, scores in first["comparators"].items()
        if all(name in each["comparators"] for each in evaluations.values())
    }
    gates = [each["gate"] for each in evaluations.values()]
    counts = {name: sum(gate[name] for gate in gates) for name in _COUNTS}
    gate = {
        **counts,
        "mcnemar_p": None,
        "sign_flip_p": _across_seeds([result.gained for result in by_seed.values()]),
        "harm_upper": max(gate["harm_upper"] for gate in gates),  # seeds share rows: the worst of them, not their pool
        "guarantees_similarity": all(gate["guarantees_similarity"] for gate in gates),
        "thresholds": [gate["thresholds"] for gate in gates],
    }
    return {
        "version": __version__,
        "seeds": list(by_seed),
        "rows": first["rows"],
        "grouped": first["grouped"],
        "tuning": _told_once({seed: each["tuning"] for seed, each in evaluations.items()}),
        "notes": list(dict.fromkeys(note for each in evaluations.values() for note in each.get("notes", ()))),
        "comparators": {name: {metric: f.mean for metric, f in of.items()} for name, of in figures.items()},
        "comparators_std": {name: {metric: f.std for metric, f in of.items()} for name, of in figures.items()},
        "gate": gate,
        **shared,
        "undefined": [{"where": "gate.mcnemar_p", "reason": "given for each seed: their rows are the same"}],
        "by_seed": evaluations,
    }


def _told_once(by_seed: Mapping[str, str]) -> str:
    """A sentence for each seed; one for all where they made one choice together."""
    sentences = set(by_seed.values())
    if len(sentences) == 1:
        return f"for all seeds: {sentences.pop()}"
    return "; ".join(f"seed {seed}: {sentence}" for seed, sentence in by_seed.items())


def _across_seeds(gained: Sequence[Mapping[str, int]]) -> float:
    """The sign-flip test over lesions of what all seeds together gained in each."""
    lesions = {name for of_seed in gained for name in of_seed}
    return significance.sign_flip_test(
        np.array([sum(each.get(name, 0) for each in gained) for name in sorted(lesions)], dtype=np.int64)
    )
