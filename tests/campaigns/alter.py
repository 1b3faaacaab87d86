"""Ways to damage the bytes of a file. Seeded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Alter = Callable[[bytes, np.random.Generator], bytes]


def flip(data: bytes, rng: np.random.Generator) -> bytes:
    """Flip one bit."""
    altered = bytearray(data)
    altered[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return bytes(altered)


def cut(data: bytes, rng: np.random.Generator) -> bytes:
    """Keep the beginning alone."""
    return data[: int(rng.integers(len(data)))]


def _flip_some(data: bytes, rng: np.random.Generator) -> bytes:
    for _ in range(int(rng.integers(1, 4))):
        data = flip(data, rng)
    return data


def _insert(data: bytes, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(len(data)))
    return data[:place] + rng.bytes(int(rng.integers(1, 40))) + data[place:]


def _remove(data: bytes, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(len(data)))
    return data[:place] + data[place + int(rng.integers(1, 60)) :]


def _repeat(data: bytes, rng: np.random.Generator) -> bytes:
    start, end = sorted(int(each) for each in rng.integers(len(data), size=2))
    return data[:end] + data[start:]


def _exchange(data: bytes, rng: np.random.Generator) -> bytes:
    first, second, third = sorted(int(each) for each in rng.integers(len(data), size=3))
    return data[:first] + data[second:third] + data[first:second] + data[third:]


def _overwrite(data: bytes, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(len(data)))
    fill = (b"\x00", b"\xff", b" ", b"9", b",", b"\n", b"-", b'"')[int(rng.integers(8))]
    length = int(rng.integers(1, 30))
    return data[:place] + fill * length + data[place + length :]


WAYS: tuple[Alter, ...] = (_flip_some, _flip_some, cut, _insert, _remove, _repeat, _exchange, _overwrite)


def any_way(data: bytes, rng: np.random.Generator) -> bytes:
    """Alter a file in one of :data:`WAYS`, or in several."""
    for _ in range(1 + int(rng.random() < 0.2)):
        data = WAYS[int(rng.integers(len(WAYS)))](data, rng) if data else data
    return data
