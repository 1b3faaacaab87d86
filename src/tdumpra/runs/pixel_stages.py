"""The stages that touch pixels: training and embedding. What comes after them is in ``table_stages``.

A stage whose inputs have not changed is not run again: checkpoints know their data, split, preprocessing and network,
tables know their encoder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import Tensor

from tdumpra.artifacts import fingerprint
from tdumpra.data.batches.pipeline import Pipeline, make_pipeline
from tdumpra.data.dataset import Dataset, open_data
from tdumpra.data.images.appearance import appearance_of
from tdumpra.data.images.framing import EvalTransform
from tdumpra.data.manifest import Record
from tdumpra.errors import ArtifactError, MissingExtraError, TdumpraError
from tdumpra.networks.build import BuiltNetwork, Encoding, build_network
from tdumpra.networks.checkpoint import is_finished, read_networks, refuse_other_identity, training_identity
from tdumpra.networks.encode import encode, refuse_non_finite
from tdumpra.networks.model_file import Encoder
from tdumpra.networks.progress import OnValidated, Screen
from tdumpra.networks.train import Task, TrainingError, make_fabric, train
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.shared_state import share_state
from tdumpra.runs.tables import OutputsTable, how_made
from tdumpra.screen import progress, say, show_notes


class Encoders(NamedTuple):
    """The networks of a run after training, and what they belong to."""

    student: Encoder
    teacher: Encoder | None  # a network that was taken as it is has none
    identity: dict[str, str]


def train_stage(
    config: Config, dataset: Dataset, folder: RunFolder, *, seed: int, fabric: Fabric, console: Console,
    epochs: int | None = None, on_validated: OnValidated | None = None,
) -> bool:  # fmt: skip
    """Train student and teacher, from the last checkpoint if there is one; whether there was anything to do.

    With ``epochs``, end after so many, on the learning rates of a training to the end. ``on_validated`` is told the
    validation scores of each epoch; what it raises ends the training.
    """
    if config.network.as_it_is:
        return False
    share_state(folder, fabric)
    last, best = folder.checkpoint("last"), folder.checkpoint("best")
    if is_finished(last, training_identity(config.train, seed, epochs)):
        if best.exists():  # nobody may look at it before somebody takes it for this training's
            refuse_other_identity(best, read_networks(best).identity, read_networks(last).identity)
        return False
    torch.manual_seed(seed)  # the heads, and the backbone where it has no weights
    built = build_network(config.network, len(dataset.manifest.class_names))
    transform = _transform(config, built)
    labels = torch.from_numpy(dataset.manifest.labels).to(fabric.device)
    rows = dataset.rows("train")
    _check_classes(dataset, rows)
    task = Task(
        pipeline=_pipeline(config, dataset, transform, fabric),
        labels=labels,
        train=rows,
        validation=dataset.rows("val"),
        ids=tuple(record.id for record in dataset.manifest.records),
        n_classes=len(dataset.manifest.class_names),
        identity=_identity(config, dataset, transform),
        epochs=epochs,
    )
    writer = _tensorboard(config, folder, fabric)
    name = f"seed {seed}" if config.data.fold is None else f"seed {seed}, fold {config.data.fold}"
    screen = Screen(console, name=name, quiet=not fabric.is_global_zero, tensorboard=writer, on_validated=on_validated)
    try:
        with _memory_in_a_sentence(_training_memory(config)):
            train(built.network, task, config.train, folder, seed=seed, fabric=fabric, screen=screen)
    finally:
        if writer is not None:
            writer.close()
    return True


def train_and_embed(config: Config, folder: RunFolder, seed: int, on_validated: OnValidated | None = None) -> None:
    """Data, training and tables in one, where an experiment needs a variant that nobody has trained."""
    fabric = make_fabric(config.train)
    fabric.launch()
    console = Console(stderr=True, quiet=not fabric.is_global_zero)
    data = open_data(config.data, seed, progress=console.is_terminal)
    show_notes(data.notes, console)
    with claimed_by_first(folder, config, seed, fabric):
        if fabric.is_global_zero:
            data.split.write(folder.split)
        train_stage(config, data, folder, seed=seed, fabric=fabric, console=console, on_validated=on_validated)
        embed_stage(config, data, folder, seed=seed, fabric=fabric, console=console)


@contextmanager
def claimed_by_first(folder: RunFolder, config: Config, seed: int, fabric: Fabric) -> Iterator[None]:
    """The first process claims the folder for all; where it cannot, the others end too instead of waiting for it."""
    if fabric.world_size == 1:
        with folder.claim(config, seed):
            yield
        return
    if not fabric.is_global_zero:
        if not fabric.broadcast(False):
            raise SystemExit(2)
        yield
        return
    try:
        claim = folder.claim(config, seed)
        claim.__enter__()
    except TdumpraError:
        fabric.broadcast(False)
        raise
    try:
        fabric.broadcast(True)
        yield
    finally:
        claim.__exit__(None, None, None)


def load_encoders(
    config: Config, dataset: Dataset, folder: RunFolder, seed: int | None = None, epochs: int | None = None
) -> Encoders:
    """The networks that training left, or those that are taken as they are.

    Networks of other data are refused, and, given the ``seed``, those of another training.
    """
    encoders = read_encoders(config, folder, len(dataset.manifest.class_names))
    expected = _identity(config, dataset, encoders.student.transform)
    training = {} if seed is None else training_identity(config.train, seed, epochs)
    refuse_other_identity(folder.checkpoint(config.embed.checkpoint), encoders.identity, {**expected, **training})
    return encoders._replace(identity={**expected, "encoder": encoders.identity["encoder"]})


def read_encoders(config: Config, folder: RunFolder, n_classes: int) -> Encoders:
    """Read the networks without a look at the data; ``identity`` is what the checkpoint says of itself."""
    as_it_is = config.network.as_it_is
    path = folder.checkpoint(config.embed.checkpoint)
    if not as_it_is and not path.exists():
        raise ArtifactError(f"{path} does not exist: run  tdumpra train  first")
    built = build_network(config.network if as_it_is else replace(config.network, weights="none"), n_classes)

    def encoder(state: dict[str, Tensor]) -> Encoder:
        return Encoder(
            network=config.network, transform=_transform(config, built), state=state, views=config.embed.views,
            precision=config.embed.precision,
        )  # fmt: skip

    if as_it_is:
        student = encoder(built.network.state_dict())
        return Encoders(student, None, {"encoder": student.fingerprint})
    states = read_networks(path)
    student, teacher = encoder(states.student), encoder(states.teacher)
    weights = fingerprint(student.fingerprint, teacher.fingerprint)
    return Encoders(student, teacher, {**states.identity, "encoder": weights})


def embed_stage(
    config: Config, dataset: Dataset, folder: RunFolder, *, seed: int | None = None, fabric: Fabric, console: Console,
    epochs: int | None = None,
) -> bool:  # fmt: skip
    """Write the tables of the folder; whether there was anything to do."""
    share_state(folder, fabric)
    encoders = load_encoders(config, dataset, folder, seed, epochs)
    last = folder.checkpoint("last")
    finished = config.network.as_it_is or not last.exists() or is_finished(last)  # who keeps the best alone is done
    made = how_made(config.embed, finished=finished)
    if not finished:
        show_notes([f"{last} is not trained to its end: neither are the networks behind these outputs"], console)
    tables = {part: _current_table(folder.outputs(part), encoders.identity, made) for part in folder.parts}
    if all(tables.values()):
        if fabric.is_global_zero:
            for part, table in tables.items():
                _keep_metadata(table, dataset, folder.outputs(part))
        fabric.barrier()
        return False
    pipeline = _pipeline(config, dataset, encoders.student.transform, fabric)
    networks = [
        encoder.build(len(dataset.manifest.class_names), fabric.device, trusted=[config.network.backbone])
        for encoder in (encoders.student, encoders.teacher)
        if encoder is not None
    ]
    for part in folder.parts:
        rows = dataset.rows(part)
        if not len(rows):
            raise TdumpraError(f"no image is left for {part}: the bank, the tuning and the test all need some")
        with (
            _memory_in_a_sentence(f"embed.batch_size = {config.embed.batch_size}: lower it"),
            progress(f"embedding {part}", len(rows), console=console) as step,
        ):
            encodings = encode(
                networks, pipeline, rows, batch_size=config.embed.batch_size, fabric=fabric,
                precision=config.embed.precision, on_batch=lambda images: step(by=images),
            )  # fmt: skip
        refuse_non_finite(encodings, [dataset.manifest.records[row].id for row in rows])
        if fabric.is_global_zero:
            table = _table(dataset, rows, encodings, encoders.identity)
            replace(table, made=made).write(folder.outputs(part))
            say(f"embedded {len(rows):,} images of {part}", console)
    fabric.barrier()
    return True


def _transform(config: Config, built: BuiltNetwork) -> EvalTransform:
    return EvalTransform(framing=config.data.framing, size=config.network.image_size, mean=built.mean, std=built.std)


def _pipeline(config: Config, dataset: Dataset, transform: EvalTransform, fabric: Fabric) -> Pipeline:
    return make_pipeline(
        config.data.pipeline,
        dataset.prepared.images,
        augment=config.augment,
        evaluation=transform,
        device=fabric.device,
        workers=config.data.workers,
    )


def _identity(config: Config, dataset: Dataset, transform: EvalTransform) -> dict[str, str]:
    return {
        "data": dataset.manifest.fingerprint,
        "split": dataset.split.fingerprint,
        "preprocessing": transform.fingerprint,
        "network": fingerprint(str(config.network.identity)),
        **({"images": dataset.prepared.content} if dataset.prepared.content else {}),
    }


def _check_classes(dataset: Dataset, rows: np.ndarray) -> None:
    present = np.unique(dataset.manifest.labels[rows])
    if len(present) < 2:
        raise TrainingError(f"the training images show {len(present)} class: there is nothing to tell apart")


def _current_table(path: Path, identity: dict[str, str], made: dict[str, Any]) -> OutputsTable | None:
    if not path.exists():
        return None
    try:
        table = OutputsTable.read(path)
    except ArtifactError:
        return None  # a damaged table is made again
    return table if (table.identity, table.made) == (identity, made) else None


def _keep_metadata(table: OutputsTable | None, dataset: Dataset, path: Path) -> None:
    """Bring a table's metadata up to date: it may change without another pass over the images."""
    if table is None:
        return
    records = {record.id: record for record in dataset.manifest.records}
    metadata = _metadata([records[name] for name in table.ids])
    if metadata != table.metadata:
        replace(table, metadata=metadata).write(path)


def _metadata(records: list[Record]) -> dict[str, tuple[str, ...]]:
    keys = sorted({key for record in records for key in record.meta})
    return {key: tuple(record.meta.get(key, "") for record in records) for key in keys}


def _table(dataset: Dataset, rows: np.ndarray, encodings: list[Encoding], identity: dict[str, str]) -> OutputsTable:
    records = [dataset.manifest.records[row] for row in rows]
    student, teacher = encodings[0], encodings[1] if len(encodings) > 1 else None
    looks = appearance_of(dataset.prepared.images, rows)
    return OutputsTable(
        ids=tuple(record.id for record in records),
        groups=tuple(record.group for record in records),
        labels=torch.tensor([record.label for record in records]),
        logits=student.logits,
        z_student=student.z,
        logits_teacher=None if teacher is None else teacher.logits,
        z_teacher=None if teacher is None else teacher.z,
        features=student.features,
        features_teacher=None if teacher is None else teacher.features,
        colours=torch.from_numpy(looks.colours),
        content=looks.content,
        class_names=dataset.manifest.class_names,
        metadata=_metadata(records),
        identity=identity,
    )


def _tensorboard(config: Config, folder: RunFolder, fabric: Fabric) -> Any:
    if not config.train.tensorboard or not fabric.is_global_zero:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("tensorboard", "track", "train.tensorboard") from error
    return SummaryWriter(folder.root / "tensorboard")


@contextmanager
def _memory_in_a_sentence(settings: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # the CPU's allocator has no exception of its own
        if isinstance(error, torch.OutOfMemoryError) or re.search("not enough memory|out of memory", str(error)):
            raise TrainingError(f"out of memory with {settings}") from error
        raise


def _training_memory(config: Config) -> str:
    batch = config.train.batch_size
    return (
        f"train.batch_size = {batch} ({2 * batch} views of {config.network.image_size} px): lower it "
        '(train.accumulate keeps the step the same), or use train.precision = "bf16-mixed"'
    )
