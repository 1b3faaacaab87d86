"""The engine: rows below theta are collected across batches, results come in order, and no size changes them."""

from __future__ import annotations

import threading

import pytest
import torch
from tiny_engines import batches_of, engine_of, joined
from tiny_models import OPEN
from torch import Tensor, nn

from tdumpra.lanes import Lanes, are_open
from tdumpra.networks.build import Encoding
from tdumpra.networks.engine import Batch, Engine
from tdumpra.networks.passes import Pass


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


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_results_do_not_depend_on_how_many_batches_run_at_a_time(model, images, lanes):
    many = [images[i % len(images)] for i in range(61)]
    expected = list(engine_of(model, 4)[0].decide(batches_of(many, 4)))
    engine, _, second = engine_of(model, 4)
    engine.lanes = lanes
    found = list(engine.decide(batches_of(many, 4)))
    assert [len(batch.p) for batch in found] == [len(batch.p) for batch in expected]
    assert [batch.place for batch in found] == [batch.place for batch in expected]
    (p, opened), (expected_p, expected_opened) = joined(found), joined(expected)
    assert torch.equal(opened, expected_opened)
    torch.testing.assert_close(p, expected_p, atol=1e-5, rtol=0)
    assert sum(second.sizes) == engine.rows_matched


def test_batches_run_at_a_time_and_no_further_ahead_than_they_may(model, images):
    """Two passes meet: each waits until the other has begun."""
    engine, first, _ = engine_of(model, 2)
    engine.lanes, meeting, taken = 2, threading.Barrier(2), 0
    inner = first.network

    class Meeting(nn.Module):
        def forward(self, pixels: Tensor) -> Encoding:
            meeting.wait(60)
            assert torch.get_num_threads() == 1
            encoding: Encoding = inner(pixels)
            return encoding

    def stream():
        nonlocal taken
        for batch in batches_of([images[i % len(images)] for i in range(40)], 2):
            taken += 1
            yield batch

    first.network = Meeting()
    decided = engine.decide(stream())
    next(decided)
    assert taken < 20
    assert len(list(decided)) == 19


def test_what_a_pass_raises_comes_in_its_place_and_the_lanes_end(model, images):
    engine, first, _ = engine_of(model, 2)
    engine.lanes, inner = 2, first.network

    class Fails(nn.Module):
        def forward(self, pixels: Tensor) -> Encoding:
            if len(first.sizes) == 6:
                raise RuntimeError("the sixth")
            encoding: Encoding = inner(pixels)
            return encoding

    first.network = Fails()
    found: list[Batch] = []
    with pytest.raises(RuntimeError, match="the sixth"):
        found.extend(engine.decide(batches_of([images[i % len(images)] for i in range(20)], 2)))
    assert len(found) <= 5
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and "lane" in thread.name:
            thread.join(60)
    assert not are_open()


def test_threads_that_start_later_keep_their_own_number_of_threads(model, images):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        engine, _, _ = engine_of(model, 4)
        engine.lanes = 2
        list(engine.decide(batches_of(images, 4)))
        with Lanes(1) as lane:
            assert lane.submit(torch.get_num_threads).result() == torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_small_tensors_wake_no_other_threads(model, images):
    engine, *_ = engine_of(model, 4)
    engine.lanes, before, seen = 1, torch.get_num_threads(), set()
    finish = engine._finish

    def watched(batch):
        seen.add((torch.get_num_threads(), threading.current_thread() is threading.main_thread()))
        return finish(batch)

    engine._finish = watched  # type: ignore[method-assign]
    torch.set_num_threads(3)
    try:
        for _ in engine.decide(batches_of(images, 4)):
            assert torch.get_num_threads() == 3  # the caller's own
    finally:
        torch.set_num_threads(before)
    assert seen == {(1, False)}
    assert engine._small is None


def test_outputs_come_in_order_whatever_runs_at_a_time(model, images):
    engine, _, _ = engine_of(model, 3)
    expected = list(engine.encode(batches_of(images, 3)))
    engine.lanes = 2
    found = list(engine.encode(batches_of(images, 3)))
    for own, other in zip(expected, found, strict=True):
        for a, b in zip(own, other, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_a_batch_that_waits_too_long_is_matched_with_fewer_rows(model, images):
    engine, _, second = engine_of(model, 64)  # never full: a row or two of each batch is asked about
    stream = engine.decide(batches_of([images[i % len(images)] for i in range(60)], 2))
    next(stream)
    assert engine.rows_seen < 60
    list(stream)
    assert len(second.sizes) > 1


def test_anything_that_encodes_framed_images_can_stand_for_a_network(model, images):
    """Another runtime takes the place of PyTorch: here one that knows rows by their first pixel."""
    own, _, _ = engine_of(model, 4)
    seen: list[tuple[int, ...]] = []

    class Elsewhere:
        def __init__(self, known: Pass) -> None:
            self.known = known

        def __call__(self, pixels: Tensor) -> Encoding:
            assert pixels.dtype == torch.uint8
            seen.append(tuple(pixels.shape))
            return Encoding(*(torch.from_numpy(column.numpy().copy()) for column in self.known(pixels)))

    assert own.retrieval is not None
    other = Engine(
        own.decision, Elsewhere(own.classifier), Elsewhere(own.retrieval), device=own.device, batch_size=4, eager=False
    )
    expected, found = (joined(list(engine.decide(batches_of(images, 4)))) for engine in (own, other))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert len(seen) >= 2
