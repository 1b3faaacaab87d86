"""The full training step (two augmented views, both losses, EMA) against the bare step of the same network.

The full step is taken as ``train.compile = "auto"`` chooses for trainings of so many steps. It is measured against two
peers on images that lie on the device already: the bare step (forward pass, cross-entropy, backward pass, optimiser)
taken in the same way, and the plain eager bare step that one would write in PyTorch. All three have the same batch,
precision, memory layout and fused optimiser, and run in turns. On a GPU:

    python benchmarks/run.py training_step

``BACKBONES`` names some of the five, ``STEPS`` the lengths of training (if left out 1,000 and 10,000: too short to
repay compiling, and long enough).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common import Row
from tdumpra.core.ema import EmaTeacher
from tdumpra.core.losses import JointLoss
from tdumpra.data.batches.augment import AugmentConfig
from tdumpra.data.batches.pipeline import DevicePipeline, TrainBatch
from tdumpra.data.batches.prefetch import prefetch
from tdumpra.data.batches.sampling import BatchPlan
from tdumpra.data.images.framing import EvalTransform, Framing
from tdumpra.data.images.store import ImageStore
from tdumpra.networks.build import Encoding, build_network
from tdumpra.networks.step import CapturedStep, Objective, Step, Way, joined_loss, make_step
from tdumpra.networks.train import make_fabric
from tdumpra.runs.config import NetworkConfig, TrainConfig

PAPER_BACKBONES = (
    "resnet101",
    "convnext_tiny",
    "efficientnet_b0",
    "vit_base_patch16_224",
    "swin_base_patch4_window7_224",
)
BATCH, SIZE, CLASSES, IMAGES = 64, 224, 7, 1024
ON_GPU = torch.cuda.is_available()


class RandomImages(ImageStore):
    """A store of random pixels, as many as a benchmark needs."""

    framing = Framing(height=SIZE, width=SIZE)

    def __len__(self) -> int:
        return IMAGES

    def read(self, numbers: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(int(numbers[0]))
        return rng.integers(0, 256, (len(numbers), SIZE, SIZE, 3), dtype=np.uint8)


def run() -> list[Row]:
    names = os.environ.get("BACKBONES", ",".join(PAPER_BACKBONES)).split(",")
    lengths = [int(steps) for steps in os.environ.get("STEPS", "1000,10000").split(",")]
    return [row for name in names for steps in lengths for row in _rows(name, steps)]


def _rows(name: str, steps: int) -> list[Row]:
    way, speed, memory = Bench(name, steps).measure()
    title = f"{name}, {way.name}"
    rows = []
    for peer, against, goal in (("bare", "the bare step in the same way", 0.95), ("plain", "the eager bare step", 1.0)):
        ratio = speed["full"] / speed[peer]
        rows.append(
            Row(name=f"{title}, full step of {peer}", ours=speed["full"], peer=speed[peer], ratio=ratio,
                goal=f"≥ {goal:g} ×", met=ratio >= goal, unit="views/s", against=against)
        )  # fmt: skip
    ratio = memory["full"] / memory["bare"]
    rows.append(
        Row(name=f"{title}, memory", ours=memory["full"], peer=memory["bare"], ratio=ratio,
            goal="≤ 1.05 ×", met=ratio <= 1.05, unit="GiB", against="the bare step in the same way")
    )  # fmt: skip
    return rows


class Bench:
    """The three steps of one network."""

    def __init__(self, name: str, steps: int) -> None:
        torch.compiler.reset()  # it gives up on a function that it had to compile for many networks
        self.name, self.steps = name, steps
        self.config = TrainConfig(precision="bf16-mixed" if ON_GPU else "32-true", batch_size=BATCH)
        self.fabric = make_fabric(self.config)
        self.fabric.launch()
        self.device = self.fabric.device
        self.labels = torch.randint(CLASSES, (IMAGES,), device=self.device)
        self.ways: set[Way] = set()

    def measure(self) -> tuple[Way, dict[str, float], dict[str, float]]:
        """Return the way that was chosen, views per second, and peak memory in GiB."""
        memory, steps = {}, {}
        for kind, make in (("plain", self.plain), ("bare", self.bare), ("full", self.full)):
            if ON_GPU:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
            steps[kind] = make()
            for _ in range(5 if ON_GPU else 1):
                steps[kind]()
            memory[kind] = (torch.cuda.max_memory_allocated() - held) / 2**30 if ON_GPU else float("nan")
        times: dict[str, list[float]] = {kind: [] for kind in steps}
        for _ in range(7 if ON_GPU else 2):  # in turns: a busy machine slows all
            for kind, step in steps.items():
                times[kind].append(_time(step, 20 if ON_GPU else 1))
        (way,) = self.ways  # the bare step must have been taken as the full one is
        return way, {kind: 2 * BATCH / statistics.median(each) for kind, each in times.items()}, memory

    def plain(self) -> Callable[[], None]:
        """The bare step as one would write it."""
        network, optimizer = self._network()
        images, y = self._images(), self.labels[: 2 * BATCH]

        def step() -> None:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=ON_GPU):
                loss = nn.functional.cross_entropy(network(images).logits, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def bare(self) -> Callable[[], None]:
        """The bare step in the way of the full one."""
        step = self._step(_cross_entropy, with_teacher=False)
        images = step.views if isinstance(step, CapturedStep) else self._images()  # in place: nothing to copy
        y = self.labels[: 2 * BATCH]

        def take() -> None:
            step.gradients(images, y)
            step.optimizer.step()
            step.forget_gradients()

        return take

    def full(self) -> Callable[[], None]:
        """The step of training, with the batch that it takes."""
        objective = partial(joined_loss, config=self.config, class_weights=None, fabric=self.fabric)
        step = self._step(objective, with_teacher=True)
        (way,) = self.ways
        stream = self._batches(compiled=way.captured and way.compiled)

        def take() -> None:
            batch = next(stream)
            views = batch.views.flatten(0, 1).contiguous(memory_format=torch.channels_last)
            step.gradients(views, self.labels[batch.numbers].repeat(2))
            step.move(1e-4)

        return take

    def _step(self, objective: Objective, *, with_teacher: bool) -> Step:
        network, optimizer = self._network()
        teacher = EmaTeacher(network if with_teacher else nn.Identity())
        step, way = make_step(
            network, teacher, optimizer, objective, self.config, self.fabric, image_size=SIZE, steps=self.steps
        )
        self.ways.add(way)
        return step

    def _network(self) -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        network = build_network(NetworkConfig(backbone=self.name, weights="none"), CLASSES).network
        network.to(self.device).to(memory_format=torch.channels_last).train()
        return network, torch.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=1e-4, fused=ON_GPU)

    def _images(self) -> Tensor:
        return torch.randn(2 * BATCH, 3, SIZE, SIZE, device=self.device).to(memory_format=torch.channels_last)

    def _batches(self, *, compiled: bool) -> Iterator[TrainBatch]:
        store = RandomImages()
        evaluation = EvalTransform(framing=store.framing, size=SIZE)
        pipeline = DevicePipeline(store, AugmentConfig(), evaluation, self.device)
        plan, epoch = BatchPlan(numbers=np.arange(IMAGES), batch_size=BATCH, seed=0), 0
        while True:
            yield from prefetch(pipeline.train(plan, epoch, compiled=compiled), self.device)
            epoch += 1


def _cross_entropy(encoding: Encoding, labels: Tensor) -> JointLoss:
    loss = nn.functional.cross_entropy(encoding.logits.float(), labels)
    return JointLoss(loss, loss, loss)


def _time(step: Callable[[], None], repeats: int) -> float:
    if ON_GPU:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    if ON_GPU:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats
