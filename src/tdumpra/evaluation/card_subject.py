"""What a card knows of its model, and the answers that this gives to what reporting guidelines ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tdumpra import __version__
from tdumpra.evaluation.metrics_table import METRICS
from tdumpra.method.decision import Decision
from tdumpra.method.record import Record

SITES = ("site", "centre", "center", "hospital", "clinic", "source", "dataset")  # columns that name a place
_SECOND_PATH = "a bank of class prototypes, and a gate between the two posteriors (Model, above)"


class Count(NamedTuple):
    """How much of the data one part holds."""

    rows: int
    groups: int
    by_class: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The model that a card is about, in plain values."""

    name: str
    class_names: tuple[str, ...]
    decision: Decision
    networks: Mapping[str, str]  # role -> what it is; empty where a model has none
    preprocessing: str | None
    initial: str | None  # which weights training started from
    results: Mapping[str, Any] | None  # of :func:`tdumpra.evaluation.in_brief.in_brief`
    parts: Mapping[str, Count]  # train and validation, from the model's record; empty where it has none
    lineage: Sequence[Mapping[str, Any]]
    thumbnails: int  # pictures of training images inside


def counts(record: Record | None, class_names: Sequence[str]) -> dict[str, Count]:
    """Count what a model's record holds; nothing where there is none."""
    if record is None:
        return {}
    parts = {"train": record.train, "validation": record.validation}
    return {
        name: Count(
            len(rows),
            len(np.unique(rows.groups)),
            {each: int((rows.y == c).sum()) for c, each in enumerate(class_names)},
        )
        for name, rows in parts.items()
        if len(rows)
    }


def answers(subject: Subject) -> dict[str, str | None]:
    """Return an answer for each key that :mod:`tdumpra.evaluation.card_items` names; ``None`` if there is none."""
    return {**_of_the_model(subject), **_of_the_test(subject.results)}


def _of_the_model(subject: Subject) -> dict[str, str | None]:
    decision, networks = subject.decision, subject.networks
    names = ", ".join(subject.class_names)
    counts = "; ".join(f"{part}: {each.rows:,} rows of {each.groups:,} groups" for part, each in subject.parts.items())
    later = [str(entry["command"]) for entry in subject.lineage[1:]]
    where = "cases of a new place" if "adapt" in later else "validation rows"
    tempered = f"A temperature of {decision.temperature:.3g} on the classifier, fitted on {where}"
    commands = ", ".join(str(entry["command"]) for entry in subject.lineage)
    several = "A second network feeds the retrieval path" if "second network" in networks else "One network"
    return {
        "preprocessing": subject.preprocessing,
        "initial": subject.initial,
        "model": "; ".join([*(f"{role}: {words}" for role, words in networks.items()), _SECOND_PATH]),
        "predictors": "The pixels of one image and nothing else" if networks else None,
        "outcome": f"The label of the data set, one of {names}; how it was assessed is for the authors to say",
        "counts": counts or None,
        "imbalance": f"Retrieval treats classes evenly; the classifier is divided by the class prior to the power "
        f"{decision.prior_exponent:g}, a fused posterior to the power {decision.fused_exponent:g}",
        "output": "A probability for each class; thresholds of the gate stand under Model",
        "specification": "The model file: networks, preprocessing, prototypes and thresholds in one sealed safetensors"
        if networks
        else "The model file: prototypes and thresholds in one sealed safetensors; the network is the user's own",
        "software": f"tdumpra {__version__}, Apache-2.0; torch, timm, scikit-learn",
        "training": f"Made by {commands}; settings stand in the history" if commands else None,
        "ensemble": f"{several}; no ensemble otherwise" if networks else None,
        "updating": f"{tempered}; then {', '.join(later)}" if later else tempered,
        "explanations": "For each case the clauses of the gate, the matched prototypes with their training cases, and "
        "familiarity (`tdumpra explain`)",
        "quality": "A file that cannot be read as an image is refused with a reason; low familiarity tells of images "
        "unlike the training's",
        "limits": "See Limits, above",
    }


def _of_the_test(results: Mapping[str, Any] | None) -> dict[str, str | None]:
    if results is None:
        return {}
    data, subgroups = results["data"], results["subgroups"]
    words = ", ".join(METRICS[key].word for key in results["metrics"].get("gate", {}) if key in METRICS)
    protocol, grouped = data.get("protocol"), results.get("grouped")
    split = (
        f"Protocol {protocol}, drawn with seed {data.get('split_seed', 0)}" if protocol else "As the saved outputs say"
    )
    elsewhere = data.get("hold_out") or (data.get("test_source") if protocol == "external" else None)
    drawn = results.get("bootstrap") or {}
    gate = results["gate"]
    return {
        "objective": "Development and internal evaluation of one model" if not elsewhere else "Development, and "
        f"evaluation on {elsewhere}",
        "source": data.get("source"),
        "split": f"{split}: {', '.join(f'{n:,} {part}' for part, n in results.get('rows', {}).items())} rows",
        "disjoint": "Groups (lesion or patient)" if grouped else "Rows: no groups were given",
        "sites": "See Sites, above" if elsewhere or any(is_site(key) for key in subgroups) else None,
        "subgroups": "See Subgroups and Sites, above" if subgroups else None,
        "external": f"Tested on {elsewhere}" if elsewhere else None,
        "metrics": words or None,
        "uncertainty": f"{drawn['level']:.0%} intervals, {drawn['replicates']:,} bootstrap replicates over "
        f"{'groups' if grouped else 'rows'}" if drawn.get("replicates") else None,
        "performance": "See Results, above",
        "operating_points": "See Operating points, above" if results["operating_points"] else None,
        "selection": results.get("tuning"),
        "failures": f"Of {gate['n']:,} test rows the gate fixed {gate['fixed']:,} and broke {gate['broken']:,}; the "
        "report of the run shows them",
    }  # fmt: skip


def is_site(column: str) -> bool:
    """Return whether a column of the data names the places that images come from."""
    return column.casefold() in SITES
