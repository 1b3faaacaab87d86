"""How much a file from a stranger may cost: the limits, with their numbers, in one place.

The environment variable ``TDUMPRA_LIMITS`` changes them, for this process and for the workers that it starts::

    TDUMPRA_LIMITS="image_pixels=200e6, image_seconds=30" tdumpra predict …
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from tdumpra.errors import InputFileError, nearest

VARIABLE = "TDUMPRA_LIMITS"
MIB, GIB = 2**20, 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that is read. What lies above is refused in one sentence that names the limit."""

    image_bytes: float = 256 * MIB  # of the file
    image_pixels: float = 64e6  # a dermatoscope's camera makes 24 million; Pillow only warns, and at 89 million
    image_side: float = 32_768  # pixels of the longer side
    image_frames: float = 10_000  # of an animation, or pages; the first alone is decoded
    image_scans: float = 100  # of a progressive JPEG, each of which passes over the whole picture; cameras write ten
    image_seconds: float = 10  # of computing, to decode and frame one image in a worker process
    image_memory: float = 1 * GIB  # bytes above what the worker process has from the start
    table_rows: float = 20e6
    table_columns: float = 20_000  # 1,000 classes and embeddings of 4,096, for two networks
    table_bytes: float = 16 * GIB  # in memory, all arrays together
    table_growth: float = 50  # bytes in memory for each byte of the file, where they are more than 256 MiB
    artifact_bytes: float = 16 * GIB  # of a model, a checkpoint, a table of outputs


def limits() -> Limits:
    """Return the limits of this process."""
    return _parse(os.environ.get(VARIABLE, ""))


def refuse_above(name: str, value: float, what: str) -> str | None:
    """Return why ``value`` of ``what`` is more than the limit ``name``, and how to raise it; ``None`` if it is not."""
    most = getattr(limits(), name)
    if value <= most:  # false for NaN
        return None
    return f"{value:,.0f} {what} are more than the {most:,.0f} that are read ({VARIABLE}={name}=… raises that)"


@lru_cache(maxsize=8)
def _parse(text: str) -> Limits:
    known = {field.name for field in fields(Limits)}
    values: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, number = (word.strip() for word in part.partition("="))
        if name not in known:
            hint = nearest(name, known) or f"; there are {', '.join(sorted(known))}"
            raise InputFileError(f"{VARIABLE} names {name!r}, which is no limit{hint}")
        try:
            values[name] = float(number)
        except ValueError:
            raise InputFileError(f"{VARIABLE}: {name} must be a number, not {number!r}") from None
        if not values[name] > 0:  # true for NaN
            raise InputFileError(f"{VARIABLE}: {name} must be above 0, not {number!r}")
    return replace(Limits(), **values)
