"""The batched augmentation against kornia's on this device: the same operations, each image its own parameters.

kornia is a development-time comparison only: nothing in tdumpra imports it, and without it this benchmark has no rows.
(kornia draws one order of the jitter operations for a whole batch, ours one for each image.) The rule is to take kornia
where it reaches 0.9 of our speed; on one CPU thread it reached 0.81. On a CPU one thread is used, because threads that
wait for one another would measure what else the machine is doing.
"""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.common import Row, best_times, faster
from tdumpra.data.batches.augment import AugmentConfig, draw
from tdumpra.data.batches.augment_batch import apply_batch

SIDE = 224


def run() -> list[Row]:
    try:
        from kornia import augmentation
    except ImportError:
        return []
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    n = 256 if device.type == "cuda" else 32
    config = AugmentConfig()
    images = torch.randint(0, 256, (n, 3, SIDE, SIDE), dtype=torch.uint8, device=device)
    kornia = augmentation.AugmentationSequential(
        augmentation.RandomResizedCrop((SIDE, SIDE), scale=config.crop_area, ratio=config.crop_ratio),
        augmentation.RandomHorizontalFlip(p=config.horizontal_flip),
        augmentation.ColorJitter(config.brightness, config.contrast, config.saturation, config.hue, p=config.jitter),
        augmentation.RandomGrayscale(p=config.grayscale),
    )

    def ours() -> torch.Tensor:
        numbers = np.arange(n)
        params = draw(config, seed=0, epoch=0, index=numbers, view=0 * numbers, height=SIDE, width=SIDE)
        return _wait(apply_batch(images, params, SIDE))

    def theirs() -> torch.Tensor:
        with torch.no_grad():
            return _wait(kornia(images.float() / 255))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        mine, other = best_times(ours, theirs, repeats=5)
    finally:
        torch.set_num_threads(threads)
    name = f"batched augmentation on {device.type}, {n} × {SIDE}×{SIDE}"
    return [faster(name, mine, other, at_least=1.12, against="kornia")]  # at 0.9 of our speed we would take it


def _wait(x: torch.Tensor) -> torch.Tensor:
    if x.is_cuda:
        torch.cuda.synchronize()
    return x
