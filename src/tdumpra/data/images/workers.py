"""Spread work over processes that may die: of a decoder's crash, or because an image asks for too much.

Each process reports task by task, so that the one that killed it is known. That task is reported and left out, a new
process takes over the rest, and the run goes on. Where tasks are ``limited``, one that takes more computing time or
memory than :mod:`tdumpra.limits` allows dies too; this needs Linux.
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
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import torch

from tdumpra.data.manifest import Record
from tdumpra.errors import BrokenImageError
from tdumpra.limits import MIB, VARIABLE, limits

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 32  # tasks per message to a process: some milliseconds of work each
_AHEAD = 64  # results that may wait for an earlier one
CRASHED = "decoding it kills the process"
_CAN_FORK = sys.platform == "linux"
_PATIENCE = 6  # times the limit of computing: a task that is not done by then hangs
_NO_MEMORY = 77  # the exit status of a worker whose task asked for more memory than it may have
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


def in_order(work: Callable[[T], R], tasks: Sequence[T], *, limited: bool) -> Generator[R | Died[T], None, None]:
    """Yield ``work(task)`` for each task in order, a few ahead of the caller.

    Limited tasks run in processes, if this one can fork; others share their memory, in threads. Decoding and resizing
    release the interpreter lock.
    """
    if not limited or not _CAN_FORK or multiprocessing.current_process().daemon:  # a daemon has no children
        with ThreadPoolExecutor(_THREADS) as pool:
            yield from pool.map(work, tasks)
        return

    def numbered(task: tuple[int, T]) -> tuple[int, R]:
        return task[0], work(task[1])

    due, early = 0, dict[int, R | Died[T]]()
    for results in run_tasks(
        numbered,
        list(enumerate(tasks)),
        workers=min(available_cores(), len(tasks)),
        limited=True,
        chunk=_AHEAD // 16,
        has_room=lambda: len(early) < _AHEAD,
    ):
        for result in results:
            if isinstance(result, Died):
                early[result.task[0]] = Died(result.task[1], result.reason)
            else:
                early[result[0]] = result[1]
        while due in early:
            yield early.pop(due)
            due += 1


def run_tasks(
    work: Callable[[T], R],
    tasks: Sequence[T],
    *,
    workers: int,
    limited: bool = False,
    chunk: int = CHUNK,
    has_room: Callable[[], bool] = lambda: True,
) -> Iterator[list[R | Died[T]]]:
    """Yield results in the order in which they finish. Without workers the work is done in this process.

    ``work`` reaches a worker once, by inheritance where processes are forked; exceptions that it raises come out here.
    Tasks are handed out ``chunk`` at a time, and none while the caller has no room for results.
    """
    chunks = deque(list(tasks[i : i + chunk]) for i in range(0, len(tasks), chunk))
    if workers == 0:
        for some in chunks:
            yield [work(task) for task in some]
        return
    staff: list[_Worker[T, R]] = []
    try:
        while chunks or any(worker.pending for worker in staff):
            while chunks and len(staff) < workers:
                staff.append(_Worker(work, limited))
            for worker in staff:
                idle = not any(each.pending for each in staff)  # the result that is waited for may be still to hand out
                if chunks and not worker.pending and (idle or has_room()):
                    worker.give(chunks.popleft())
            found: list[R | Died[T]] = []
            for worker in _ready(staff):
                found += worker.take()
                if worker.is_dead:
                    staff.remove(worker)
                    if worker.pending:
                        chunks.appendleft(list(worker.pending))
                        worker.pending.clear()
            yield found
    finally:
        for worker in staff:
            worker.end()


class Crew(Generic[T, R]):
    """Processes that stay, for limited tasks that come one at a time from any thread.

    They are forked from a server process that has nothing open: a fork of a program that answers requests would keep
    its connections open after it has closed them. ``preload`` names modules that ``work`` needs.
    """

    def __init__(self, work: Callable[[T], R], size: int, *, preload: Sequence[str] = ()) -> None:
        self._work, self._start = work, "forkserver" if _CAN_FORK else "spawn"
        if _CAN_FORK:
            multiprocessing.set_forkserver_preload([__name__, *preload])
        self._size, self._free = size, SimpleQueue[_Worker[T, R]]()
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
            if not connection.wait([worker.pipe, worker.process.sentinel], _PATIENCE * limits().image_seconds):
                worker.process.kill()
                worker.process.join()
            found = worker.take()
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

    def _hire(self) -> _Worker[T, R]:
        return _Worker(self._work, limited=True, start=self._start)


class _Worker(Generic[T, R]):
    """A process, and the tasks that it has not reported on yet."""

    def __init__(
        self, work: Callable[[T], R], limited: bool, start: str | None = "fork" if _CAN_FORK else None
    ) -> None:
        # Forking starts a worker in milliseconds where importing torch anew takes seconds. Python 3.12 warns of it
        # beside threads, of which numpy and torch always have some; a worker on one thread waits for none of them.
        context: Any = multiprocessing.get_context(start)
        self.pipe, theirs = context.Pipe()
        not_theirs = self.pipe if start == "fork" else None
        said = os.environ.get(VARIABLE, "")  # a process that is not forked from this one has an older environment
        self.process = context.Process(target=_serve, args=(work, theirs, not_theirs, limited, said), daemon=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            self.process.start()
        theirs.close()
        self.pending: deque[T] = deque()
        self.is_dead = False

    def give(self, tasks: Iterable[T]) -> None:
        self.pending.extend(tasks)
        try:
            self.pipe.send(list(self.pending))
        except OSError:  # it is gone, which take() finds
            return

    def take(self) -> list[R | Died[T]]:
        """Return what is reported by now; of a dead process, the task that killed it."""
        self.is_dead = not self.process.is_alive()  # before looking: then nothing more can come
        found: list[R | Died[T]] = []
        while self.pending and self.pipe.poll():
            try:
                error, result = self.pipe.recv()
            except (EOFError, OSError):  # in the middle of a report
                self.is_dead = True
                break
            if error is not None:
                raise error
            self.pending.popleft()
            found.append(result)
        if self.is_dead:
            self.process.join()
        if self.is_dead and self.pending:
            found.append(Died(self.pending.popleft(), _cause(self.process.exitcode)))
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _ready(staff: list[_Worker[T, R]]) -> list[_Worker[T, R]]:
    """Wait until a process reports or ends."""
    waited = {each: worker for worker in staff for each in (worker.pipe, worker.process.sentinel)}
    return list(dict.fromkeys(waited[each] for each in connection.wait(list(waited))))


def _cause(status: int | None) -> str:
    if status == _NO_MEMORY:
        return f"decoding it takes more than {limits().image_memory / MIB:,.0f} MiB of memory"
    if hasattr(signal, "SIGPROF") and status == -signal.SIGPROF:
        return f"decoding it takes more than {limits().image_seconds:g} s"
    return CRASHED


def _serve(work: Callable[[Any], Any], pipe: Any, parents: Any, limited: bool, said: str) -> None:
    """Work in a process of its own until the parent ends it, within the limits that the parent has."""
    os.environ[VARIABLE] = said
    if parents is not None:
        parents.close()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_follow_parent, daemon=True).start()
    if limited and _CAN_FORK:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        _limit_memory()
    while True:
        for task in pipe.recv():
            pipe.send(_attempt(work, task, limited and _CAN_FORK))


def _attempt(work: Callable[[Any], Any], task: Any, limited: bool) -> tuple[Exception | None, Any]:
    try:
        if limited:  # of computing, so that a busy machine refuses nothing; the signal ends the process
            signal.setitimer(signal.ITIMER_PROF, limits().image_seconds)
        return None, work(task)
    except MemoryError:
        os._exit(_NO_MEMORY)
    except Exception as error:
        if "allocate memory" in str(error):  # torch has no exception of its own for it
            os._exit(_NO_MEMORY)
        return _portable(error), None
    finally:
        if limited:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory() -> None:
    """Let this process have so much memory more than it has now."""
    import resource  # not on Windows

    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    most = now + int(limits().image_memory)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _follow_parent() -> None:
    """End with the parent. A worker whose parent was killed would otherwise wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _portable(error: Exception) -> Exception:
    """Replace an exception that cannot be pickled: it would end the process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
