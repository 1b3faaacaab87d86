"""Threads that compute while the caller goes on.

A pass through a network cannot be interrupted. The caller of :class:`Lanes` waits for a lock instead, so that Ctrl-C
reaches it at once, and nobody waits for the threads when the program ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_NAME = "tdumpra-lane"


class Lanes:
    """Threads that take calls in the order in which they are given. Close them, or use them in a ``with``.

    Args:
        count: how many calls run at a time.
        begin: what each thread does first; all have done so when the lanes are made.
    """

    def __init__(self, count: int, begin: Callable[[], object] = lambda: None) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._count, began = count, threading.Barrier(count + 1)
        for _ in range(count):
            threading.Thread(target=self._work, args=(begin, began), name=_NAME, daemon=True).start()
        began.wait()

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

        self._calls.put(call)
        return future

    def close(self) -> None:
        """End each thread after its call; calls that wait are dropped. Nobody waits for the threads."""
        while not self._calls.empty():
            self._calls.get()
        for _ in range(self._count):
            self._calls.put(None)

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self, begin: Callable[[], object], began: threading.Barrier) -> None:
        try:
            begin()
        finally:
            began.wait()
        while (call := self._calls.get()) is not None:
            call()
            del call  # with the arrays of its call, before the next one comes


def are_open() -> bool:
    """Return whether any lane of this process is open, and may be computing."""
    return any(thread.name == _NAME for thread in threading.enumerate())
