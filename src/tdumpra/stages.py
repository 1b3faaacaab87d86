"""The stages of a run, each a function of what the one before left in the run's folder.

A stage whose inputs have not changed is not run again: checkpoints know their data, split, preprocessing and network,
tables know their encoder, the bank knows its tables.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import nn

from tdumpra.artifacts import fingerprint
from tdumpra.bank import PrototypeBank
from tdumpra.bank_health import BankHealth, bank_health
from tdumpra.checkpoint import read_networks
from tdumpra.checks import SPLITS
from tdumpra.config import Config
from tdumpra.data.manifest import Manifest
from tdumpra.data.pipeline import Pipeline, make_pipeline
from tdumpra.data.prepare import Prepared, prepare
from tdumpra.data.sources import open_source, with_external_test
from tdumpra.data.splits import Split, make_split
from tdumpra.data.transform import EvalTransform
from tdumpra.encode import encode
from tdumpra.errors import ArtifactError, MissingExtraError, TdumpraError
from tdumpra.network import Built, Encoding, build_network
from tdumpra.output_files import SplitOutputs, read_outputs
from tdumpra.predict import Encoder
from tdumpra.run_folder import RunFolder
from tdumpra.tables import OutputsTable, split_outputs
from tdumpra.train import Task, TrainingError, train
from tdumpra.train_screen import Screen
from tdumpra.tune import PRESETS


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Images that can be read, and which part each belongs to."""

    prepared: Prepared
    codes: np.ndarray  # 0 train, 1 val, 2 test, by record of ``prepared``
    split: Split

    @property
    def manifest(self) -> Manifest:
        """The records whose pixels can be had."""
        return self.prepared.manifest

    def rows(self, *parts: str) -> np.ndarray:
        """Numbers of the images of these parts, in the manifest's order."""
        wanted = [SPLITS.index(part) for part in parts]
        return np.flatnonzero(np.isin(self.codes, wanted))


class Encoders(NamedTuple):
    """The networks of a run after training, and the preprocessing they share."""

    student: nn.Module
    teacher: nn.Module | None
    transform: EvalTransform
    identity: dict[str, str]


def open_data(config: Config, console: Console) -> Dataset:
    """Read the source, split it, and decode its images once.

    The split is drawn over all records before any pixel is looked at, so that a broken image moves no other one.
    """
    data = config.data
    manifest = open_source(data.source, allow_missing=data.allow_missing, group_column=data.group_by)
    if data.test_source is not None:
        manifest = with_external_test(manifest, open_source(data.test_source, allow_missing=data.allow_missing))
    if data.split_file is not None:
        split = Split.read(data.split_file, manifest)
    else:
        split = make_split(
            manifest, data.protocol, seed=data.split_seed, test_share=data.test_share, val_share=data.val_share
        )
    prepared = prepare(manifest, data.cache, data.framing, progress=console.is_terminal)
    where = dict(zip(split.ids, split.codes.tolist(), strict=True))
    codes = np.array([where[record.id] for record in prepared.manifest.records], dtype=np.int8)
    for note in (*manifest.notes, *split.notes, *prepared.notes):
        console.print(f"[yellow]note:[/] {note}", soft_wrap=True)
    return Dataset(prepared, codes, split)


def train_stage(
    config: Config, dataset: Dataset, folder: RunFolder, *, seed: int, fabric: Fabric, console: Console
) -> None:
    """Train student and teacher, from the last checkpoint if there is one."""
    if config.network.finished:
        return
    torch.manual_seed(seed)  # the heads, and the backbone where it has no weights
    built = build_network(config.network, len(dataset.manifest.class_names))
    transform = _transform(config, built)
    labels = torch.from_numpy(dataset.manifest.labels).to(fabric.device)
    parts = ("train", "val") if config.train.train_on_val else ("train",)
    rows = dataset.rows(*parts)
    _check_classes(dataset, rows)
    task = Task(
        pipeline=_pipeline(config, dataset, transform, fabric),
        labels=labels,
        train=rows,
        validation=dataset.rows("val") if "val" not in parts else np.empty(0, np.int64),
        ids=tuple(record.id for record in dataset.manifest.records),
        n_classes=len(dataset.manifest.class_names),
        identity=_identity(config, dataset, transform),
    )
    screen = Screen(
        console, name=f"seed {seed}", quiet=not fabric.is_global_zero, tensorboard=_tensorboard(config, folder, fabric)
    )
    try:
        train(built.network, task, config.train, folder, seed=seed, fabric=fabric, screen=screen)
    except torch.cuda.OutOfMemoryError as error:
        raise _out_of_memory(config) from error
    except RuntimeError as error:
        if "not enough memory" in str(error) or "out of memory" in str(error):
            raise _out_of_memory(config) from error
        raise


def load_encoders(config: Config, dataset: Dataset, folder: RunFolder) -> Encoders:
    """The networks that training left, or the finished classifier."""
    built = build_network(
        config.network if config.network.finished else replace(config.network, weights="none"),
        len(dataset.manifest.class_names),
    )
    if config.network.finished:
        transform = _transform(config, built)
        state = built.network.state_dict()
        identity = _identity(config, dataset, transform)
        encoder = Encoder(network=config.network, transform=transform, state=state)
        return Encoders(built.network, None, transform, {**identity, "encoder": encoder.fingerprint})
    path = folder.checkpoint(config.embed.checkpoint)
    if not path.exists():
        raise ArtifactError(f"{path} does not exist: run  tdumpra train  first")
    student, teacher, identity = read_networks(path)
    transform = _transform(config, built)
    expected = _identity(config, dataset, transform)
    differing = [key for key in expected if identity.get(key) != expected[key]]
    if differing:
        raise ArtifactError(f"{path} was trained with other {' and '.join(differing)} than this configuration names")
    networks = [
        built.network,
        build_network(replace(config.network, weights="none"), len(dataset.manifest.class_names)).network,
    ]
    for network, state in zip(networks, (student, teacher), strict=True):
        network.load_state_dict(state)
    encoders = [Encoder(network=config.network, transform=transform, state=state) for state in (student, teacher)]
    weights = fingerprint(*(encoder.fingerprint for encoder in encoders))
    return Encoders(networks[0], networks[1], transform, {**expected, "encoder": weights})


def embed_stage(config: Config, dataset: Dataset, folder: RunFolder, *, fabric: Fabric, console: Console) -> bool:
    """Write the three tables; whether there was anything to do."""
    encoders = load_encoders(config, dataset, folder)
    if all(_is_current(folder.outputs(part), encoders.identity) for part in SPLITS):
        return False
    pipeline = _pipeline(config, dataset, encoders.transform, fabric)
    networks = [n.to(fabric.device) for n in (encoders.student, encoders.teacher) if n is not None]
    for part in SPLITS:
        rows = dataset.rows(part)
        if not len(rows):
            raise TdumpraError(f"no image is left for {part}: the bank, the tuning and the test all need some")
        encodings = encode(networks, pipeline, rows, batch_size=config.embed.batch_size, fabric=fabric)
        if fabric.is_global_zero:
            _table(dataset, rows, encodings, encoders.identity).write(folder.outputs(part))
            console.print(f"embedded {len(rows):,} images of {part}", soft_wrap=True)
    fabric.barrier()
    return True


def read_tables(folder: RunFolder) -> dict[str, OutputsTable]:
    """The tables of a run; says which stage to run if one is missing."""
    for part in SPLITS:
        if not folder.outputs(part).exists():
            raise ArtifactError(f"{folder.outputs(part)} does not exist: run  tdumpra embed  first")
    return {part: OutputsTable.read(folder.outputs(part)) for part in SPLITS}


def bank_stage(config: Config, folder: RunFolder) -> tuple[PrototypeBank, BankHealth]:
    """Cluster the training embeddings and look the bank over."""
    tables = read_tables(folder)
    train_table = tables["train"]
    outputs = table_outputs(config, tables).train
    bank = PrototypeBank.fit(
        outputs.z,
        outputs.y,
        config.bank.n_prototypes,
        outputs.groups,
        len(train_table.class_names),
        ids=outputs.ids,
        merge_above=PRESETS[config.tune.preset].merge_above,
    )
    bank.save(folder.bank)
    sources = train_table.metadata.get("source") or train_table.metadata.get("dataset")
    return bank, bank_health(bank, train_table.class_names, outputs.z, outputs.y, sources)


def table_outputs(config: Config, tables: dict[str, OutputsTable]) -> SplitOutputs:
    """The run's tables as typed outputs, with the bank in the space that the configuration names."""
    if config.bank.space in ("teacher", "student"):
        return split_outputs(tables, space=config.bank.space, classifier=config.tune.classifier)
    others = read_tables(RunFolder(Path(config.bank.space)))
    joined = {part: tables[part].with_embedding(others[part]) for part in SPLITS}
    return split_outputs(joined, space="teacher", classifier=config.tune.classifier)


def outputs_for(config: Config, folder: RunFolder, seed: int) -> SplitOutputs:
    """The outputs that everything after embedding stands on: saved ones, or this run's own tables."""
    if config.outputs:
        return read_outputs(config.outputs[config.seeds.index(seed) % len(config.outputs)])
    return table_outputs(config, read_tables(folder))


def _transform(config: Config, built: Built) -> EvalTransform:
    return EvalTransform(framing=config.data.framing, size=config.network.image_size, mean=built.mean, std=built.std)


def _pipeline(config: Config, dataset: Dataset, transform: EvalTransform, fabric: Fabric) -> Pipeline:
    return make_pipeline(
        config.data.pipeline,
        dataset.prepared.images,
        augment=replace(config.augment, size=config.network.image_size),
        evaluation=transform,
        device=fabric.device,
        workers=config.data.workers,
    )


def _identity(config: Config, dataset: Dataset, transform: EvalTransform) -> dict[str, str]:
    return {
        "data": dataset.manifest.fingerprint,
        "split": dataset.split.fingerprint,
        "preprocessing": transform.fingerprint,
        "network": fingerprint(str(asdict(config.network))),
    }


def _check_classes(dataset: Dataset, rows: np.ndarray) -> None:
    present = np.unique(dataset.manifest.labels[rows])
    if len(present) < 2:
        raise TrainingError(f"the training images show {len(present)} class: there is nothing to tell apart")


def _is_current(path: Path, identity: dict[str, str]) -> bool:
    return path.exists() and OutputsTable.read(path).identity == identity


def _table(dataset: Dataset, rows: np.ndarray, encodings: list[Encoding], identity: dict[str, str]) -> OutputsTable:
    records = [dataset.manifest.records[row] for row in rows]
    keys = sorted({key for record in records for key in record.meta})
    teacher = encodings[1] if len(encodings) > 1 else None
    return OutputsTable(
        ids=tuple(record.id for record in records),
        groups=tuple(record.group for record in records),
        labels=torch.tensor([record.label for record in records]),
        logits=encodings[0].logits,
        z_student=encodings[0].z,
        logits_teacher=None if teacher is None else teacher.logits,
        z_teacher=None if teacher is None else teacher.z,
        class_names=dataset.manifest.class_names,
        metadata={key: tuple(record.meta.get(key, "") for record in records) for key in keys},
        identity=identity,
    )


def _tensorboard(config: Config, folder: RunFolder, fabric: Fabric) -> object | None:
    if not config.train.tensorboard or not fabric.is_global_zero:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("tensorboard", "track", "train.tensorboard") from error
    return SummaryWriter(folder.root / "tensorboard")


def _out_of_memory(config: Config) -> TrainingError:
    train_config = config.train
    return TrainingError(
        f"out of memory with train.batch_size = {train_config.batch_size} ({2 * train_config.batch_size} views of "
        f"{config.network.image_size} px): lower it (train.accumulate keeps the step the same), or use "
        'train.precision = "bf16-mixed"'
    )
