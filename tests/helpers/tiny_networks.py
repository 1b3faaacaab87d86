"""Networks that train in milliseconds. They are named in configurations as ``tiny_networks:plain`` and the like."""

from __future__ import annotations

import random
import time

import torch
from torch import Tensor, nn


class Tiny(nn.Module):
    """A few convolutions; with ``num_classes=0`` it gives pooled features, as timm's models do."""

    def __init__(self, num_classes: int, *, norm: bool = True, dropout: float = 0.0, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 5, stride=4)
        self.norm = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.body = nn.Conv2d(width, 2 * width, 3, stride=2)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(2 * width, num_classes) if num_classes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.body(x)).mean((2, 3))
        features: Tensor = self.fc(self.dropout(x))
        return features


def plain(num_classes: int) -> nn.Module:
    return Tiny(num_classes)


def dropout(num_classes: int) -> nn.Module:
    return Tiny(num_classes, dropout=0.3)


def without_norm(num_classes: int) -> nn.Module:
    return Tiny(num_classes, norm=False)


def slow(num_classes: int) -> nn.Module:
    """Takes its time over each batch, so that it can be killed between two; without statistics of batches."""

    class Slow(Tiny):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.1)
            return super().forward(x)

    return Slow(num_classes, norm=False)


def exploding(num_classes: int) -> nn.Module:
    """Its output overflows once training has moved it a little."""

    class Exploding(Tiny):
        count: Tensor

        def forward(self, x: Tensor) -> Tensor:
            features = super().forward(x)
            if self.training:
                self.count += 1
            return features / (self.count <= 3) if self.training else features

    network = Exploding(num_classes)
    network.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)
    return network


def counting(num_classes: int) -> nn.Module:
    """Counts its calls in Python, and does something else every second time."""

    class Counting(Tiny):
        def forward(self, x: Tensor) -> Tensor:
            self.count = getattr(self, "count", 0) + 1
            return super().forward(x.flip(3) if self.count % 2 else x)

    return Counting(num_classes)


def out_of_memory(num_classes: int) -> nn.Module:
    class Hungry(Tiny):
        def forward(self, x: Tensor) -> Tensor:
            if self.training and torch.is_grad_enabled():
                raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: not enough memory")
            return super().forward(x)

    return Hungry(num_classes)


def feature_map(num_classes: int) -> nn.Module:
    """Gives (n, f, h, w), which is pooled for it."""
    return nn.Conv2d(3, 6, 4, stride=4)


def no_module(num_classes: int) -> object:
    return object()


def without_linear_head(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, num_classes, 4, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def seeded(num_classes: int) -> nn.Module:
    """A finished classifier that brings its weights along."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return Tiny(num_classes)


def branching(num_classes: int) -> nn.Module:
    """Looks at its numbers to decide what to compute, which no graph can."""

    class Branching(Tiny):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.sum() > 0 else -x)

    return Branching(num_classes)


def one_size(num_classes: int) -> nn.Module:
    """Fixes the size of a batch when it is traced."""

    class OneSize(Tiny):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).reshape(len(x), -1)

    return OneSize(num_classes)


def waiting(num_classes: int) -> nn.Module:
    """Waits for the GPU in the middle of a pass, which no recording survives."""

    class Waiting(Tiny):
        def forward(self, x: Tensor) -> Tensor:
            if x.is_cuda:
                torch.cuda.synchronize()
            return super().forward(x)

    return Waiting(num_classes, dropout=0.3)


def drawing(num_classes: int) -> nn.Module:
    """Draws on the host what to do next; a recording would do the same for ever."""

    class Drawing(Tiny):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flip(3) if self.training and random.random() < 0.5 else x)

    return Drawing(num_classes)


def replacing(num_classes: int) -> nn.Module:
    """Keeps a running mean in a new tensor each time, where a recording would read the first for ever."""

    class Replacing(Tiny):
        centre: Tensor

        def __init__(self) -> None:
            super().__init__(num_classes)
            self.register_buffer("centre", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.centre = 0.9 * self.centre + 0.1 * x.detach().mean()
            return super().forward(x - self.centre)

    return Replacing()
