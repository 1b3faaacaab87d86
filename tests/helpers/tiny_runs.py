"""Small problems and the stages on them, for the tests of training and prediction and for their child processes."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from lightning_fabric import Fabric
from rich.console import Console

from tdumpra.data.batches.augment import AugmentConfig
from tdumpra.data.batches.pipeline import make_pipeline
from tdumpra.data.dataset import Dataset
from tdumpra.data.images.framing import EvalTransform, Framing
from tdumpra.data.images.prepare import Prepared
from tdumpra.data.images.store import ImageStore
from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.splits import make_split
from tdumpra.networks.build import build_network
from tdumpra.networks.train import Task, make_fabric
from tdumpra.runs.config import Config, DataConfig, EmbedConfig, NetworkConfig, TrainConfig
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.outputs import TrainedOutputs
from tdumpra.runs.pixel_stages import embed_stage, train_stage
from tdumpra.runs.refit import second_pass

SIZE = 16
CLASS_NAMES = ("amber", "blue", "cyan")
_COLOURS = np.array([[200, 120, 40], [60, 60, 180], [60, 180, 180]])


def colour_of(record: Record) -> np.ndarray:
    """Noise around the class's colour; the record's id is its seed."""
    noise = np.random.default_rng(int(record.id[5:])).normal(0, 40, (SIZE, SIZE, 3))
    pixels: np.ndarray = (_COLOURS[record.label] + noise).clip(0, 255).astype(np.uint8)
    return pixels


class MemoryImages(ImageStore):
    """A store that holds its images."""

    def __init__(self, records: tuple[Record, ...]) -> None:
        self.framing = Framing(height=SIZE, width=SIZE)
        self.pixels = np.stack([colour_of(record) for record in records])

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, numbers: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n height width 3"]:
        return np.asarray(self.pixels[numbers])


def colours(n: int = 60, *, labels: list[int] | None = None) -> Dataset:
    """Three classes that differ in colour, two images to a group, split by group."""
    given = labels if labels is not None else [i // 2 % 3 for i in range(n)]
    records = tuple(
        Record(f"image{i:04d}", None, label, f"group{i // 2:03d}", meta={"source": "left" if i % 4 < 2 else "right"})
        for i, label in enumerate(given)
    )
    manifest = Manifest("colours", CLASS_NAMES, records, colour_of)
    split = make_split(manifest)
    return Dataset(Prepared(manifest, MemoryImages(records), (), ()), split.codes.copy(), split)


def settings(backbone: str = "tiny_networks:plain", *, seeds: tuple[int, ...] = (0,), **train: Any) -> Config:
    """A run of a few steps."""
    options: dict[str, Any] = {
        "epochs": 2, "batch_size": 8, "learning_rate": 1e-2, "log_every": 1, "accelerator": "cpu",
        "deterministic": True,
    }  # fmt: skip
    return Config(
        seeds=seeds,
        data=DataConfig(framing=Framing(height=SIZE, width=SIZE), workers=0, pipeline="workers"),
        augment=AugmentConfig(),
        network=NetworkConfig(backbone=backbone, weights="none", image_size=SIZE, embedding=8),
        train=TrainConfig(**(options | train)),
        embed=EmbedConfig(batch_size=8),
    )


def with_network(config: Config, **network: Any) -> Config:
    return replace(config, network=replace(config.network, **network))


def silent() -> Console:
    return Console(file=io.StringIO(), width=200)


def train_run(config: Config, root: Path, data: Dataset | None = None, *, seed: int = 0) -> RunFolder:
    """Train in a folder of its own, as the command does."""
    folder, fabric = RunFolder(root), launched(config)
    with folder.claim(config, seed):
        train_stage(config, data or colours(), folder, seed=seed, fabric=fabric, console=silent())
    return folder


def embed_run(config: Config, root: Path, data: Dataset | None = None) -> RunFolder:
    """Train and embed."""
    data = data or colours()
    folder = train_run(config, root, data)
    embed_stage(config, data, folder, fabric=launched(config), console=silent())
    return folder


def refit_run(config: Config, root: Path, data: Dataset | None = None) -> RunFolder:
    """Train and embed, and then once more on train and validation images."""
    data = data or colours()
    folder, fabric = embed_run(config, root, data), launched(config)
    whole, place, epochs = second_pass(config, data, folder)
    for stage in (train_stage, embed_stage):
        stage(config, whole, place, seed=0, fabric=fabric, console=silent(), epochs=epochs)
    return folder


def outputs_of(config: Config, folder: RunFolder, seed: int = 0) -> TrainedOutputs:
    """Return a run's own outputs, wherever its folder lies."""
    return TrainedOutputs(
        config=config, seed=seed, place=folder.root, backbone=config.name, training=None, folder=folder
    )


def launched(config: Config) -> Fabric:
    fabric = make_fabric(config.train)
    fabric.launch()
    return fabric


def make_task(config: Config, data: Dataset, fabric: Fabric) -> tuple[torch.nn.Module, Task]:
    """A network and what it is to learn, below the level of stages."""
    torch.manual_seed(0)
    built = build_network(config.network, len(CLASS_NAMES))
    transform = EvalTransform(framing=config.data.framing, size=SIZE, mean=built.mean, std=built.std)
    pipeline = make_pipeline(
        config.data.pipeline,
        data.prepared.images,
        augment=config.augment,
        evaluation=transform,
        device=fabric.device,
        workers=config.data.workers,
    )
    task = Task(
        pipeline=pipeline,
        labels=torch.from_numpy(data.manifest.labels),
        train=data.rows("train"),
        validation=data.rows("val"),
        ids=tuple(record.id for record in data.manifest.records),
        n_classes=len(CLASS_NAMES),
        identity={},
    )
    return built.network, task


def tiny_experiment(folder: Path) -> Config:
    """An experiment on synthetic images whose trainings take a moment; all that it makes lies below ``folder``."""
    return replace(
        settings(epochs=1),
        name="tiny",
        folder=str(folder / "run"),
        data=DataConfig(
            source="synthetic:n=120,size=32", cache=str(folder / "cache"), framing=Framing(height=32, width=32),
            workers=0,
        ),
        network=NetworkConfig(backbone="tiny_networks:plain", weights="none", image_size=32, embedding=8),
        augment=AugmentConfig(),
    )  # fmt: skip
