"""Make the next batch while the network works on this one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import torch

from tdumpra.data.batches.pipeline import TrainBatch

_AHEAD = 1  # batches that are made or wait; each takes device memory


def prefetch(batches: Iterator[TrainBatch], device: torch.device) -> Iterator[TrainBatch]:
    """Yield ``batches`` in the same order, made by a thread on a CUDA stream of its own. Only a GPU gains from it.

    Launching a batch's augmentation takes the host some milliseconds, during which the GPU would wait between two
    steps. The thread does it during the backward pass, when Python has nothing to do.
    """
    if device.type != "cuda":
        yield from batches
        return
    ready: _Queue = queue.SimpleQueue()
    room = threading.Semaphore(_AHEAD)
    stop = threading.Event()
    thread = threading.Thread(target=_produce, args=(batches, device, ready, room, stop), daemon=True)
    thread.start()
    done: torch.cuda.Event | None = None  # with the batch before the last one
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            batch, made = item
            room.release()
            here = torch.cuda.current_stream(device)
            here.wait_event(made)
            for tensor in batch:
                tensor.record_stream(here)  # its memory is not free until this stream is done with it
            yield batch
            del batch, item
            if done is not None:
                done.synchronize()  # launching ever further ahead would fill the memory with batches that wait
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record(here)
    finally:
        stop.set()
        room.release()  # so that a waiting producer sees the signal
        thread.join()


_Queue = queue.SimpleQueue[tuple[TrainBatch, torch.cuda.Event] | BaseException | None]


def _produce(
    batches: Iterator[TrainBatch], device: torch.device, ready: _Queue, room: threading.Semaphore, stop: threading.Event
) -> None:
    try:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            room.acquire()
            for batch in batches:
                ready.put((batch, stream.record_event()))
                del batch  # or it would be kept while the next one is made
                room.acquire()
                if stop.is_set():
                    return
        ready.put(None)
    except BaseException as error:  # handed over: it belongs to whoever asks for the next batch
        ready.put(error)
