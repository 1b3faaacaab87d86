"""Spread work over threads, and over processes that may die: of a decoder's crash, or of a lack of memory.

A pool that breaks loses everything it had in flight. These tasks are then tried again in ever smaller parts, until the
one that kills its process is found; it is reported and left out, and the run goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any, Generic, TypeVar

import torch

from tdumpra.data.manifest import Record
from tdumpra.errors import BrokenImageError

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 32  # tasks per message between processes: some milliseconds of work each
_IN_FLIGHT = 3  # chunks per worker: enough that none waits, few enough to be suspects

_work: Callable[[Any], Any] | None = None  # in a worker process: what it does to each task


class Died(Generic[T]):
    """The result of a task whose process did not survive it."""

    def __init__(self, task: T) -> None:
        self.task = task


def scan(
    records: Sequence[Record], look: Callable[[Record], T], *, on_step: Callable[[], object] | None = None
) -> list[T | BrokenImageError]:
    """Return ``look(record)`` for each record in order, or its ``BrokenImageError``.

    Threads suffice: decoding and resizing release the interpreter lock. ``on_step`` is called after each record, on
    the caller's thread, for a progress bar.
    """

    def attempt(record: Record) -> T | BrokenImageError:
        try:
            return look(record)
        except BrokenImageError as error:
            return error

    found: list[T | BrokenImageError] = []
    with ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool:
        for result in pool.map(attempt, records):
            found.append(result)
            if on_step is not None:
                on_step()
    return found


def available_cores() -> int:
    """Return the number of cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(work: Callable[[T], R], tasks: Sequence[T], *, workers: int) -> Iterator[list[R | Died[T]]]:
    """Yield results in chunks, in the order in which they finish. Without workers the work is done in this process.

    ``work`` reaches a worker once, by inheritance where processes are forked; exceptions that it raises come out here.
    """
    chunks = deque(list(tasks[i : i + CHUNK]) for i in range(0, len(tasks), CHUNK))
    if workers == 0:
        for chunk in chunks:
            yield [work(task) for task in chunk]
        return
    while chunks:
        for suspects in (yield from _run_until_broken(work, chunks, workers)):
            yield _run_alone(work, suspects)


def _run_until_broken(
    work: Callable[[T], R], chunks: deque[list[T]], workers: int
) -> Generator[list[R | Died[T]], None, list[list[T]]]:
    """Work through ``chunks`` from the left. Returns those that were in flight when the pool broke, if it did."""
    in_flight: dict[Future[list[Any]], list[T]] = {}
    pool = _pool(work, workers)
    try:
        while chunks or in_flight:
            while chunks and len(in_flight) < _IN_FLIGHT * workers:
                in_flight[pool.submit(_work_through, chunks[0])] = chunks[0]
                chunks.popleft()
            done, _ = wait(in_flight, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
                del in_flight[future]
    except BrokenProcessPool:
        return list(in_flight.values())
    finally:
        pool.shutdown(cancel_futures=True)
    return []


def _run_alone(work: Callable[[T], R], tasks: list[T]) -> list[R | Died[T]]:
    """Run in one process; if it dies, run two halves, down to the one task that kills it."""
    pool = _pool(work, 1)
    try:
        return pool.submit(_work_through, tasks).result()
    except BrokenProcessPool:
        if len(tasks) == 1:
            return [Died(tasks[0])]
    finally:
        pool.shutdown()
    middle = len(tasks) // 2
    return _run_alone(work, tasks[:middle]) + _run_alone(work, tasks[middle:])


def _pool(work: Callable[[Any], Any], workers: int) -> ProcessPoolExecutor:
    # Forking starts a worker in milliseconds where importing torch anew takes seconds. Python 3.12 warns of it beside
    # threads, of which numpy and torch always have some; a worker that computes on one thread waits for none of them.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(work,))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        pool.submit(os.getpid)  # the first task starts the processes
    return pool


def _start_worker(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """End with the parent. A worker whose parent was killed would otherwise wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _work_through(tasks: list[Any]) -> list[Any]:
    if _work is None:
        raise RuntimeError("a worker process was not started by run_tasks")
    try:
        return [_work(task) for task in tasks]
    except Exception as error:
        raise _portable(error) from None


def _portable(error: Exception) -> Exception:
    """Replace an exception that cannot be pickled: it would break the pool, as if the process had died."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
