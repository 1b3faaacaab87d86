"""Two-view training batches: all images on the device, against CPU workers with torchvision on this machine's cores.

The goal stands for a GPU. Where there is none, both run on the CPU, and ``auto`` has to take the faster.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import Row, best_times
from benchmarks.images import image_manifest
from tdumpra.data.batches.augment import AugmentConfig
from tdumpra.data.batches.pipeline import DevicePipeline, Pipeline, WorkerPipeline, make_pipeline
from tdumpra.data.batches.sampling import BatchPlan
from tdumpra.data.images.framing import EvalTransform
from tdumpra.data.images.prepare import prepare
from tdumpra.data.images.workers import available_cores

BATCH = 64


def run() -> list[Row]:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        images = prepare(image_manifest(Path(folder), 4096 if on_gpu else 512), folder).images
        parts = (images, AugmentConfig(), EvalTransform(), device)
        resident, workers = DevicePipeline(*parts), WorkerPipeline(*parts, workers=available_cores())
        mine, other = best_times(lambda: _epoch(resident), lambda: _epoch(workers), repeats=3)
        auto = make_pipeline("auto", images, augment=AugmentConfig(), evaluation=EvalTransform(), device=device)
    views = 2 * BATCH * (len(images) // BATCH)
    ours, peer = views / mine, views / other
    faster_one = DevicePipeline if ours > peer else WorkerPipeline
    return [
        Row(
            name=f"two-view batches on {device.type}",
            ours=ours,
            peer=peer,
            ratio=ours / peer,
            goal="≥ 3 ×" if on_gpu else "auto takes the faster",
            met=ours >= 3 * peer if on_gpu else isinstance(auto, faster_one),
            unit="views/s",
            against=f"{available_cores()} CPU workers, torchvision v2",
        )
    ]


def _epoch(pipeline: Pipeline) -> None:
    plan = BatchPlan(numbers=np.arange(len(pipeline.store)), batch_size=BATCH, seed=0)
    for batch in pipeline.train(plan, epoch=0):
        last = batch.views
    if last.is_cuda:
        torch.cuda.synchronize()
