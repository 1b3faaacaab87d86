"""``model.safetensors`` from a run's folder: everything that prediction needs, bound together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from tdumpra.data.dataset import Dataset
from tdumpra.errors import ArtifactError
from tdumpra.method.bank import Exemplar, PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.networks.model_file import Encoder, Model
from tdumpra.networks.training_images import thumbnail
from tdumpra.runs.config import Config, read_config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.kept_rows import evaluation_in_brief, first_entry, record_of
from tdumpra.runs.outputs import Outputs, TrainedOutputs
from tdumpra.runs.refit import folder_in_use, refit_identity
from tdumpra.runs.steps import Step, digest
from tdumpra.runs.table_stages import MODEL_ONLY, evaluation_made_from, gate_made_from, refitted, tune_step
from tdumpra.runs.tables import OutputsTable, run_with_tables

if TYPE_CHECKING:
    from tdumpra.runs.pixel_stages import Encoders  # loads what trains, and most commands ask only whether to


def model_made_from(outputs: Outputs) -> str:
    """Name everything that the model depends on; its weights are named by the tables behind the gate."""
    asked = {name: getattr(outputs.config.bank, name) for name in MODEL_ONLY}
    return digest({"gate": gate_made_from(outputs), **asked, **refit_identity(outputs)})


def is_current(outputs: Outputs, *, evaluated: bool = False) -> bool:
    """Return whether the model was made from this gate and these settings; a damaged one was not.

    ``evaluated`` asks also whether the figures that it takes along are those of these settings.
    """
    try:
        model = Model.read(RunFolder(outputs.place).model)
    except ArtifactError:
        return False
    figures = (model.evaluation or {}).get("made_from")
    return model.identity.get("made_from") == model_made_from(outputs) and (
        not evaluated or figures == evaluation_made_from(outputs)
    )


def model_step(outputs: TrainedOutputs, dataset: Dataset) -> Step[Path]:
    """Bind networks, preprocessing, bank and thresholds together; writes ``model.safetensors``."""
    path = RunFolder(outputs.place).model

    def kept() -> Path | None:
        return path if is_current(outputs, evaluated=True) else None

    def make() -> Path:
        decision = tune_step(outputs).result().tuning.decision
        second = refitted(outputs, decision)
        decision = decision if second is None else second.decision
        model = assemble_model(outputs, dataset, decision, made_from=model_made_from(outputs))
        replace(model, evaluation=evaluation_in_brief(outputs)).write(path)
        return path

    return Step(name=f"{outputs.name}: model", kept=kept, make=make)


def assemble_model(outputs: TrainedOutputs, dataset: Dataset, decision: Decision, *, made_from: str = "") -> Model:
    """Put a model together: the run's networks, its preprocessing, the tuned gate, and pictures of the exemplars.

    Tables that another encoder made than the checkpoint holds are refused.
    """
    from tdumpra.runs.pixel_stages import load_encoders

    config, folder = outputs.config, folder_in_use(outputs)
    own = load_encoders(config, dataset.without_validation() if config.train.refit else dataset, folder, outputs.seed)
    _refuse_other_encoder(folder, own)
    classifier = own.student if config.tune.classifier == "student" else _teacher(own)
    matched = _matched(config, own, outputs.seed)
    if matched is not classifier:  # each network has one thing to say
        classifier, matched = classifier.without("projection"), matched.without("classifier")
    if decision.bank.n_classes != len(dataset.manifest.class_names):
        raise ArtifactError(
            f"the bank has {decision.bank.n_classes} classes, and the data have {len(dataset.manifest.class_names)}"
        )
    inputs = {**own.identity, "outputs": digest(outputs.own_identity())}
    return Model(
        decision=decision,
        class_names=dataset.manifest.class_names,
        classifier=classifier,
        retrieval=None if matched is classifier else matched,
        thumbnails=thumbnails(decision.bank, dataset) if config.bank.thumbnails else {},
        identity={
            **own.identity,
            "made_from": made_from,
            "classifier": classifier.fingerprint,
            "retrieval": matched.fingerprint,
        },
        record=record_of(outputs),
        lineage=first_entry(outputs, "run", inputs),
    )


def thumbnails(bank: PrototypeBank, dataset: Dataset) -> dict[str, Tensor]:
    """Small pictures (h, w, 3) of the bank's exemplars, by id."""
    number = {record.id: i for i, record in enumerate(dataset.manifest.records)}
    wanted = sorted({exemplar.id for exemplar in _exemplars(bank)} & number.keys())
    return {name: thumbnail(dataset.prepared.images.read(np.array([number[name]]))[0]) for name in wanted}


def _matched(config: Config, own: Encoders, seed: int) -> Encoder:
    """The network in whose space the bank lives; as in the tables, a finished classifier is its own teacher."""
    from tdumpra.runs.pixel_stages import read_encoders

    if config.bank.space == "student" or (config.bank.space == "teacher" and own.teacher is None):
        return own.student
    if config.bank.space == "teacher":
        return _teacher(own)
    folder = run_with_tables(config.bank.space, seed, fold=config.data.fold)
    others = read_config(folder.config)
    if config.train.refit and not others.network.as_it_is:
        folder = folder.refit
    table = OutputsTable.read(folder.outputs("train"))
    other = read_encoders(others, folder, len(table.class_names))
    _refuse_other_encoder(folder, other)
    return other.teacher or other.student


def _teacher(encoders: Encoders) -> Encoder:
    if encoders.teacher is None:
        raise ArtifactError("a finished classifier has no teacher")
    return encoders.teacher


def _refuse_other_encoder(folder: RunFolder, encoders: Encoders) -> None:
    table = OutputsTable.read(folder.outputs("train"))
    if table.identity["encoder"] != encoders.identity["encoder"]:
        raise ArtifactError(
            f"the tables in {folder.root / 'outputs'} were made by other weights than its checkpoint holds: embed again"
        )


def _exemplars(bank: PrototypeBank) -> Iterator[Exemplar]:
    return (exemplar for of_class in bank.exemplars for of_prototype in of_class for exemplar in of_prototype)
