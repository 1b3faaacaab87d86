"""Spread work over processes that may die: of a decoder's crash, or because an image asks for too much.

Each process counts the tasks that it has finished, so that the one that killed it is known. A task that kills two
processes is reported and left out, a new process takes over the rest, and the run goes on. Where tasks are ``limited``,
one that takes more computing time or memory than :mod:`tdumpra.limits` allows dies too; this needs Linux.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import selectors
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import connection
from typing import Any, Generic, TypeVar

from tdumpra.data.images.worker_process import CAN_FORK, NO_MEMORY, serve
from tdumpra.data.manifest import Record
from tdumpra.errors import BrokenImageError
from tdumpra.limits import MIB, VARIABLE, limits

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 32  # tasks per message to a process: some milliseconds of work each
_AHEAD = 64  # results that may wait for an earlier one
_SHORT = 4  # tasks per message where results are wanted in order
_MESSAGES = 2  # that a process has at once, so that it need not wait for the next
CRASHED = "decoding it kills the process"
_START = "fork" if CAN_FORK else None  # of processes; None is the system's usual way
_THREADS = min(32, os.cpu_count() or 1)


class Died(Generic[T]):
    """The result of a task whose process did not survive it."""

    def __init__(self, task: T, reason: str) -> None:
        self.task, self.reason = task, reason


def available_cores() -> int:
    """Return the number of cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def scan(
    records: Sequence[Record], look: Callable[[Record], T], *, on_step: Callable[[], object] | None = None
) -> list[T | BrokenImageError]:
    """Return ``look(record)`` for each record in order, or its ``BrokenImageError``.

    Files are decoded within the limits. ``on_step`` is called after each record, on the caller's thread, for a progress
    bar.
    """

    def attempt(record: Record) -> T | BrokenImageError:
        try:
            return look(record)
        except BrokenImageError as error:
            return error

    found: list[T | BrokenImageError] = []
    from_files = all(record.path is not None for record in records)
    for result in in_order(attempt, records, limited=from_files):
        found.append(BrokenImageError(result.reason) if isinstance(result, Died) else result)
        if on_step is not None:
            on_step()
    return found


def most_ahead(workers: int | None = None) -> int:
    """Return how many tasks :func:`in_order` may have begun beyond those whose results the caller has taken."""
    return _AHEAD + _MESSAGES * _SHORT * (workers or available_cores())


def in_order(
    work: Callable[[T], R], tasks: Sequence[T], *, limited: bool, workers: int | None = None
) -> Generator[R | Died[T], None, None]:
    """Yield ``work(task)`` for each task in order, a few ahead of the caller.

    Limited tasks run in processes, if this one can fork, as many as there are cores unless ``workers`` says otherwise;
    others share their memory, in threads. Decoding and resizing release the interpreter lock.
    """
    if not limited or not CAN_FORK or multiprocessing.current_process().daemon:  # a daemon has no children
        yield from _in_threads(work, tasks)
        return

    def numbered(i: int) -> tuple[int, R]:  # processes inherit the tasks, and are told numbers
        return i, work(tasks[i])

    due, early = 0, dict[int, R | Died[T]]()
    for results in run_tasks(
        numbered,
        list(range(len(tasks))),
        workers=min(workers or available_cores(), len(tasks)),
        limited=True,
        chunk=_SHORT,
        messages=_MESSAGES,
        has_room=lambda: len(early) < _AHEAD,
    ):
        for result in results:
            if isinstance(result, Died):
                early[result.task] = Died(tasks[result.task], result.reason)
            else:
                early[result[0]] = result[1]
        while due in early:
            yield early.pop(due)
            due += 1


def _in_threads(work: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            for task in tasks:
                pending.append(pool.submit(work, task))
                if len(pending) == _AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for each in pending:  # of a caller that wants no more
                each.cancel()


def run_tasks(
    work: Callable[[T], R],
    tasks: Sequence[T],
    *,
    workers: int,
    limited: bool = False,
    chunk: int = CHUNK,
    messages: int = 1,
    has_room: Callable[[], bool] = lambda: True,
) -> Iterator[list[R | Died[T]]]:
    """Yield results in the order in which they finish. Without workers the work is done in this process.

    ``work`` reaches a worker once, by inheritance where processes are forked; exceptions that it raises come out here.
    Tasks are handed out ``chunk`` at a time, and none while the caller has no room for results. A worker has as many
    ``messages`` at once; where it has several they must be short, as both sides may be writing.
    """
    chunks = deque(_in_chunks(tasks, chunk))
    if workers == 0:
        for some in chunks:
            yield [work(task) for task in some]
        return
    staff: list[Worker[T, R]] = []
    suspects: set[int] = set()  # tasks whose process was killed once, perhaps by somebody else
    watch = _Watch()

    def hand_out(some: list[Worker[T, R]], most: int = 0) -> None:
        """Give a message to each that has at most so many tasks, as long as there is room for results."""
        for worker in some:
            # Without room too where nobody has a task: the result that is waited for may be still to hand out.
            if chunks and len(worker.pending) <= most and (has_room() or not any(each.pending for each in staff)):
                worker.give(chunks.popleft())

    try:
        while chunks or any(worker.pending for worker in staff):
            while chunks and len(staff) < workers:
                staff.append(Worker(work, limited))
                watch.add(staff[-1])
                hand_out(staff[-1:])  # it works while the others are started
            for most in range(0, messages * chunk, chunk):
                hand_out(staff, most)
            found: list[R | Died[T]] = []
            for worker, ended in watch.wait():
                for result in worker.take(ended):
                    if isinstance(result, Died) and result.reason == CRASHED and id(result.task) not in suspects:
                        suspects.add(id(result.task))
                        worker.pending.appendleft(result.task)
                    else:
                        found.append(result)
                if worker.is_dead:
                    staff.remove(worker)
                    watch.drop(worker)
                    chunks.extendleft(reversed(_in_chunks(list(worker.pending), chunk)))
            yield found
            for worker in staff:
                if worker.error is not None:
                    raise worker.error
    finally:
        watch.close()
        for worker in staff:
            worker.process.kill()  # all at once: the system takes its time to tidy up after each
        for worker in staff:
            worker.end()


def _in_chunks(tasks: Sequence[T], size: int) -> list[list[T]]:
    return [list(tasks[i : i + size]) for i in range(0, len(tasks), size)]


class Worker(Generic[T, R]):
    """A process, and the tasks that it has not reported on yet."""

    def __init__(self, work: Callable[[T], R], limited: bool, start: str | None = _START) -> None:
        # Forking starts a worker in milliseconds where importing torch anew takes seconds. Python 3.12 warns of it
        # beside threads, of which numpy and torch always have some; a worker on one thread waits for none of them.
        context: Any = multiprocessing.get_context(start)
        self.pipe, theirs = context.Pipe()
        not_theirs = self.pipe if start == "fork" else None
        said = os.environ.get(VARIABLE, "")  # a process that is not forked from this one has an older environment
        self.done = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q") if start == "fork" else None
        arguments = (work, theirs, not_theirs, self.done, limited, said)
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            self.process.start()
        theirs.close()
        self.pending: deque[T] = deque()
        self.reported = 0
        self.is_dead = False
        self.error: Exception | None = None  # of a task, beside results that were returned

    def give(self, tasks: list[T]) -> None:
        """Hand tasks over."""
        self.pending.extend(tasks)
        try:
            self.pipe.send(tasks)
        except OSError:  # it is gone, which take() finds
            return

    def take(self, ended: bool) -> list[R | Died[T]]:
        """Return the results that wait; of an ended process all of them, and the task that killed it."""
        found: list[R | Died[T]] = []
        self.is_dead = ended
        while self.pending and self.error is None and (self.pipe.poll() if ended else not found):
            try:
                reports = self.pipe.recv()
            except (EOFError, OSError):  # it ended, perhaps in the middle of a report
                self.is_dead = True
                break
            for error, result in reports:
                self.error = self.error or error
                if self.error is not None:
                    break
                self.pending.popleft()
                self.reported += 1
                found.append(result)
        if self.error is not None and not found:
            raise self.error
        if self.is_dead:
            self.process.join()
            unreported = 0 if self.done is None else self.done[0] - self.reported  # tasks that it had finished
            if unreported < len(self.pending):
                found.append(Died(self.pending[unreported], _cause(self.process.exitcode)))
                del self.pending[unreported]
        return found

    def end(self) -> None:
        """Stop the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class _Watch:
    """Tells which processes report or end.

    The system learns their names once: to name all of them for each report costs more than decoding, where there are
    many. Windows knows no such list.
    """

    def __init__(self) -> None:
        self._selector = None if sys.platform == "win32" else selectors.DefaultSelector()
        self._watched: dict[Any, tuple[Worker[Any, Any], bool]] = {}

    def add(self, worker: Worker[Any, Any]) -> None:
        for each, ended in ((worker.pipe, False), (worker.process.sentinel, True)):
            self._watched[each] = worker, ended
            if self._selector is not None:
                self._selector.register(each, selectors.EVENT_READ, (worker, ended))

    def drop(self, worker: Worker[Any, Any]) -> None:
        for each in (worker.pipe, worker.process.sentinel):
            del self._watched[each]
            if self._selector is not None:
                self._selector.unregister(each)

    def wait(self) -> list[tuple[Worker[Any, Any], bool]]:
        """Wait until a process reports or ends; each such process with whether it ended."""
        if self._selector is None:
            found = [self._watched[each] for each in connection.wait(list(self._watched))]
        else:
            found = [key.data for key, _ in self._selector.select()]
        return list(dict(sorted(found, key=lambda each: each[1])).items())

    def close(self) -> None:
        if self._selector is not None:
            self._selector.close()


def _cause(status: int | None) -> str:
    if status == NO_MEMORY:
        return f"decoding it takes more than {limits().image_memory / MIB:,.0f} MiB of memory"
    if hasattr(signal, "SIGPROF") and status == -signal.SIGPROF:
        return f"decoding it takes more than {limits().image_seconds:g} s"
    return CRASHED
