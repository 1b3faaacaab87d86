"""The stages after embedding: functions of saved outputs, without pixels, in seconds.

A stage whose inputs have not changed is not run again: the bank knows its tables, the gate its bank, and the evaluation
its gate.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from tdumpra.artifacts import fingerprint, read_artifact, read_json, write_artifact, write_json
from tdumpra.checks import SPLITS
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.method.bank import KIND as BANK_KIND
from tdumpra.method.bank import SCHEMA as BANK_SCHEMA
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.bank_health import BankHealth, bank_health
from tdumpra.method.output_files import SplitOutputs
from tdumpra.runs.config import Config, read_config
from tdumpra.runs.fitting import COMPUTATION, Fitted, evaluation_document, fit, gate_document, metadata_fingerprint
from tdumpra.runs.folder import RunFolder, run_folders, run_root
from tdumpra.runs.tables import OutputsTable, how_made, run_with_tables, split_outputs, tables_fingerprint
from tdumpra.tuning.presets import PRESETS

_SCHEMA = 1  # of gate.json and evaluation.json


def read_tables(folder: RunFolder) -> dict[str, OutputsTable]:
    """The tables of a run; says which stage to run if one is missing."""
    for part in SPLITS:
        if not folder.outputs(part).exists():
            raise ArtifactError(f"{folder.outputs(part)} does not exist: run  tdumpra embed  first")
    return {part: OutputsTable.read(folder.outputs(part)) for part in SPLITS}


class Banked(NamedTuple):
    """A run's bank, its health, and whether it had to be made."""

    bank: PrototypeBank
    health: BankHealth
    made: bool


def bank_stage(config: Config, folder: RunFolder, seed: int) -> Banked:
    """Cluster the training embeddings, unless that was done, and look the bank over."""
    splits = folder_outputs(config, folder, seed)
    metadata = OutputsTable.read(folder.outputs("train")).metadata
    return bank_of(splits, config, folder, metadata.get("source") or metadata.get("dataset"))


def bank_of(splits: SplitOutputs, config: Config, folder: RunFolder, sources: Sequence[str] | None = None) -> Banked:
    """The same for outputs from anywhere; ``sources`` says where each training row came from."""
    outputs, merge_above = splits.train, PRESETS[config.tune.preset].merge_above
    identity = {
        "outputs": splits.fingerprint,
        "settings": fingerprint(str((config.bank.n_prototypes, merge_above, splits.n_classes))),
    }
    bank = _current_bank(folder.bank, identity)
    made = bank is None
    if bank is None:
        bank = PrototypeBank.fit(
            outputs.z,
            outputs.y,
            config.bank.n_prototypes,
            outputs.groups,
            splits.n_classes,
            ids=outputs.ids,
            merge_above=merge_above,
            class_names=splits.class_names or None,
        )
        artifact = bank.to_artifact()
        meta = {**artifact.meta, "identity": identity}
        write_artifact(folder.bank, kind=BANK_KIND, schema=BANK_SCHEMA, tensors=artifact.tensors, meta=meta)
    names = splits.class_names or tuple(str(c) for c in range(bank.n_classes))
    return Banked(bank, bank_health(bank, names, outputs.z, outputs.y, sources), made)


def _current_bank(path: Path, identity: dict[str, str]) -> PrototypeBank | None:
    if not path.exists():
        return None
    try:
        artifact = read_artifact(path, kind=BANK_KIND, schema=BANK_SCHEMA)
    except ArtifactError:
        return None  # a damaged bank is made again
    return PrototypeBank.from_artifact(artifact) if artifact.meta.get("identity") == identity else None


def table_outputs(config: Config, tables: dict[str, OutputsTable], seed: int = 0) -> SplitOutputs:
    """The run's tables as typed outputs, with the bank in the space that the configuration names."""
    if config.network.frozen:
        raise TdumpraError("a frozen encoder has no classifier: name its folder as the bank.space of another run")
    if config.bank.space in ("teacher", "student"):
        return split_outputs(tables, space=config.bank.space, classifier=config.tune.classifier)
    folder = run_with_tables(config.bank.space, seed)
    others = read_tables(folder)
    if read_config(folder.config).network.frozen:  # it was trained on none of these images: any part's will do
        joined = {part: tables[part].with_embedding(*others.values()) for part in SPLITS}
    else:
        _refuse_other_split(tables, others, folder)
        joined = {part: tables[part].with_embedding(others[part]) for part in SPLITS}
    return split_outputs(joined, space="teacher", classifier=config.tune.classifier)


def _refuse_other_split(own: dict[str, OutputsTable], others: dict[str, OutputsTable], folder: RunFolder) -> None:
    """An encoder that was trained on this run's test images would hand back what it memorised."""
    ids = {part: set(table.ids) for part, table in own.items()}
    seen = set(others["train"].ids)
    if read_config(folder.config).train.train_on_val:
        seen |= set(others["val"].ids)
    crossing = {part: len(ids[part] & seen) for part in ("val", "test")}
    if any(crossing.values()):
        part, count = max(crossing.items(), key=lambda pair: pair[1])
        raise ArtifactError(
            f"the encoder in {folder.root} was trained on {count:,} of this run's {part} images: give both runs "
            "the same data.split_seed and data.val_by_seed, and leave train.train_on_val off"
        )


def folder_outputs(config: Config, folder: RunFolder, seed: int) -> SplitOutputs:
    """A run's own tables as what everything after embedding stands on."""
    tables = read_tables(folder)
    _refuse_other_settings(config, tables["train"].made, folder)
    return table_outputs(config, tables, seed)


def _refuse_other_settings(config: Config, made: Mapping[str, Any], folder: RunFolder) -> None:
    """Figures under settings that the tables were not made with would be another configuration's."""
    if not made:
        return  # a table of before, which does not say
    wanted = how_made(config.embed, finished=made["finished"])
    for name, value in wanted.items():
        if made.get(name) != value:
            raise ArtifactError(
                f"{folder.root / 'outputs'} was made with embed.{name} = {made.get(name)!r}, and it is {value!r} now: "
                "run  tdumpra embed  first"
            )
    if not made["finished"]:
        warnings.warn(f"{folder.root} was embedded before its training had come to its end", stacklevel=2)


def decision_inputs(config: Config, folder: RunFolder, seed: int) -> dict[str, str]:
    """What the gate, the evaluation and the model depend on; each of them carries it."""
    baseline = config.evaluate.baseline
    return {
        "outputs": fingerprint(
            folder_outputs(config, folder, seed).fingerprint,
            *(other.fingerprint for other in _other_seeds(config, seed)),
            *([] if baseline is None else [tables_fingerprint(baseline, seed, "evaluate.baseline")]),
            *metadata_fingerprint(config).values(),
        ),
        "settings": fingerprint(
            str((COMPUTATION, config.bank.n_prototypes, asdict(config.tune), asdict(config.evaluate)))
        ),
    }


def is_evaluated(config: Config, folder: RunFolder, seed: int) -> bool:
    """Whether the gate and the evaluation in the folder are those of the present outputs and settings."""
    wanted = decision_inputs(config, folder, seed)
    return all(
        _inputs_of(path, kind) == wanted for path, kind in ((folder.gate, "gate"), (folder.evaluation, "evaluation"))
    )


def _other_seeds(config: Config, seed: int) -> list[SplitOutputs]:
    """The outputs of the run's other seeds, where one choice is made for all."""
    if not config.tune.pool_seeds:
        return []
    folders = run_folders(run_root(config), config.seeds)
    return [folder_outputs(config, folder, other) for other, folder in folders.items() if other != seed]


def tune_stage(config: Config, folder: RunFolder, seed: int) -> Fitted:
    """Choose temperatures and thresholds on validation outputs, and keep everything that was tried."""
    splits = folder_outputs(config, folder, seed)
    fitted = fit(splits, config.bank, config.tune, others=_other_seeds(config, seed), judge=True)
    curve = {name: t for name, t in fitted.tuning.to_artifact().tensors.items() if name.startswith("curve.")}
    content = {
        "inputs": decision_inputs(config, folder, seed),
        **gate_document(splits, fitted, config),
        "curve": curve,
    }
    write_json(folder.gate, kind="gate", schema=_SCHEMA, content=content)
    return fitted


def evaluate_stage(config: Config, folder: RunFolder, seed: int, fitted: Fitted) -> dict[str, Any]:
    """Score everything on test outputs."""
    splits = folder_outputs(config, folder, seed)
    evaluation = {
        "inputs": decision_inputs(config, folder, seed),
        "name": config.name,
        **evaluation_document(splits, fitted, config, seed),
    }
    write_json(folder.evaluation, kind="evaluation", schema=_SCHEMA, content=evaluation)
    return evaluation


def _inputs_of(path: Path, kind: str) -> Any:
    try:
        return read_json(path, kind=kind, schema=_SCHEMA).get("inputs") if path.exists() else None
    except ArtifactError:
        return None  # a damaged file is made again
