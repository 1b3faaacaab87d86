"""The full training step (two augmented views, both losses, EMA) against the bare step of the same network.

Bare is forward, cross-entropy, backward and optimiser on images that lie on the device already. Both run with the same
batch, precision, memory layout, optimiser and compilation, in turns. On a GPU:

    python benchmarks/run.py training_step

``BACKBONES`` names some of the five, ``COMPILED`` those that are also measured compiled (ConvNeXt-Tiny if left out).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from benchmarks.common import Row
from tdumpra.core.ema import EmaTeacher
from tdumpra.core.losses import joint_loss
from tdumpra.data.batches.augment import AugmentConfig
from tdumpra.data.batches.pipeline import DevicePipeline
from tdumpra.data.batches.prefetch import prefetch
from tdumpra.data.batches.sampling import BatchPlan
from tdumpra.data.images.framing import EvalTransform, Framing
from tdumpra.data.images.store import ImageStore
from tdumpra.networks.build import build_network
from tdumpra.networks.train import make_fabric
from tdumpra.runs.config import NetworkConfig, TrainConfig

PAPER_BACKBONES = {  # and what a quick eager version reached on an H200, in images/s against the bare step
    "resnet101": 0.86,
    "convnext_tiny": 0.93,
    "efficientnet_b0": 0.83,
    "vit_base_patch16_224": 0.95,
    "swin_base_patch4_window7_224": 0.97,
}
COMPILED_AIM = {"convnext_tiny": 1.3}  # times eager; others should not lose
BATCH, SIZE, CLASSES, IMAGES = 64, 224, 7, 1024


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
    compiled_too = os.environ.get("COMPILED", "convnext_tiny").split(",")
    rows = []
    for name in names:
        speed = {}
        for compiled in (False, True) if name in compiled_too else (False,):
            measured = _measure(name, compiled=compiled)
            speed[compiled] = measured["full"]
            rows += _rows(name, measured, compiled=compiled)
        if name in compiled_too:
            ratio, aim = speed[True] / speed[False], COMPILED_AIM.get(name, 1.0)
            rows.append(
                Row(name=f"{name}, compiled against eager, full step", ours=speed[True], peer=speed[False], ratio=ratio,
                    goal=f"≥ {aim:g} ×", met=ratio >= aim, unit="views/s", against="eager")
            )  # fmt: skip
    return rows


def _rows(name: str, measured: dict[str, float], *, compiled: bool) -> list[Row]:
    how = "compiled" if compiled else "eager"
    ratio = measured["full"] / measured["bare"]
    memory = measured["full_memory"] / measured["bare_memory"]
    return [
        Row(name=f"{name}, {how}, full step", ours=measured["full"], peer=measured["bare"], ratio=ratio,
            goal="≥ 0.95 ×", met=ratio >= 0.95, unit="views/s", against="the bare step"),
        Row(name=f"{name}, {how}, memory", ours=measured["full_memory"], peer=measured["bare_memory"], ratio=memory,
            goal="≤ 1.05 ×", met=memory <= 1.05, unit="GiB", against="the bare step"),
    ]  # fmt: skip


def _measure(name: str, *, compiled: bool) -> dict[str, float]:
    on_gpu = torch.cuda.is_available()
    config = TrainConfig(precision="bf16-mixed" if on_gpu else "32-true", batch_size=BATCH)
    fabric = make_fabric(config)
    fabric.launch()
    store = RandomImages()
    evaluation = EvalTransform(framing=store.framing, size=SIZE)
    pipeline = DevicePipeline(store, AugmentConfig(), evaluation, fabric.device)
    labels = torch.randint(CLASSES, (IMAGES,), device=fabric.device)
    plan = BatchPlan(numbers=np.arange(IMAGES), batch_size=BATCH, seed=0)

    def setup() -> tuple[nn.Module, Any, Any]:
        torch.manual_seed(0)
        network = build_network(NetworkConfig(backbone=name, weights="none"), CLASSES).network
        network.to(fabric.device).to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=1e-4, fused=on_gpu)
        student, wrapped = fabric.setup(cast(nn.Module, torch.compile(network)) if compiled else network, optimizer)
        return network, student, wrapped

    def batches() -> Any:
        epoch = 0
        while True:
            yield from prefetch(pipeline.train(plan, epoch), fabric.device)
            epoch += 1

    def bare() -> Callable[[], None]:
        _, student, optimizer = setup()
        images = torch.randn(2 * BATCH, 3, SIZE, SIZE, device=fabric.device).to(memory_format=torch.channels_last)
        y = labels[: 2 * BATCH]

        def step() -> None:
            loss = nn.functional.cross_entropy(student(images).logits, y)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

        return step

    def full() -> Callable[[], None]:
        network, student, optimizer = setup()
        teacher = EmaTeacher(network)
        stream = batches()

        def step() -> None:
            batch = next(stream)
            views = batch.views.flatten(0, 1).contiguous(memory_format=torch.channels_last)
            y = labels[batch.numbers].repeat(2)
            encoding = student(views)
            loss = joint_loss(encoding.logits, encoding.z, y)
            fabric.backward(loss.total)
            optimizer.step()
            optimizer.zero_grad()
            teacher.update(network)

        return step

    memory, steps = {}, {}
    for kind, make in (("bare", bare), ("full", full)):
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        steps[kind] = make()
        for _ in range(5 if on_gpu else 1):
            steps[kind]()
        memory[kind] = (torch.cuda.max_memory_allocated() - held) / 2**30 if on_gpu else float("nan")
    times: dict[str, list[float]] = {"bare": [], "full": []}
    for _ in range(7 if on_gpu else 2):  # in turns: a busy machine slows both
        for kind, step in steps.items():
            times[kind].append(_time(step, 20 if on_gpu else 1))
    views = 2 * BATCH
    return {
        "bare": views / statistics.median(times["bare"]),
        "full": views / statistics.median(times["full"]),
        "bare_memory": memory["bare"],
        "full_memory": memory["full"],
    }


def _time(step: Callable[[], None], repeats: int) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats
