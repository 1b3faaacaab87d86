"""What a run on images left behind: tables, model, curves, split, and the pictures, where they still are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tdumpra.artifacts import read_json
from tdumpra.data.sources import open_source, with_external_test
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.method.bank_health import bank_health
from tdumpra.method.output_files import SplitOutputs
from tdumpra.networks.model_file import Model
from tdumpra.report.material import Material, Pictures, decide_again, read_environment, tuning_document
from tdumpra.runs.config import Config, read_config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.table_stages import read_tables, table_outputs
from tdumpra.runs.tables import OutputsTable
from tdumpra.tuning.fit import fit


def of_folder(root: Path, evaluation: Mapping[str, Any] | None = None) -> Material:
    """The folder of one seed of an image run; says which stage to run where one is missing."""
    folder = RunFolder(root)
    config = read_config(folder.config)
    _refuse_incomplete(folder, config, evaluated=evaluation is not None)
    evaluation = evaluation or read_json(folder.evaluation, kind="evaluation", schema=1)
    tables = read_tables(folder)
    splits, train = table_outputs(config, tables, config.seeds[0]), tables["train"]
    missing: dict[str, str] = {}
    if folder.model.exists():
        model = Model.read(folder.model)
        decision, thumbnails = model.decision, model.thumbnails
        tuning = read_json(folder.gate, kind="gate", schema=1) if folder.gate.exists() else {}
        if not thumbnails:
            missing["thumbnails"] = "the model was saved without thumbnails: training images are named, not shown"
    else:
        fitted, thumbnails = fit(splits, config.bank, config.tune, others=_other_seeds(root, config)).tuning, {}
        decision, tuning = fitted.decision, tuning_document(fitted)
        missing["thumbnails"] = "the run has no model.safetensors, which keeps the pictures: write it with  tdumpra run"
    pictures = _pictures(config, tables["test"], missing)
    metrics = folder.read_metrics()
    if config.network.as_it_is:
        missing["training"] = "no training curves: the classifier came finished"
    elif not any("loss" in row or "validation" in row for row in metrics):
        missing["training"] = "no training curves: metrics.jsonl is empty or not there"
    elif not any("loss" in row for row in metrics):
        missing["training_loss"] = (
            f"no curve of the training loss: it is noted every {config.train.log_every:,} steps (train.log_every), and "
            "the run took fewer"
        )
    sources = train.metadata.get("source") or train.metadata.get("dataset")
    return Material(
        name=config.name if len(config.seeds) != 1 else f"{config.name}, seed {config.seeds[0]}",
        evaluation=evaluation,
        class_names=train.class_names,
        splits=splits,
        decision=decision,
        decided=decide_again(decision, splits, evaluation, root),
        health=bank_health(decision.bank, train.class_names, splits.train.z, splits.train.y, sources),
        tuning=tuning,
        thumbnails=thumbnails,
        pictures=pictures,
        config=config,
        settings=folder.config.read_text(encoding="utf-8"),
        metrics=metrics,
        environment=read_environment(root),
        identity={**train.identity, "outputs": splits.fingerprint},
        split_notes=_split_notes(folder.split, config),
        missing=missing,
    )


def _other_seeds(root: Path, config: Config) -> list[SplitOutputs]:
    """The outputs of the seeds beside this one, where one choice is made for all."""
    if not config.tune.pool_seeds or root.name != f"seed-{config.seeds[0]}":
        return []
    names = (path.parent.name[5:] for path in root.parent.glob("seed-*/config.toml"))
    seeds = sorted(int(name) for name in names if name.isdigit())
    folders = {seed: RunFolder(root.parent / f"seed-{seed}") for seed in seeds if seed != config.seeds[0]}
    return [table_outputs(config, read_tables(folder), seed) for seed, folder in folders.items()]


def _refuse_incomplete(folder: RunFolder, config: Config, *, evaluated: bool) -> None:
    """One sentence that names the stage to run."""
    root, stage = folder.root, None
    if not all(folder.outputs(part).exists() for part in ("train", "val", "test")):
        trained = config.network.as_it_is or folder.checkpoint(config.embed.checkpoint).exists()
        stage = "embed" if trained else "train"
    elif not evaluated and not folder.evaluation.exists():
        stage = "evaluate"
    if stage is not None:
        lacking = {"train": "no trained network", "embed": "no outputs", "evaluate": "no evaluation.json"}[stage]
        raise ArtifactError(f"{root} has {lacking} yet: run  tdumpra {stage} CONFIG  with the TOML file of this run")


def _pictures(config: Config, test: OutputsTable, missing: dict[str, str]) -> Pictures | None:
    data = config.data
    try:
        manifest = open_source(data.source, allow_missing=True, group_column=data.group_by)
        if data.test_source is not None:
            manifest = with_external_test(manifest, open_source(data.test_source, allow_missing=True))
    except (TdumpraError, ValueError, OSError) as error:
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
    """Protocol, seed and what the split has to say of itself."""
    try:
        split = read_json(path, kind="split", schema=1)
    except ArtifactError as error:
        return (f"the split's own file is not there: {error}",)
    drawn = f"protocol “{split['protocol']}”, split seed {split['seed']}, source {config.data.source}"
    return (drawn, *split["notes"])
