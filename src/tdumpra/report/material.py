"""Gather what a run left behind for its report. What is not there is named with the reason, and the rest goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tdumpra.artifacts import read_artifact, read_json
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.store import frame_record
from tdumpra.data.manifest import Reader, Record
from tdumpra.data.sources import open_source, with_external_test
from tdumpra.data.splits import split_words
from tdumpra.errors import ArtifactError, TdumpraError, UnreadableError
from tdumpra.foreign import cannot_read, is_fault, reading
from tdumpra.method.bank_health import BankHealth
from tdumpra.method.decision import Decided, Decision
from tdumpra.method.output_files import SplitOutputs
from tdumpra.networks.model_file import Model
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.outputs import Outputs, SavedOutputs, TrainedOutputs
from tdumpra.runs.refit import folder_in_use
from tdumpra.runs.steps import digest, read_document
from tdumpra.runs.table_stages import GATE_KIND, GATE_SCHEMA, evaluation_made_from, gate_of, health_of, refitted
from tdumpra.runs.tables import OutputsTable, read_tables
from tdumpra.tuning.fit import Fitted
from tdumpra.values import check_text

MISSING_FROM_FILE = {
    "training": "no training curves: outputs came from a file",
    "pictures": "no pictures: outputs came from a file",
    "thumbnails": "training cases are named, not shown: outputs came from a file",
}


@dataclass(frozen=True, slots=True, eq=False)
class Pictures:
    """The images of a run's data, read one by one as they are needed."""

    records: Mapping[str, Record]
    reader: Reader
    framing: Framing

    def read(self, image: str) -> np.ndarray | None:
        """Return the framed pixels of an image, or nothing where it cannot be read any more."""
        if image not in self.records:
            return None
        try:
            return frame_record(self.records[image], self.reader, self.framing)
        except (TdumpraError, OSError) as error:
            if is_fault(error) or is_fault(error.__cause__):
                raise UnreadableError(f"cannot read the image {image}: {error}") from error
            return None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Material:
    """One seed of a run, or one file of outputs."""

    name: str
    evaluation: Mapping[str, Any]
    class_names: tuple[str, ...]
    splits: SplitOutputs | None = None
    decision: Decision | None = None
    tuned: Decision | None = None  # as it was tuned: of the first network, where a second one is in use
    decided: Decided | None = None  # of the test rows
    health: BankHealth | None = None
    tuning: Mapping[str, Any] = field(default_factory=dict)  # objective, base and contenders, as in gate.json
    thumbnails: Mapping[str, Any] = field(default_factory=dict)  # of the bank's exemplars, by id
    pictures: Pictures | None = None
    config: Config | None = None
    settings: str = ""  # as TOML or JSON
    metrics: list[dict[str, Any]] = field(default_factory=list)
    environment: Mapping[str, Any] | None = None
    identity: Mapping[str, str] = field(default_factory=dict)  # fingerprints
    split_notes: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)  # section to reason


def gather(outputs: Outputs) -> Material:
    """Read what the stages left for one model and seed; says which stage to run where one is missing."""
    folder = RunFolder(outputs.place)
    if isinstance(outputs, TrainedOutputs):
        _refuse_incomplete(outputs)
    if not folder.evaluation.exists():
        raise ArtifactError(f"{folder.root} has no evaluation.json yet: run  tdumpra evaluate CONFIG  first")
    evaluation = read_document(folder.evaluation, "evaluation")
    gate = read_artifact(folder.gate, kind=GATE_KIND, schema=GATE_SCHEMA)
    if gate.meta.get("made_from") != evaluation.get("inputs", {}).get("gate"):
        raise ArtifactError(f"{folder.evaluation} is of another gate than {folder.gate}: run  tdumpra evaluate  again")
    with reading(folder.gate, "tdumpra gate", ArtifactError):
        decision = Fitted.from_artifact(gate).tuning.decision
    missing: dict[str, str] = dict(MISSING_FROM_FILE) if isinstance(outputs, SavedOutputs) else {}
    splits = _outputs(outputs, evaluation, missing)
    tuned, health, table = decision, None, None
    of_training: dict[str, Any] = {}
    if isinstance(outputs, TrainedOutputs):
        of_training, table = _of_training(outputs, missing), folder_in_use(outputs).outputs("train")
    if splits is not None:
        train, second = splits.train, refitted(outputs, tuned)
        if second is not None:
            splits, train, decision = splits._replace(test=second.rows.test), second.rows.train, second.decision
        health = health_of(decision.bank, train, splits.class_names, table)
    return Material(
        name=outputs.name,
        evaluation=evaluation,
        splits=splits,
        decision=decision,
        tuned=tuned,
        decided=splits and decision.decide(splits.test.p, splits.test.z),
        health=health,
        tuning=gate_of(outputs),
        config=outputs.config,
        settings=folder.config.read_text(encoding="utf-8") if folder.config.exists() else "",
        environment=_environment(folder.root),
        missing=missing,
        **{"identity": {"outputs": evaluation["made_from"]}, "class_names": _shown_names(evaluation), **of_training},
    )


def _outputs(outputs: Outputs, evaluation: Mapping[str, Any], missing: dict[str, str]) -> SplitOutputs | None:
    """Load the outputs that were evaluated. A saved file may be gone or changed: the report then has no cases."""
    try:
        splits = outputs.load()
        if evaluation["inputs"]["outputs"] != digest(outputs.own_identity()):
            raise ArtifactError(f"{outputs.origin} has changed since it was evaluated: run  tdumpra evaluate  again")
    except TdumpraError as error:
        if isinstance(outputs, TrainedOutputs) or isinstance(error, UnreadableError):
            raise
        missing["cases"] = f"no single cases, curves or health of the bank: {error}"
        return None
    if evaluation["made_from"] != evaluation_made_from(outputs):
        raise ArtifactError(
            f"the settings of {outputs.place} have changed since it was evaluated: run  tdumpra evaluate  again"
        )
    return splits


def _of_training(outputs: TrainedOutputs, missing: dict[str, str]) -> dict[str, Any]:
    """Gather what a run on images has beyond outputs: pictures, curves, the split."""
    config, folder = outputs.config, outputs.folder
    tables, metrics = read_tables(folder_in_use(outputs)), folder.read_metrics()
    if config.network.as_it_is:
        missing["training"] = "no training curves: the classifier came finished"
    elif not any("loss" in row or "validation" in row for row in metrics):
        missing["training"] = "no training curves: metrics.jsonl is empty or not there"
    elif not any("loss" in row for row in metrics):
        missing["training_loss"] = (
            f"no curve of the training loss: it is noted every {config.train.log_every:,} steps (train.log_every), and "
            "the run took fewer"
        )
    return {
        "class_names": tables["train"].class_names,
        "thumbnails": _thumbnails(RunFolder(outputs.place).model, missing),
        "pictures": _pictures(config, tables["test"], missing),
        "metrics": metrics,
        "identity": tables["train"].identity,
        "split_notes": _split_notes(folder.split, config),
    }


def _thumbnails(model: Path, missing: dict[str, str]) -> Mapping[str, Any]:
    """Read the pictures of the bank's exemplars from the model."""
    if not model.exists():
        missing["thumbnails"] = "the run has no model.safetensors, which keeps the pictures: write it with  tdumpra run"
        return {}
    try:
        found = Model.read(model).thumbnails
    except ArtifactError as error:
        missing["thumbnails"] = f"training images are named, not shown: {error}"
        return {}
    if not found:
        missing["thumbnails"] = "the model was saved without thumbnails: training images are named, not shown"
    return found


def _shown_names(evaluation: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the classes; where there are but numbers, words that can be told from other numbers."""
    names = tuple(evaluation["per_class"]["student"])
    return tuple(f"class {name}" for name in names) if all(name.isdigit() for name in names) else names


def _environment(root: Path) -> dict[str, Any] | None:
    """Read ``environment.json``, where it is there and whole."""
    try:
        found = json.loads((root / "environment.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise cannot_read(root / "environment.json", error, ArtifactError) from error
    return found if isinstance(found, dict) else None


def _refuse_incomplete(outputs: TrainedOutputs) -> None:
    """Name the stage to run, in one sentence."""
    folder, config = outputs.folder, outputs.config
    if folder.has_tables:
        return
    trained = config.network.as_it_is or folder.checkpoint(config.embed.checkpoint).exists()
    stage, lacking = ("embed", "no outputs") if trained else ("train", "no trained network")
    raise ArtifactError(f"{folder.root} has {lacking} yet: run  tdumpra {stage} CONFIG  with the TOML file of this run")


def _pictures(config: Config, test: OutputsTable, missing: dict[str, str]) -> Pictures | None:
    data = config.data
    try:
        manifest = open_source(data.source, allow_missing=True, group_column=data.group_by)
        if data.test_source is not None:
            manifest = with_external_test(manifest, open_source(data.test_source, allow_missing=True))
    except UnreadableError:
        raise
    except (TdumpraError, ValueError) as error:
        missing["pictures"] = (
            f"no pictures of the cases: {error}. The report looks for them where the run's settings say, "
            f"{data.source}: write it again with  tdumpra report  from a folder in which that leads to the images"
        )
        return None
    labels = {record.id: record.label for record in manifest.records}
    if any(labels.get(name, y) != y for name, y in zip(test.ids, test.labels.tolist(), strict=True)):
        missing["pictures"] = f"no pictures of the cases: the labels of {data.source} have changed since the run"
        return None
    records = {record.id: record for record in manifest.records}
    return Pictures(records, manifest.reader, data.framing)


def _split_notes(path: Path, config: Config) -> tuple[str, ...]:
    """Return protocol, seed and the notes of the split."""
    try:
        split = read_json(path, kind="split", schema=1)
    except ArtifactError as error:
        return (f"the split's own file is not there: {error}",)
    with reading(path, "tdumpra split", ArtifactError):
        notes = [check_text(note, "notes") for note in split["notes"]]
        return (f"{split_words(split)}, source {config.data.source}", *notes)
