"""Looking at every image of a data set once, in parallel, without stopping at a broken one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tdumpra.data.manifest import Record
from tdumpra.errors import BrokenImageError

T = TypeVar("T")


def scan(
    records: Sequence[Record], look: Callable[[Record], T], *, on_step: Callable[[], object] | None = None
) -> list[T | BrokenImageError]:
    """What ``look`` says of each record, in order; a broken image gives its error instead.

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
