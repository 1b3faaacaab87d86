"""What is kept of a picture where the picture itself may not be kept: its colours, and a name for its pixels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from tdumpra.artifacts import fingerprint
from tdumpra.data.images.store import ImageStore

_AT_ONCE = 64  # images


class Appearance(NamedTuple):
    """Some images, row by row."""

    colours: Float32[np.ndarray, "n 6"]  # mean of red, green and blue, then their standard deviations, from 0 to 1
    content: tuple[str, ...]  # equal where the framed pixels are

    @classmethod
    def join(cls, parts: list[Appearance]) -> Appearance:
        """Put several together, one after the other."""
        colours = np.concatenate([np.empty((0, 6), np.float32), *(part.colours for part in parts)])
        return cls(colours, tuple(name for part in parts for name in part.content))


def appearance(pixels: UInt8[np.ndarray, "n height width 3"]) -> Appearance:
    """Describe framed images. The colours of two photographs of one lesion are alike, and their names are not."""
    flat = pixels.reshape(len(pixels), -1, 3).astype(np.float32) / 255
    mean = flat.mean(1)
    deviation = np.sqrt(np.square(flat - mean[:, None]).mean(1))
    shape = str(pixels.shape[1:])
    names = tuple(fingerprint(shape, np.ascontiguousarray(image).tobytes()) for image in pixels)
    return Appearance(np.concatenate([mean, deviation], axis=1), names)


def appearance_of(store: ImageStore, numbers: Int64[np.ndarray, " n"]) -> Appearance:
    """Describe images of a store, some at a time."""
    parts = (numbers[start : start + _AT_ONCE] for start in range(0, len(numbers), _AT_ONCE))
    return Appearance.join([appearance(store.read(part)) for part in parts])
