"""Processes that stay, for images that come one at a time, as to a server."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing import connection
from queue import SimpleQueue
from typing import Generic, TypeVar

from tdumpra.data.images.worker_process import CAN_FORK
from tdumpra.data.images.workers import CRASHED, Died, Worker
from tdumpra.limits import limits

T = TypeVar("T")
R = TypeVar("R")

_PATIENCE = 6  # times the limit of computing: a task that is not done by then hangs


class Crew(Generic[T, R]):
    """Processes that stay, for limited tasks that come one at a time from any thread.

    They are forked from a server process that has nothing open: a fork of a program that answers requests would keep
    its connections open after it has closed them. ``preload`` names modules that ``work`` needs.
    """

    def __init__(self, work: Callable[[T], R], size: int, *, preload: Sequence[str] = ()) -> None:
        self._work, self._start = work, "forkserver" if CAN_FORK else "spawn"
        if CAN_FORK:
            multiprocessing.set_forkserver_preload([__name__, *preload])
        self._size, self._free = size, SimpleQueue[Worker[T, R]]()
        for _ in range(size):
            self._free.put(self._hire())

    def do(self, task: T) -> R | Died[T]:
        """Return ``work(task)`` as soon as a process is free for it. One that dies of it twice is to blame for it."""
        found = self._try(task)
        return self._try(task) if isinstance(found, Died) and found.reason == CRASHED else found

    def _try(self, task: T) -> R | Died[T]:
        worker = self._free.get()
        try:
            worker.give([task])
            ready = connection.wait([worker.pipe, worker.process.sentinel], _PATIENCE * limits().image_seconds)
            if not ready:
                worker.process.kill()
                worker.process.join()
            found = worker.take(ended=worker.pipe not in ready)
            return found[0] if found else Died(task, CRASHED)
        finally:
            if worker.is_dead or worker.pending or not worker.process.is_alive():
                worker.end()
                worker = self._hire()
            self._free.put(worker)

    def close(self) -> None:
        """End all processes, each once its task is done."""
        for _ in range(self._size):
            self._free.get().end()

    def _hire(self) -> Worker[T, R]:
        return Worker(self._work, limited=True, start=self._start)
