"""What a run left behind, gathered for its report. What is not there is named with the reason, and the rest goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tdumpra.artifacts import read_json
from tdumpra.attach import EVALUATION, MODEL
from tdumpra.bank_health import BankHealth, bank_health
from tdumpra.config import Config, read_config
from tdumpra.data.manifest import Reader, Record
from tdumpra.data.sources import open_source, with_external_test
from tdumpra.data.store import frame_record
from tdumpra.data.transform import Framing
from tdumpra.decision import Decided, Decision
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.estimator import DualPathClassifier
from tdumpra.fitting import fit
from tdumpra.output_files import SplitOutputs, read_outputs
from tdumpra.predict import Model
from tdumpra.run_folder import RunFolder
from tdumpra.run_outputs import SavedRun, read_saved
from tdumpra.table_stages import read_tables, table_outputs
from tdumpra.tables import OutputsTable

NO_FILE = "outputs came from a file"


@dataclass(frozen=True, slots=True, eq=False)
class Pictures:
    """The images of a run's data, read one by one as they are needed."""

    records: Mapping[str, Record]
    reader: Reader
    framing: Framing

    def read(self, image: str) -> np.ndarray | None:
        """The framed pixels of an image, or nothing where it cannot be read any more."""
        if image not in self.records:
            return None
        try:
            return frame_record(self.records[image], self.reader, self.framing)
        except (TdumpraError, OSError):
            return None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Material:
    """One seed of a run, or one file of outputs."""

    name: str
    evaluation: Mapping[str, Any]
    class_names: tuple[str, ...]
    splits: SplitOutputs | None = None
    decision: Decision | None = None
    decided: Decided | None = None  # of the test rows
    health: BankHealth | None = None
    thumbnails: Mapping[str, Any] = field(default_factory=dict)  # of the bank's exemplars, by id
    pictures: Pictures | None = None
    config: Config | None = None
    settings: str = ""  # as TOML or JSON
    metrics: list[dict[str, Any]] = field(default_factory=list)
    environment: Mapping[str, Any] | None = None
    identity: Mapping[str, str] = field(default_factory=dict)  # fingerprints
    split_notes: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)  # section to reason


def of_folder(root: Path, evaluation: Mapping[str, Any] | None = None) -> Material:
    """The folder of one seed of an image run; says which stage to run where one is missing."""
    folder = RunFolder(root)
    config = read_config(folder.config)
    _refuse_incomplete(folder, config, evaluated=evaluation is not None)
    evaluation = evaluation or read_json(folder.evaluation, kind="evaluation", schema=1)
    tables = read_tables(folder)
    splits, train = table_outputs(config, tables), tables["train"]
    missing: dict[str, str] = {}
    if folder.model.exists():
        model = Model.read(folder.model)
        decision, thumbnails = model.decision, model.thumbnails
        if not thumbnails:
            missing["thumbnails"] = "the model was saved without thumbnails: training images are named, not shown"
    else:
        decision, thumbnails = fit(splits, config.bank, config.tune).tuning.decision, {}
        missing["thumbnails"] = "the run has no model.safetensors, which keeps the pictures: write it with  tdumpra run"
    pictures = _pictures(config, tables["test"], missing)
    metrics = folder.read_metrics()
    if not any("loss" in row for row in metrics):
        why = "the classifier came finished" if config.network.finished else "metrics.jsonl is empty or not there"
        missing["training"] = f"no training curves: {why}"
    sources = train.metadata.get("source") or train.metadata.get("dataset")
    return Material(
        name=config.name if len(config.seeds) != 1 else f"{config.name}, seed {config.seeds[0]}",
        evaluation=evaluation,
        class_names=train.class_names,
        splits=splits,
        decision=decision,
        decided=_decided(decision, splits, evaluation, root),
        health=bank_health(decision.bank, train.class_names, splits.train.z, splits.train.y, sources),
        thumbnails=thumbnails,
        pictures=pictures,
        config=config,
        settings=folder.config.read_text(encoding="utf-8"),
        metrics=metrics,
        environment=_environment(root),
        identity={**train.identity, "outputs": splits.fingerprint},
        split_notes=_split_notes(folder.split, config),
        missing=missing,
    )


def of_attached(root: Path) -> Material:
    """What ``tdumpra attach`` wrote; the outputs themselves are read again if they are still where they were."""
    evaluation = read_json(root / EVALUATION, kind="evaluation", schema=1)
    if not (root / MODEL).exists():
        raise ArtifactError(f"{root} has no {MODEL}: run  tdumpra attach OUTPUTS --out {root}  again")
    decision = DualPathClassifier.load(root / MODEL).decision_
    names = tuple(evaluation["per_class"]["student"])
    missing = {
        "training": f"no training curves: {NO_FILE}",
        "pictures": f"no pictures: {NO_FILE}",
        "thumbnails": f"training cases are named, not shown: {NO_FILE}",
    }
    splits = _attached_outputs(evaluation, missing)
    return Material(
        name=Path(evaluation.get("source", root.name)).name,
        evaluation=evaluation,
        class_names=names,
        splits=splits,
        decision=decision,
        decided=splits and _decided(decision, splits, evaluation, root),
        health=splits and bank_health(decision.bank, names, splits.train.z, splits.train.y),
        settings=json.dumps(evaluation["settings"], indent=2, ensure_ascii=False),
        environment=_environment(root),
        identity={"outputs": evaluation["settings"]["outputs"]},
        missing=missing,
    )


def of_saved(run: SavedRun, config: Config, evaluation: Mapping[str, Any], settings: str) -> Material:
    """One file of outputs that a configuration names; the gate is tuned again, as it was."""
    splits = read_saved(run, config)
    decision = fit(splits, config.bank, config.tune).tuning.decision
    names = tuple(evaluation["per_class"]["student"])
    return Material(
        name=f"{run.model}, seed {run.seed}",
        evaluation=evaluation,
        class_names=names,
        splits=splits,
        decision=decision,
        decided=_decided(decision, splits, evaluation, run.path),
        health=bank_health(decision.bank, names, splits.train.z, splits.train.y),
        config=config,
        settings=settings,
        identity={"outputs": splits.fingerprint},
        missing={
            "training": f"no training curves: {NO_FILE}",
            "pictures": f"no pictures: {NO_FILE}",
            "thumbnails": f"training cases are named, not shown: {NO_FILE}",
        },
    )


def _refuse_incomplete(folder: RunFolder, config: Config, *, evaluated: bool) -> None:
    """One sentence that names the stage to run."""
    root, stage = folder.root, None
    if not all(folder.outputs(part).exists() for part in ("train", "val", "test")):
        trained = config.network.finished or folder.checkpoint(config.embed.checkpoint).exists()
        stage = "embed" if trained else "train"
    elif not evaluated and not folder.evaluation.exists():
        stage = "evaluate"
    if stage is not None:
        lacking = {"train": "no trained network", "embed": "no outputs", "evaluate": "no evaluation.json"}[stage]
        raise ArtifactError(f"{root} has {lacking} yet: run  tdumpra {stage} CONFIG  with the TOML file of this run")


def _decided(decision: Decision, splits: SplitOutputs, evaluation: Mapping[str, Any], place: Path) -> Decided:
    """The test rows, decided again; refused if that is not what was evaluated."""
    decided = decision.decide(splits.test.p, splits.test.z)
    wrong_before, wrong = (p.argmax(1) != splits.test.y for p in (decided.p_cls, decided.p))
    now = (int(decided.opened.sum()), int((wrong_before & ~wrong).sum()), int((wrong & ~wrong_before).sum()))
    then = tuple(evaluation["gate"][key] for key in ("opened", "fixed", "broken"))
    if now != then:
        raise ArtifactError(
            f"the evaluation of {place} belongs to other outputs or another gate (opened, fixed, broken were {then} and "
            f"are now {now}): evaluate again"
        )
    return decided


def _attached_outputs(evaluation: Mapping[str, Any], missing: dict[str, str]) -> SplitOutputs | None:
    path = evaluation.get("source")
    try:
        if path is None:
            raise ArtifactError("evaluation.json does not say where the outputs lie")
        splits = read_outputs(path)
    except TdumpraError as error:
        missing["cases"] = f"no single cases, curves or health of the bank: {error}"
        return None
    if splits.fingerprint != evaluation["settings"]["outputs"]:
        missing["cases"] = f"no single cases, curves or health of the bank: {path} has changed since it was attached"
        return None
    return splits


def _pictures(config: Config, test: OutputsTable, missing: dict[str, str]) -> Pictures | None:
    data = config.data
    try:
        manifest = open_source(data.source, allow_missing=True, group_column=data.group_by)
        if data.test_source is not None:
            manifest = with_external_test(manifest, open_source(data.test_source, allow_missing=True))
    except (TdumpraError, ValueError, OSError) as error:
        missing["pictures"] = f"no pictures of the cases: {error}"
        return None
    labels = {record.id: record.label for record in manifest.records}
    if any(labels.get(name, y) != y for name, y in zip(test.ids, test.labels.tolist(), strict=True)):
        missing["pictures"] = f"no pictures of the cases: the labels of {data.source} have changed since the run"
        return None
    records = {record.id: record for record in manifest.records}
    return Pictures(records, manifest.reader, data.framing)


def _environment(root: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((root / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _split_notes(path: Path, config: Config) -> tuple[str, ...]:
    """Protocol, seed and what the split has to say of itself."""
    try:
        split = read_json(path, kind="split", schema=1)
    except ArtifactError as error:
        return (f"the split's own file is not there: {error}",)
    drawn = f"protocol “{split['protocol']}”, split seed {split['seed']}, source {config.data.source}"
    return (drawn, *split["notes"])
