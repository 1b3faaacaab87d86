"""What a worker process does: it works on tasks within the limits, and ends with its parent."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

from tdumpra.allocator import keep_little_freed_memory
from tdumpra.limits import VARIABLE, limits

CAN_FORK = sys.platform == "linux"
_REPORT_EVERY = 0.02  # seconds
NO_MEMORY = 77  # the exit status of a worker whose task asked for more memory than it may have


def serve(
    work: Callable[[Any], Any], pipe: Any, parents: Any, done: memoryview | None, limited: bool, said: str
) -> None:
    """Report on tasks until the parent ends this process; ``said`` are the limits that it has.

    Each report wakes the parent. So tasks that come together, and take little time, are reported together, and
    ``done`` counts those that are finished, for a parent that must know which one this process died of. Without it
    each is reported by itself.
    """
    os.environ[VARIABLE] = said
    if parents is not None:
        parents.close()
    if "torch" in sys.modules:  # images can be read without it
        sys.modules["torch"].set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_follow_parent, daemon=True).start()
    if limited and CAN_FORK:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        keep_little_freed_memory()  # what a large image leaves behind must not count against the next
        _limit_memory()
    while True:
        reports: list[tuple[Exception | None, Any]] = []
        tasks, begun = pipe.recv(), time.monotonic()
        for task in tasks:
            reports.append(_attempt(work, task, limited and CAN_FORK))
            if done is not None:
                done[0] += 1
            if done is None or time.monotonic() - begun > _REPORT_EVERY:
                pipe.send(reports)
                reports, begun = [], time.monotonic()
        if reports:
            pipe.send(reports)


def _attempt(work: Callable[[Any], Any], task: Any, limited: bool) -> tuple[Exception | None, Any]:
    try:
        if limited:  # of computing, so that a busy machine refuses nothing; the signal ends the process
            signal.setitimer(signal.ITIMER_PROF, limits().image_seconds)
        return None, work(task)
    except MemoryError:
        os._exit(NO_MEMORY)
    except Exception as error:
        if "allocate memory" in str(error):  # torch has no exception of its own for it
            os._exit(NO_MEMORY)
        return _portable(error), None
    finally:
        if limited:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory() -> None:
    """Let this process have so much memory more than it has now.

    Its addresses are limited, and what it may write to: allocators reserve addresses long before they use them.
    """
    import resource  # not on Windows

    with open("/proc/self/statm") as file:
        size, *_, data, _ = (int(pages) * resource.getpagesize() for pages in file.read().split())
    for limit, now in ((resource.RLIMIT_AS, size), (resource.RLIMIT_DATA, data)):
        most, hard = now + int(limits().image_memory), resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


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
