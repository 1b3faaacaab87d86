"""The engine: rows below theta are collected across batches, results come in order, and no size changes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import OPEN
from torch import Tensor, nn

from tdumpra.data.images.new import Framed
from tdumpra.networks.build import Encoding
from tdumpra.networks.engine import Batch, Engine
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


def framed(images) -> list[Framed]:
    pixels = [np.array(Image.open(path)) for path in images]
    return [Framed(each, each, None) for each in pixels]


def engine_of(model, batch_size: int, *, eager: bool = False) -> tuple[Engine, Counted, Counted]:
    predictor = Predictor(model)
    engine = predictor._engine(batch_size, eager=eager)
    assert engine.retrieval is not None
    first, second = Counted(engine.classifier.network), Counted(engine.retrieval.network)
    engine.classifier = engine.classifier._replace(network=first)
    engine.retrieval = engine.retrieval._replace(network=second)
    return engine, first, second


def batches_of(images, size: int):
    frames = framed(images)
    return (frames[i : i + size] for i in range(0, len(frames), size))


def joined(batches: list[Batch]) -> tuple[Tensor, Tensor]:
    return torch.cat([batch.p for batch in batches]), torch.cat([batch.opened for batch in batches])


def test_the_second_network_runs_on_full_batches_and_once_on_the_rest(model, images):
    engine, first, second = engine_of(model, 4)
    found = list(engine.decide(batches_of(images, 4)))
    below = sum(len(batch.place) for batch in found)
    assert sum(second.sizes) == engine.rows_matched == below
    assert set(second.sizes[:-1]) <= {4}
    assert sum(first.sizes) == engine.rows_seen == len(images)


@pytest.mark.parametrize("size", [1, 3, 64])
def test_results_do_not_depend_on_the_batch_size(model, images, size):
    expected_p, expected_opened = joined(list(engine_of(model, 5, eager=True)[0].decide(batches_of(images, 5))))
    p, opened = joined(list(engine_of(model, size)[0].decide(batches_of(images, size))))
    top = expected_p.amax(1)
    sure = (top - OPEN.theta).abs() > 1e-5
    assert torch.equal(opened[sure], expected_opened[sure])
    assert torch.equal(p.argmax(1), expected_p.argmax(1))
    torch.testing.assert_close(p, expected_p, atol=1e-5, rtol=0)


def test_a_batch_that_waits_too_long_is_matched_with_fewer_rows(model, images):
    engine, _, second = engine_of(model, 64)  # never full: a row or two of each batch is asked about
    stream = engine.decide(batches_of([images[i % len(images)] for i in range(60)], 2))
    next(stream)
    assert engine.rows_seen < 60
    list(stream)
    assert len(second.sizes) > 1
