"""Engines over a small model, with networks that remember what they were given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from tdumpra.data.images.new import Framed
from tdumpra.networks.build import Encoding
from tdumpra.networks.engine import Batch, Engine
from tdumpra.networks.model_file import Model
from tdumpra.networks.passes import NetworkPass
from tdumpra.networks.predict import Predictor


class Counted(nn.Module):
    """A network that remembers the sizes of its batches."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.sizes: list[int] = []

    def forward(self, images: Tensor) -> Encoding:
        self.sizes.append(len(images))
        encoding: Encoding = self.network(images)
        return encoding


def framed(images: Sequence[Path]) -> list[Framed]:
    pixels = [np.array(Image.open(path)) for path in images]
    return [Framed(each, each, None) for each in pixels]


def engine_of(model: Model, batch_size: int, *, eager: bool = False) -> tuple[Engine, Counted, Counted]:
    predictor = Predictor(model)
    engine = predictor._engine(batch_size, eager=eager)
    assert isinstance(engine.classifier, NetworkPass)
    assert isinstance(engine.retrieval, NetworkPass)
    first, second = Counted(engine.classifier.network), Counted(engine.retrieval.network)
    engine.classifier = engine.classifier._replace(network=first)
    engine.retrieval = engine.retrieval._replace(network=second)
    return engine, first, second


def batches_of(images: Sequence[Path], size: int) -> Iterator[list[Framed]]:
    frames = framed(images)
    return (frames[i : i + size] for i in range(0, len(frames), size))


def joined(batches: list[Batch]) -> tuple[Tensor, Tensor]:
    return torch.cat([batch.p for batch in batches]), torch.cat([batch.opened for batch in batches])
