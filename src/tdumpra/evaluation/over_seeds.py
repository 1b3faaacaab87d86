"""An evaluation over the seeds of a model: means, deviations, the test across seeds, and which seeds may be averaged.

Intervals and tests over lesions of the means match the seeds row by row, so seeds must share their test rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tdumpra import __version__
from tdumpra.errors import TdumpraError
from tdumpra.evaluation import paired
from tdumpra.evaluation.undefined import UNDEFINED, Undefined
from tdumpra.method.output_files import SplitOutputs

Array = np.ndarray
SEEDS = "seeds of one model"
_COUNTS = ("n", "opened", "flipped", "fixed", "broken")


class Figure(NamedTuple):
    """A mean over seeds with its standard deviation, which one seed does not have."""

    mean: float | None  # None where the data do not define it
    std: float | None = None

    def __str__(self) -> str:
        if self.mean is None:
            return UNDEFINED
        return f"{self.mean:.4f}" if self.std is None else f"{self.mean:.4f} ± {self.std:.4f}"


def mean_and_deviation(values: Iterable[float | None]) -> Figure:
    """Return mean and (sample) standard deviation; undefined as soon as one seed's value is."""
    known = list(values)
    if not known or any(value is None or value != value for value in known):
        return Figure(None)
    return Figure(float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else None)  # type: ignore[arg-type]


class SeedResult(NamedTuple):
    """One seed's evaluation, and what means over seeds need beside it."""

    document: dict[str, Any]  # the contents of evaluation.json
    gained: Mapping[str, int]  # fixed minus broken predictions of each lesion in which they differ
    compared: Mapping[str, Any] | None = None  # see :func:`tdumpra.evaluation.paired.compare`


def over_seeds(by_seed: Mapping[int, SeedResult]) -> dict[str, Any]:
    """Return one seed's evaluation as it is; of several, means of the metrics above each seed's evaluation."""
    evaluations = {str(seed): result.document for seed, result in by_seed.items()}
    first = next(iter(evaluations.values()))
    compared = [result.compared for result in by_seed.values() if result.compared is not None]
    shared: dict[str, Any] = {}
    if len(compared) == len(by_seed):
        level = first.get("bootstrap", {}).get("level", 0.95)
        shared = {"paired": paired.over_seeds(compared, level), "headroom_taken": paired.headroom_taken(compared)}
    if len(by_seed) == 1:
        return {**first, "seeds": list(by_seed), **shared}
    tables = [each["comparators"] for each in evaluations.values()]
    figures = {
        name: {metric: mean_and_deviation(table[name][metric] for table in tables) for metric in scores}
        for name, scores in first["comparators"].items()
        if all(name in table for table in tables)
    }
    gates = [each["gate"] for each in evaluations.values()]
    return {
        "version": __version__,
        "seeds": list(by_seed),
        "rows": first["rows"],
        "grouped": first["grouped"],
        "tuning": told_apart("seed", {seed: each["tuning"] for seed, each in evaluations.items()}),
        "certified": _agreed(each.get("certified") for each in evaluations.values()),
        "notes": list(dict.fromkeys(note for each in evaluations.values() for note in each.get("notes", ()))),
        "comparators": {name: {metric: f.mean for metric, f in of.items()} for name, of in figures.items()},
        "comparators_std": {name: {metric: f.std for metric, f in of.items()} for name, of in figures.items()},
        "gate": {
            **{name: sum(gate[name] for gate in gates) for name in _COUNTS},
            "mcnemar_p": None,
            "sign_flip_p": paired.sign_flip_over_seeds([result.gained for result in by_seed.values()]),
            "harm_upper": max(gate["harm_upper"] for gate in gates),  # seeds share rows: their worst, not their pool
            "guarantees_similarity": all(gate["guarantees_similarity"] for gate in gates),
            "thresholds": [gate["thresholds"] for gate in gates],
        },
        **shared,
        "undefined": [Undefined("gate.mcnemar_p", "seeds").to_json()],
        "by_seed": evaluations,
    }


def _agreed(certified: Iterable[bool | None]) -> bool | None:
    """Return whether the gates of all seeds are certified; ``None`` where no certificate was asked for."""
    known = list(certified)
    return None if all(each is None for each in known) else all(known)


def told_apart(what: str, by_number: Mapping[Any, str]) -> str:
    """Tell a sentence of each seed or fold; once, where there is one, or they made one choice together."""
    sentences = set(by_number.values())
    if len(by_number) == 1:
        return sentences.pop()
    if len(sentences) == 1:
        return f"for all {what}s: {sentences.pop()}"
    return "; ".join(f"{what} {number}: {sentence}" for number, sentence in by_number.items())


class SeedRows(NamedTuple):
    """The things that seeds must agree on: classes, and the test rows' labels, groups and ids."""

    name: str  # of the file or folder, for a message
    n_classes: int
    class_names: tuple[str, ...]  # empty where the source has only numbers
    y: Array
    groups: Array | None
    ids: Array | None  # where each names one row

    @classmethod
    def of(cls, name: str, splits: SplitOutputs) -> SeedRows:
        """Take what must agree from a seed's outputs."""
        test = splits.test
        return cls(name, splits.n_classes, splits.class_names, test.y.numpy(), test.groups, test.own_ids)


def refuse_another_kind(first: SeedRows, other: SeedRows, who: str = SEEDS) -> None:
    """Refuse a seed with other classes, another order of them, or groups where the first has none."""
    if other.n_classes != first.n_classes:
        _refuse(f"{other.name} has {other.n_classes} classes and {first.name} has {first.n_classes}", who)
    if first.class_names and other.class_names and first.class_names != other.class_names:
        theirs, ours = (", ".join(seed.class_names) for seed in (other, first))
        _refuse(f"{other.name} has the classes {theirs}, and {first.name} has {ours}, in this order", who)
    if (first.groups is None) != (other.groups is None):
        grouped, bare = (first, other) if other.groups is None else (other, first)
        _refuse(f"{grouped.name} has groups and {bare.name} has none", who)


def refuse_other_test_rows(first: SeedRows, other: SeedRows, who: str = SEEDS) -> None:
    """Refuse a seed that was scored on other rows; their order may differ."""
    difference = _difference(first, other)
    if difference is not None:
        raise TdumpraError(
            f"{other.name} and {first.name} differ in {difference}: {who} must share their test rows; "
            "give them different names to evaluate them apart"
        )


def _refuse(difference: str, who: str) -> None:
    raise TdumpraError(f"{difference}: {who} must agree")


def _difference(first: SeedRows, other: SeedRows) -> str | None:
    """Name the first thing in which the test rows differ."""
    if len(first.y) != len(other.y):
        return f"the number of test rows ({len(other.y):,} and {len(first.y):,})"
    named = first.ids is not None and other.ids is not None
    if first.groups is None and not named:
        if first.ids is not None or other.ids is not None:
            return "whether test rows have ids"
        # rows are known by their place alone
        return None if np.array_equal(first.y, other.y) else "the labels of test rows, which have neither id nor group"
    ours, theirs = _sorted(first, by_id=named), _sorted(other, by_id=named)
    return next((f"the {what} of test rows" for what in ours if not np.array_equal(ours[what], theirs[what])), None)


def _sorted(seed: SeedRows, *, by_id: bool) -> dict[str, Array]:
    """Return ids, groups and labels in an order that does not depend on the file's."""
    given = {"ids": seed.ids if by_id else None, "groups": seed.groups, "labels": seed.y}
    columns = {what: column for what, column in given.items() if column is not None}
    order = np.lexsort(tuple(reversed(columns.values())))
    return {what: column[order] for what, column in columns.items()}
