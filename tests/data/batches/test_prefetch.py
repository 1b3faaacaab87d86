from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from tdumpra.data.batches.pipeline import TrainBatch
from tdumpra.data.batches.prefetch import prefetch


def batches(n: int, device: str, made: list[int] | None = None) -> Iterator[TrainBatch]:
    for i in range(n):
        if made is not None:
            made.append(i)
        yield TrainBatch(torch.full((2, 4, 3, 8, 8), float(i), device=device), torch.full((4,), i, device=device))


def test_a_cpu_takes_batches_as_they_come():
    made: list[int] = []
    stream = prefetch(batches(5, "cpu", made), torch.device("cpu"))
    assert int(next(stream).numbers[0]) == 0
    assert made == [0]  # nothing is made ahead
    assert [int(batch.numbers[0]) for batch in stream] == [1, 2, 3, 4]


@pytest.mark.gpu
def test_a_gpu_gets_the_same_batches_in_the_same_order():
    seen = [(float(b.views.mean()), int(b.numbers[0])) for b in prefetch(batches(20, "cuda"), torch.device("cuda"))]
    assert seen == [(float(i), i) for i in range(20)]


@pytest.mark.gpu
def test_an_error_reaches_whoever_asks():
    def broken() -> Iterator[TrainBatch]:
        yield from batches(2, "cuda")
        raise ValueError("no more")

    stream = prefetch(broken(), torch.device("cuda"))
    next(stream), next(stream)
    with pytest.raises(ValueError, match="no more"):
        next(stream)


@pytest.mark.gpu
def test_leaving_early_ends_the_thread():
    before = threading.active_count()
    stream = prefetch(batches(100, "cuda"), torch.device("cuda"))
    next(stream)
    del stream  # closes it
    assert threading.active_count() == before


@pytest.mark.gpu
def test_the_host_does_not_run_ahead_of_a_gpu_that_is_busy():
    """At most one batch is under way and one waits: what is made ahead takes memory."""
    waited: list[torch.cuda.Event] = []
    for _ in prefetch(batches(12, "cuda"), torch.device("cuda")):
        assert all(event.query() for event in waited[:-2])
        torch.cuda._sleep(20_000_000)
        waited.append(torch.cuda.current_stream().record_event())
