"""An evaluation over the seeds of a model: means, deviations, the test across seeds, and which seeds may be averaged.

Intervals and tests over lesions of the means match the seeds row by row, so seeds must share their test rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tdumpra import __version__
from tdumpra.core.bootstrap import over_drawn_seeds, percentile_interval
from tdumpra.core.significance import holm_adjusted
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
        asked = first.get("bootstrap", {})
        level, draws = asked.get("level", 0.95), asked.get("seed", 0)
        shared = {
            "paired": paired.over_seeds(compared, level, seed=draws),
            "headroom_taken": paired.headroom_taken(compared),
            "resampled": "lesions" if len(compared) == 1 else "lesions and seeds",
        }
        if all("tuned" in each for each in compared):
            shared["paired_with_tuning"] = paired.with_tuning(compared, level, seed=draws)
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
        "refit": first.get("refit", False),
        "rows": first["rows"],
        "test_set": first.get("test_set"),
        "grouped": first["grouped"],
        "tuning": told_apart("seed", {seed: each["tuning"] for seed, each in evaluations.items()}),
        "certified": _agreed(each.get("certified") for each in evaluations.values()),
        "notes": notes_apart("seed", {seed: each.get("notes", ()) for seed, each in evaluations.items()}),
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
        **{
            name: mean_of_trees([each[name] for each in evaluations.values()])
            for name in ("per_1000", "cost_curve")
            if all(name in each for each in evaluations.values())
        },
        **_operating_points(list(evaluations.values()), compared),
        "undefined": [Undefined("gate.mcnemar_p", "seeds").to_json()],
        "by_seed": evaluations,
    }


def mean_of_trees(trees: Sequence[Any]) -> Any:
    """Return the mean of each figure over trees of the same shape; ``None`` as soon as one of them is ``None``."""
    first = trees[0]
    if any(tree is None for tree in trees):
        return None
    if isinstance(first, Mapping):
        return {name: mean_of_trees([tree[name] for tree in trees]) for name in first}
    if isinstance(first, Sequence):
        return [mean_of_trees(values) for values in zip(*trees, strict=True)]
    return mean_and_deviation(trees).mean


def _operating_points(
    evaluations: Sequence[Mapping[str, Any]], compared: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the mean sensitivities over seeds, with intervals over lesions and seeds where replicates were kept."""
    if not all("operating_points" in each for each in evaluations):
        return {}
    tables: list[Mapping[str, Any]] = [each["operating_points"] for each in evaluations]
    asked = evaluations[0].get("bootstrap", {})

    def point(name: str, label: str, at: str) -> dict[str, Any]:
        low = high = float("nan")
        kept = [each["points"][name] for each in compared if name in each.get("points", {})]
        if len(kept) == len(tables):
            replicates = np.array([of_seed[label][at] for of_seed in kept], dtype=np.float64)
            means = over_drawn_seeds(replicates, seed=asked["seed"])
            low, high = percentile_interval(means, asked["level"])
        mean = mean_and_deviation(table[name][label][at]["sensitivity"] for table in tables).mean
        return {"sensitivity": mean, "interval": [low, high]}

    shared = [name for name in tables[0] if all(name in table for table in tables)]
    return {
        "operating_points": {
            name: {
                label: {at: point(name, label, at) for at in of_class} for label, of_class in tables[0][name].items()
            }
            for name in shared
        }
    }


def _agreed(certified: Iterable[bool | None]) -> bool | None:
    """Return whether the gates of all seeds are certified; ``None`` where no certificate was asked for."""
    known = list(certified)
    return None if all(each is None for each in known) else all(known)


def with_holm(models: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add Holm's p-values of the gates' leads over their classifiers, where models share their test rows."""
    families: dict[str, list[str]] = {}
    for name, document in models.items():
        if document.get("test_set") is not None and "student" in document.get("paired", {}):
            families.setdefault(document["test_set"], []).append(name)
    found = dict(models)
    for names in families.values():
        if len(names) < 2:
            continue
        p_values = np.array([models[name]["paired"]["student"]["sign_flip_p"] for name in names])
        for name, p in zip(names, holm_adjusted(p_values).tolist(), strict=True):
            of_model = models[name]["paired"]
            found[name] = {**models[name], "paired": {**of_model, "student": {**of_model["student"], "holm_p": p}}}
    return found


def notes_apart(what: str, by_number: Mapping[Any, Sequence[str]]) -> list[str]:
    """List the notes of several seeds or folds; one that only some of them have names them."""
    everyone = set.intersection(*(set(notes) for notes in by_number.values()))
    found: dict[str, None] = {}
    for number, notes in by_number.items():
        found |= dict.fromkeys(note if note in everyone else f"{what} {number}: {note}" for note in notes)
    return list(found)


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
