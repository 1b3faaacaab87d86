"""From outputs to a fitted decision and a case to score, as a configuration asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from tdumpra import __version__
from tdumpra.artifacts import fingerprint
from tdumpra.core.calibration import class_prior
from tdumpra.errors import InputFileError
from tdumpra.evaluation.comparators import Case
from tdumpra.evaluation.evaluate import evaluate, gate_report
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import TrainOutputs, ValidationOutputs
from tdumpra.runs.config import BankConfig, Config, TuneConfig
from tdumpra.runs.tables import OutputsTable, refuse_other_labels, run_with_tables
from tdumpra.tuning.certify import Certificate, certify
from tdumpra.tuning.crossfit import Estimate, cross_fit
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.pooled import tune_over_seeds
from tdumpra.tuning.presets import PRESETS, Preset
from tdumpra.tuning.tune import Tuning, tune

COMPUTATION = 3  # raised whenever the same outputs and settings would give other figures: kept results are made again
ID_COLUMNS = ("id", "image_id", "image")


class Fitted(NamedTuple):
    """A tuned decision and what stands behind it."""

    tuning: Tuning
    certificate: Certificate | None
    estimate: Estimate | None
    pool: ValidationOutputs | None = None  # validation rows of all seeds, where they were chosen on
    unseen_bank: PrototypeBank | None = None  # one without validation rows, where the decision's own holds them

    @property
    def unseen(self) -> Decision:
        """The decision as it may be tried on validation rows: with a bank that does not hold them."""
        return replace(self.tuning.decision, bank=self.unseen_bank or self.tuning.decision.bank)


def fit(
    splits: SplitOutputs,
    bank: BankConfig,
    settings: TuneConfig,
    *,
    preset: Preset | None = None,
    others: Sequence[SplitOutputs] = (),
    judge: bool = False,
) -> Fitted:
    """Bank from train, everything else from validation.

    Args:
        splits: the outputs of one seed.
        bank: how its bank is made.
        settings: what is searched.
        preset: in place of the one that ``settings`` names.
        others: further seeds, whose validation rows have a say too, each scored by its own model and bank.
        judge: with ``others``, also estimate what the choice earns on a seed that had no say.
    """
    preset = preset or PRESETS[settings.preset]

    def make_bank(train: TrainOutputs) -> PrototypeBank:
        return PrototypeBank.fit(
            train.z, train.y, bank.n_prototypes, train.groups, splits.n_classes, ids=train.ids,
            merge_above=preset.merge_above, class_names=splits.class_names or None,
        )  # fmt: skip

    search: dict[str, Any] = {
        "preset": preset, "objective": settings.objective, "costs": settings.costs,
        "adjust_for_prior": settings.adjust_prior,
    }  # fmt: skip
    if settings.folds:
        crossed = cross_fit(
            splits.train, splits.validation, make_bank, folds=settings.folds, training_rows=settings.training_rows,
            **search,
        )  # fmt: skip
        return Fitted(crossed.tuning, None, crossed.estimate, unseen_bank=make_bank(splits.train))
    prior = class_prior(splits.train.y, splits.n_classes)
    if others:
        goal = Goal.check(settings.objective, settings.costs, n_classes=splits.n_classes)
        chosen = tune_over_seeds(
            [splits, *others], make_bank, preset=preset, goal=goal, adjust_for_prior=settings.adjust_prior, judge=judge
        )
        return Fitted(chosen.tuning, None, chosen.estimate, chosen.rows)
    if settings.certify:
        proof: dict[str, Any] = {"level": settings.level, "correction": settings.correction}
        return Fitted(*certify(make_bank(splits.train), splits.validation, prior, **search, **proof), None)
    return Fitted(tune(make_bank(splits.train), splits.validation, prior, **search), None, None)


def case_of(splits: SplitOutputs, fitted: Fitted, settings: TuneConfig) -> Case:
    """What :func:`tdumpra.evaluation.evaluate.evaluate` scores."""
    decision, goal = fitted.tuning.decision, Goal.check(settings.objective, settings.costs, n_classes=splits.n_classes)
    return Case(
        train=splits.train,
        validation=splits.validation,
        test=splits.test,
        decision=decision,
        decided=decision.decide(splits.test.p, splits.test.z),
        pool=fitted.pool,
        unseen_bank=fitted.unseen_bank,
        objective=goal.objective,
        costs=goal.costs,
    )


def gate_document(splits: SplitOutputs, fitted: Fitted, config: Config) -> dict[str, Any]:
    """The contents of ``gate.json``: what was tried, what won, by how much, on how many cases."""
    tuning, validation = fitted.tuning, splits.validation
    chosen_on = fitted.pool if fitted.pool is not None else validation
    decided = fitted.unseen.decide(validation.p, validation.z)
    report = gate_report(
        decided.p_cls, decided.p_sim, decided.p, validation.y, validation.groups, opened=decided.opened
    )
    return {
        "outputs": splits.fingerprint,
        "sentence": verdict(fitted),
        "objective": tuning.objective,
        "cases": {
            "rows": tuning.n_rows,
            "groups": None
            if validation.groups is None or chosen_on.groups is None
            else len(np.unique(chosen_on.groups)),
            "by_class": np.bincount(chosen_on.y.numpy(), minlength=splits.n_classes).tolist(),
            "disagreements": tuning.n_disagreements,
        },
        "tried": {
            "settings": tuning.n_tried,
            "five_clauses": tuning.curve.axes,
            "calibrated": tuning.calibrated_curve and tuning.calibrated_curve.axes,
        },
        "base": tuning.base.to_json(),
        "best": {"gate": tuning.best.gate, **tuning.best.to_json()},
        "contenders": [{"gate": each.gate, **each.to_json()} for each in tuning.contenders],
        "won_by": {
            "objective": tuning.best.objective - tuning.base.objective,
            "accuracy": tuning.best.accuracy - tuning.base.accuracy,
            **{name: report[name] for name in ("opened", "flipped", "fixed", "broken")},
        },
        "decision": {
            "thresholds": asdict(tuning.decision.thresholds),
            "calibrated": tuning.decision.calibrated and asdict(tuning.decision.calibrated),
            "guarantees_similarity": tuning.decision.guarantees_similarity,
            **{name: getattr(tuning.decision, name) for name in ("rule", "kappa", "tau", "temperature")},
            "prior_exponent": tuning.decision.prior_exponent,
            "fused_exponent": tuning.decision.fused_exponent,
        },
        "certificate": fitted.certificate and fitted.certificate.to_json(),
        "out_of_fold": fitted.estimate and {**fitted.estimate._asdict(), "sentence": fitted.estimate.sentence()},
        "notes": tuning.notes,
        "settings": asdict(config.tune),
    }


def evaluation_document(splits: SplitOutputs, fitted: Fitted, config: Config, seed: int = 0) -> dict[str, Any]:
    """The contents of ``evaluation.json`` for one seed."""
    asked = replace(config.evaluate, class_names=config.evaluate.class_names or splits.class_names)
    splits = with_asked(splits, config, seed)
    return {
        "version": __version__,
        "rows": {"train": len(splits.train), "val": len(splits.validation), "test": len(splits.test)},
        "grouped": splits.test.groups is not None,
        "tuning": verdict(fitted),
        "notes": fitted.tuning.notes,
        **evaluate(case_of(splits, fitted, config.tune), settings=asked),
    }


def verdict(fitted: Fitted) -> str:
    """How the gate was chosen, proven or estimated, in a sentence."""
    if fitted.certificate is not None:
        return f"{fitted.tuning.sentence()}; {fitted.certificate.sentence()}" if fitted.certificate.granted else (
            fitted.certificate.sentence()
        )  # fmt: skip
    estimate = "" if fitted.estimate is None else f"; {fitted.estimate.sentence()}"
    return fitted.tuning.sentence() + estimate


def with_asked(splits: SplitOutputs, config: Config, seed: int) -> SplitOutputs:
    """The test rows with what the evaluation asks for beyond them: columns of a table, another run's classifier."""
    if config.evaluate.metadata is not None:
        columns = tuple(name for name in config.evaluate.subgroups if name not in splits.test.metadata)
        splits = with_metadata(splits, config.evaluate.metadata, columns)
    if config.evaluate.baseline is not None:
        splits = with_baseline(splits, config.evaluate.baseline, seed)
    return splits


def with_baseline(splits: SplitOutputs, place: str, seed: int) -> SplitOutputs:
    """The test rows with the classifier of another run, which must have been trained on none of them."""
    folder = run_with_tables(place, seed, "evaluate.baseline")
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
    try:
        table = pd.read_csv(path, dtype=str)
    except (OSError, ValueError) as error:
        raise InputFileError(f"{path} is not a readable .csv table: {error}") from error
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
