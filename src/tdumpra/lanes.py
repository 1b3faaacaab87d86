"""Threads that compute while the caller goes on.

A pass through a network cannot be interrupted. The caller of :class:`Lanes` waits for a lock instead, so that Ctrl-C
reaches it at once. A program that ends waits for the calls under way: Python would tidy up under them, and crash.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_NAME = "tdumpra-lane"


class Lanes:
    """Threads that take calls in the order in which they are given. Close them, or use them in a ``with``.

    Args:
        count: how many calls run at a time.
        begin: what each thread does first; all have done so when the lanes are made.
    """

    def __init__(self, count: int, begin: Callable[[], object] = lambda: None) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], None]] | None] = SimpleQueue()
        began = threading.Barrier(count + 1)
        self._threads = [
            threading.Thread(target=self._work, args=(begin, began), name=_NAME, daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()
        began.wait()
        _made.add(self)

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Have a function called; what it raises comes out of the future."""
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*arguments))
            except BaseException as error:  # it belongs to whoever asks for the result
                future.set_exception(error)

        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """End each thread after its call; calls that wait are cancelled. Nobody waits for the threads."""
        with suppress(Empty):  # a lane may take what was here when one looked
            while True:
                if (waiting := self._calls.get_nowait()) is not None:
                    waiting[0].cancel()  # somebody may wait for it
        for _ in self._threads:
            self._calls.put(None)

    def wait(self) -> None:
        """Wait until closed lanes have ended."""
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self, begin: Callable[[], object], began: threading.Barrier) -> None:
        try:
            begin()
        finally:
            began.wait()
        while (waiting := self._calls.get()) is not None:
            waiting[1]()
            del waiting  # with the arrays of its call, before the next one comes


_made: WeakSet[Lanes] = WeakSet()


@atexit.register
def _end() -> None:
    every = list(_made)
    for lanes in every:
        lanes.close()
    for lanes in every:
        lanes.wait()


def are_open() -> bool:
    """Return whether any lane of this process is open, and may be computing."""
    return any(thread.name == _NAME for thread in threading.enumerate())
