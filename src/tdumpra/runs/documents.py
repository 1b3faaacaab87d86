"""The contents of ``gate.json`` and ``evaluation.json``, and what an evaluation asks for beyond the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tdumpra import __version__
from tdumpra.artifacts import fingerprint
from tdumpra.data.sources.tables import read_frame
from tdumpra.errors import InputFileError
from tdumpra.evaluation.comparators import Case
from tdumpra.evaluation.evaluate import evaluate
from tdumpra.evaluation.gate_report import gate_report, thousandths
from tdumpra.evaluation.over_seeds import SeedResult, notes_apart, told_apart
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.method.output_files import SplitOutputs
from tdumpra.runs.config import Config
from tdumpra.runs.refit import Refitted
from tdumpra.runs.steps import in_one_thread
from tdumpra.runs.tables import OutputsTable, refuse_other_labels, run_in_use
from tdumpra.tuning.fit import Fitted, cluster, fit
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.pooled import pooled

Array = np.ndarray
_REFIT = (
    "the figures are those of a second network, trained on train and validation rows; everything was chosen on "
    "validation rows of a first network that had not seen them"
)
ID_COLUMNS = ("id", "image_id", "image")


class Part(NamedTuple):
    """What one outer fold, or a seed without folds, is evaluated from."""

    splits: SplitOutputs
    others: Sequence[SplitOutputs]  # seeds whose validation rows had a say in the choice
    fitted: Fitted
    fold: int | None = None
    second: Refitted | None = None  # where a second network goes into use

    @property
    def in_use(self) -> SplitOutputs:
        """Return the splits with the train and test rows of the network that goes into use."""
        if self.second is None:
            return self.splits
        return self.splits._replace(train=self.second.rows.train, test=self.second.rows.test)


def case_of(splits: SplitOutputs, others: Sequence[SplitOutputs], fitted: Fitted, config: Config) -> Case:
    """Put together what :func:`tdumpra.evaluation.evaluate.evaluate` scores.

    ``others`` are the seeds whose validation rows had a say in the choice.
    """
    decision, settings = fitted.tuning.decision, config.tune
    parts = (splits, *others)

    @cache
    def banks() -> list[PrototypeBank]:
        """Cluster the other seeds' banks, each row being matched by its own."""
        clustered = [
            cluster(
                each.train, config.bank, settings.searched(), n_classes=each.n_classes, class_names=each.class_names
            )
            for each in others
        ]
        return [decision.bank, *clustered]

    def pool_scores(kappa: float) -> Tensor:
        matched = zip(banks(), parts, strict=True)
        return torch.cat([bank.class_scores(part.validation.z, kappa=kappa) for bank, part in matched])

    def retune(numbers: Array) -> Decision:
        """Fit the gate again as this run did, on some of the rows of choice.

        That the paths disagree on enough lesions was settled on all rows: a draw holds only some of the lesions.
        """
        drawn, made = redrawn(parts, numbers), fitted.unseen_bank or decision.bank
        preset = replace(settings.searched(), least_disagreeing=0)
        again = fit(
            drawn[0], config.bank, settings, preset=preset, others=drawn[1:], judge=preset.must_survive, made=made
        )
        return again.tuning.decision

    return Case(
        train=splits.train,
        validation=splits.validation,
        test=splits.test,
        decision=decision,
        decided=decision.decide(splits.test.p, splits.test.z),
        pool=pooled([part.validation for part in parts]) if others else None,
        pool_scores=pool_scores if others else None,
        unseen_bank=fitted.unseen_bank,
        retune=retune,
        goal=Goal.check(settings.objective, settings.costs, n_classes=splits.n_classes),
    )


def redrawn(parts: Sequence[SplitOutputs], numbers: Array) -> list[SplitOutputs]:
    """Return the seeds with those of their validation rows, counted one seed after the other, that were drawn.

    A row that was drawn twice stays one lesion: without groups, its lesion in the run becomes its group.
    """
    starts = np.cumsum([0, *(len(part.validation) for part in parts)])
    lesions = pooled([part.validation for part in parts]).lesions()
    drawn = []
    for part, (low, high) in zip(parts, pairwise(starts), strict=True):
        rows, train = replace(part.validation, groups=lesions[low:high]), part.train
        if part.validation.groups is None and train.groups is None:  # cross-fitting needs groups of both or of neither
            names = np.array([f"train {i}" for i in range(len(train))]) if train.ids is None else train.ids
            train = replace(train, groups=names)
        here = numbers[(numbers >= low) & (numbers < high)] - low
        drawn.append(part._replace(train=train, validation=rows.rows(here)))
    return drawn


def gate_document(
    splits: SplitOutputs, others: Sequence[SplitOutputs], fitted: Fitted, config: Config
) -> dict[str, Any]:
    """Return the contents of ``gate.json``: what was tried, what won, by how much, on how many cases."""
    tuning, validation = fitted.tuning, splits.validation
    chosen_on = pooled([part.validation for part in (splits, *others)]) if others else validation
    decided = fitted.unseen.decide(validation.p, validation.z)
    report = gate_report(
        decided.p_cls, decided.p_sim, decided.p, validation.y, validation.groups, opened=decided.opened
    )
    groups = None if validation.groups is None or chosen_on.groups is None else len(np.unique(chosen_on.groups))
    return {
        "sentence": fitted.verdict(),
        "objective": tuning.objective,
        "cases": {
            "rows": tuning.n_rows,
            "groups": groups,
            "by_class": np.bincount(chosen_on.y.numpy(), minlength=splits.n_classes).tolist(),
            "disagreements": tuning.n_disagreements,
        },
        "tried": {
            "settings": tuning.n_tried,
            "five_clauses": tuning.curve.axes,
            "calibrated": tuning.calibrated_curve and tuning.calibrated_curve.axes,
        },
        "base": tuning.base.to_json(),
        "contenders": [{"gate": each.gate, **each.to_json()} for each in tuning.contenders],
        "best": {"gate": tuning.best.gate, **tuning.best.to_json()},
        "won_by": {
            "objective": tuning.best.objective - tuning.base.objective,
            "accuracy": tuning.best.accuracy - tuning.base.accuracy,
            **{name: report[name] for name in ("opened", "flipped", "fixed", "broken")},
        },
        "asked": tuning.best.asked,
        "decision": tuning.decision.to_json(),
        "certificate": fitted.certificate and fitted.certificate.to_json(),
        "out_of_fold": fitted.estimate and fitted.estimate.to_json(),  # what the choice earned, taken or not
        "expected": fitted.expected and fitted.expected.to_json(),  # of the gate in use
        "notes": [str(note) for note in tuning.notes],
        "settings": asdict(config.tune),
    }


def evaluated(parts: Sequence[Part], config: Config, seed: int) -> SeedResult:
    """Score one seed: its part of ``evaluation.json``, what the gate gained by lesion, and the replicates.

    Several ``parts`` are the outer folds of that seed: test rows are counted together, others are the mean of a fold.
    """
    asked = replace(config.evaluate, class_names=config.evaluate.class_names or parts[0].splits.class_names)
    with in_one_thread(sum(rows.z.numel() for part in parts for rows in part.in_use[:3])):
        found = evaluate([_case(part, config, seed) for part in parts], settings=asked)
    splits, fits = [part.in_use for part in parts], [part.fitted for part in parts]
    by_fold = {i if part.fold is None else part.fold: part.fitted for i, part in enumerate(parts)}
    refit = parts[0].second is not None
    per_1000 = {**found.document["per_1000"], "validation": _per_1000(fits, asked, splits[0].n_classes)}
    document = {
        "version": __version__,
        "refit": refit,  # whether train rows and test figures are those of a second network
        "rows": {
            "train": round(fmean(len(each.train) for each in splits)),
            "val": round(fmean(len(each.validation) for each in splits)),
            "test": sum(len(each.test) for each in splits),
        },
        "grouped": splits[0].test.groups is not None,
        "tuning": told_apart("fold", {number: fitted.verdict() for number, fitted in by_fold.items()}),
        "certified": _certified(fits),
        "notes": [
            *notes_apart("fold", {number: [*map(str, fitted.tuning.notes)] for number, fitted in by_fold.items()}),
            *([_REFIT] if refit else []),
            *found.document.pop("notes", []),
        ],
        **found.document,
        "per_1000": per_1000,
    }
    return SeedResult(document, found.gained, found.compared)


def _per_1000(fits: Sequence[Fitted], asked: EvaluateConfig, n_classes: int) -> dict[str, Any] | None:
    """Return what the gate in use does to a thousand rows that had no say in the choice; ``None`` if unknown."""
    estimates = [fitted.expected for fitted in fits if fitted.expected is not None]
    if len(estimates) < len(fits):
        return None
    rows, opened, fixed, broken = (
        sum(getattr(each, name) for each in estimates) for name in ("rows", "opened", "fixed", "broken")
    )
    names, moved = asked.names(n_classes), np.array([each.by_class for each in estimates]).sum(0)
    known = [c for c in asked.chosen_classes(n_classes) if c < len(moved)]  # an older estimate does not say
    by_class = {names[c]: moved[c].tolist() for c in known}
    return thousandths(rows, opened, fixed, broken, by_class)


def _case(part: Part, config: Config, seed: int) -> Case:
    """Return what is scored: the test rows of the network in use, with what was chosen for the one that was tuned."""
    asked = with_asked(part.in_use, config, seed, part.fold)
    if part.second is None:
        return case_of(asked, part.others, part.fitted, config)
    first = case_of(part.splits, part.others, part.fitted, config)
    return first.refitted(asked.train, asked.test, part.second.decision)


def _certified(fits: Sequence[Fitted]) -> bool | None:
    """Return whether every gate in use is certified; ``None`` where no certificate was asked for."""
    certificates = [fitted.certificate for fitted in fits]
    if all(each is None for each in certificates):
        return None
    return all(each is not None and each.granted for each in certificates)


def with_asked(splits: SplitOutputs, config: Config, seed: int, fold: int | None = None) -> SplitOutputs:
    """The test rows with what the evaluation asks for beyond them: columns of a table, another run's classifier."""
    if config.evaluate.metadata is not None:
        columns = tuple(name for name in config.evaluate.subgroups if name not in splits.test.metadata)
        splits = with_metadata(splits, config.evaluate.metadata, columns)
    if config.evaluate.baseline is not None:
        splits = with_baseline(splits, config.evaluate.baseline, seed, fold)
    return splits


def with_baseline(splits: SplitOutputs, place: str, seed: int, fold: int | None = None) -> SplitOutputs:
    """The test rows with the classifier of another run, which must have been trained on none of them."""
    folder = run_in_use(place, seed, "evaluate.baseline", fold)
    if splits.test.ids is None:
        raise InputFileError(f"the outputs carry no id, so that {folder.root} cannot be matched with them")
    table = OutputsTable.read(folder.outputs("test"))
    if (splits.class_names and table.class_names != splits.class_names) or len(table.class_names) != splits.n_classes:
        raise InputFileError(
            f"{folder.root} tells {', '.join(table.class_names)} apart, and these outputs "
            f"{', '.join(splits.class_names) or f'{splits.n_classes} classes'}: a baseline needs the same classes"
        )
    where = {name: i for i, name in enumerate(table.ids)}
    missing = [str(name) for name in splits.test.ids if str(name) not in where]
    if missing:
        raise InputFileError(
            f"{folder.root} did not test {len(missing):,} of the test images, for example {missing[0]!r}: give both "
            "runs the same split"
        )
    rows = torch.tensor([where[str(name)] for name in splits.test.ids])
    refuse_other_labels("evaluate.baseline", splits.test.ids.tolist(), splits.test.y, table.labels[rows])
    return splits._replace(test=replace(splits.test, p_baseline=table.posterior()[rows]))


def metadata_fingerprint(config: Config) -> dict[str, str]:
    """Changes when the table of further columns does; nothing where none was named."""
    path = config.evaluate.metadata
    if path is None:
        return {}
    try:
        return {"evaluate.metadata": fingerprint(Path(path).read_bytes())}
    except OSError as error:
        raise InputFileError(f"{path} is not a readable .csv table: {error}") from error


def with_metadata(splits: SplitOutputs, path: str | Path, columns: tuple[str, ...]) -> SplitOutputs:
    """The test rows with further columns from a CSV table, matched by id; rows that it lacks get empty entries."""
    table = read_frame(Path(path))
    key = next((name for name in ID_COLUMNS if name in table), None)
    if key is None:
        raise InputFileError(f"{path} has no column {' or '.join(ID_COLUMNS)} by which its rows could be matched")
    if splits.test.ids is None:
        raise InputFileError(f"the outputs carry no id, so that {path} cannot be matched with them")
    missing = [name for name in columns if name not in table]
    if missing:
        raise InputFileError(f"{path} has no column {missing[0]!r}; it has {', '.join(table.columns)}")
    for name in columns:
        said = table.groupby(key)[name].nunique()
        if (said > 1).any():
            raise InputFileError(f"{path} says different things of {said[said > 1].index[0]!r} in its column {name!r}")
    rows = table.drop_duplicates(key).set_index(key).reindex(splits.test.ids)
    if rows.isna().all(axis=None):
        raise InputFileError(f"{path} knows none of the test rows (the first is {str(splits.test.ids[0])!r})")
    added = {name: rows[name].fillna("").to_numpy(dtype=np.str_) for name in columns}
    return splits._replace(test=replace(splits.test, metadata={**splits.test.metadata, **added}))
