"""A lock between processes that no crash can leave behind.

The operating system releases it with the last process that holds the file open. Forked workers that write inherit it:
if their parent is killed, nobody can take over a file to which an orphan may still write. Workers that only read drop
it at once, so that a killed run can be resumed at once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_of_this_process_alone: set[int] = set()  # descriptors that a forked child closes


def _close_in_child() -> None:
    for descriptor in _of_this_process_alone:
        os.close(descriptor)
    _of_this_process_alone.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def exclusive(path: Path, *, on_wait: Callable[[], None] = lambda: None, inherited: bool = True) -> Iterator[None]:
    """Hold the lock file ``path``; ``on_wait`` is called once if another process has it.

    With ``inherited=False`` the lock ends with this process, whatever becomes of the children it forked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    if not inherited:
        _of_this_process_alone.add(descriptor)
    try:
        if not _try_lock(descriptor):
            on_wait()
            _lock(descriptor)
        try:
            yield
        finally:
            _unlock(descriptor)
    finally:
        _of_this_process_alone.discard(descriptor)
        os.close(descriptor)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _lock(descriptor: int) -> None:
        while not _try_lock(descriptor):
            time.sleep(0.2)

    def _unlock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # for every inheritor too; closing our end alone would not
