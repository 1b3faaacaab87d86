"""Passes through a network that record themselves on a GPU, and who has them."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_engines import Counted, batches_of, engine_of, joined
from torch import Tensor, nn

from tdumpra.networks import passes
from tdumpra.networks.build import Encoding
from tdumpra.networks.passes import NetworkPass, Recordings
from tdumpra.networks.predict import Predictor


class Replayed:
    """A graph as a CPU can have one: it computes anew, into the same places."""

    def __init__(self, compute: Callable[[], Encoding]) -> None:
        self.compute, self.replays = compute, 0
        self.places = Encoding(*(column.clone() for column in compute()))

    def replay(self) -> None:
        self.replays += 1
        for place, column in zip(self.places, self.compute(), strict=True):
            place.copy_(column)


@pytest.fixture
def graphs(monkeypatch) -> list[Replayed]:
    made: list[Replayed] = []

    def record(compute: Callable[[], Encoding], network: nn.Module, device: torch.device) -> tuple[Any, Encoding]:
        made.append(Replayed(compute))
        return made[-1], made[-1].places

    monkeypatch.setattr(passes, "record", record)
    return made


def plain_pass(model) -> tuple[NetworkPass, Counted]:
    classifier = Predictor(model)._engine(4, eager=True).classifier
    assert isinstance(classifier, NetworkPass)
    network = Counted(classifier.network)
    return classifier._replace(network=network), network


def pixels(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 16, 16, 3), dtype=torch.uint8, generator=generator)


@torch.inference_mode()
def test_full_batches_are_replayed_once_there_were_some(model, graphs):
    plain, _ = plain_pass(model)
    with Recordings().lent(plain, 4) as recorded:
        for seed in range(10):
            n = 3 if seed % 4 == 1 else 4
            found = recorded(pixels(n, seed))
            torch.testing.assert_close(tuple(found), tuple(plain(pixels(n, seed))))
    (graph,) = graphs
    assert 0 < graph.replays < 7  # of the seven full ones


@torch.inference_mode()
def test_what_cannot_be_recorded_runs_as_it_is(model, monkeypatch):
    tried = []

    def refuse(*_: object) -> None:
        tried.append(1)
        raise RuntimeError("the network keeps count on the host")

    monkeypatch.setattr(passes, "record", refuse)
    plain, network = plain_pass(model)
    with Recordings().lent(plain, 4) as recorded:
        for seed in range(9):
            recorded(pixels(4, seed))
    assert network.sizes == [4] * 9
    assert tried == [1]


def test_a_recording_has_one_user_at_a_time_and_waits_for_the_next(model):
    plain, _ = plain_pass(model)
    recordings = Recordings()
    with recordings.lent(plain, 4) as first, recordings.lent(plain, 4) as second, recordings.lent(plain, 8) as larger:
        assert len({id(each) for each in (first, second, larger)}) == 3
    with recordings.lent(plain, 4) as again, recordings.lent(plain, 4) as other:  # one of a network was kept
        assert again in (first, second)
        assert other is not again
    with recordings.lent(plain, 8) as anew:
        assert anew is not larger


def test_recordings_stay_where_they_were_made(model):
    plain, _ = plain_pass(model)
    recordings = Recordings()
    with recordings.lent(plain, 4) as lent:
        pass
    with copy.deepcopy(recordings).lent(plain, 4) as other:
        assert other is not lent


@torch.inference_mode()
def test_hooks_are_called_whatever_was_recorded(model, graphs):
    plain, network = plain_pass(model)
    called: list[int] = []
    with Recordings().lent(plain, 4) as recorded:
        for seed in range(6):
            recorded(pixels(4, seed))
        before = graphs[0].replays
        hook = network.register_forward_hook(lambda *_: called.append(1))
        recorded(pixels(4, 6))
        assert called == [1]
        assert graphs[0].replays == before  # a real replay would call no hook
        hook.remove()
        recorded(pixels(4, 7))
    assert graphs[0].replays == before + 1


def test_threads_never_share_a_recording(model):
    plain, _ = plain_pass(model)
    recordings, held, twice = Recordings(), set[int](), []

    def use() -> None:
        for _ in range(50):
            with recordings.lent(plain, 4) as lent:
                if id(lent) in held:
                    twice.append(lent)
                held.add(id(lent))
                time.sleep(1e-4)
                held.discard(id(lent))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not twice


def test_an_engine_decides_alike_with_recordings(model, images, graphs):
    many = [images[i % len(images)] for i in range(90)]
    expected_p, expected_opened = joined(list(engine_of(model, 4)[0].decide(batches_of(many, 4))))
    engine, *_ = engine_of(model, 4)
    engine.recordings, before = Recordings(), (engine.classifier, engine.retrieval)
    # A GPU copies results behind the pass; so must whoever stands in for it, before the next one overwrites them.
    engine._start = lambda which, framed: Copied(engine._run(which, framed))  # type: ignore[method-assign]
    p, opened = joined(list(engine.decide(batches_of(many, 4))))
    assert len(graphs) == 2
    assert torch.equal(opened, expected_opened)
    torch.testing.assert_close(p, expected_p, atol=1e-5, rtol=0)
    assert (engine.classifier, engine.retrieval) == before


class Copied:
    """A pass that is over."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = Encoding(*(column.clone() for column in encoding))

    def done(self) -> bool:
        return True

    def result(self) -> Encoding:
        return self.encoding


@pytest.mark.parametrize(("count", "threads", "expected"), [(2, None, 3), (1, 1, 1), (8, None, 1)])
def test_lanes_have_their_share_of_the_threads(count, threads, expected):
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    try:
        with passes.open_lanes(count, threads=threads) as lanes:
            assert {lanes.submit(torch.get_num_threads).result() for _ in range(count)} == {expected}
        assert torch.get_num_threads() == 6
    finally:
        torch.set_num_threads(before)


@pytest.mark.gpu
def test_a_gpu_replays_what_it_would_have_launched(model, images):
    many = [images[i % len(images)] for i in range(300)]
    predictor = Predictor(model, device="cuda")
    plain = Predictor(model, device="cuda")
    plain._recordings = None  # type: ignore[assignment]
    found, expected = (list(each.predict(many, batch_size=8)) for each in (predictor, plain))
    assert all(each._graph is not None for each in predictor._recordings._spare)
    assert len(predictor._recordings._spare) == 2
    assert [(each.label, each.opened) for each in found] == [(each.label, each.opened) for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
    again = list(predictor.predict(many, batch_size=8, embeddings=True))
    wanted = list(plain.predict(many, batch_size=8, embeddings=True))
    for one, other in zip(again, wanted, strict=True):
        torch.testing.assert_close(torch.tensor(one.features), torch.tensor(other.features), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(torch.tensor(one.embedding), torch.tensor(other.embedding), atol=1e-4, rtol=1e-4)
