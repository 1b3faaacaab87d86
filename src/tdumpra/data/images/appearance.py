"""What is kept of a picture where the picture itself may not be kept: its colours, and a name for its pixels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int64, UInt8
from PIL import Image

from tdumpra.artifacts import fingerprint
from tdumpra.data.images.store import ImageStore

_AT_ONCE = 64  # images
_VALUES = np.arange(256) / 255


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
    colours = np.array([_colours(image) for image in pixels], np.float32).reshape(-1, 6)
    shape = str(pixels.shape[1:])
    names = tuple(fingerprint(shape, np.ascontiguousarray(image).tobytes()) for image in pixels)
    return Appearance(colours, names)


def _colours(image: UInt8[np.ndarray, "height width 3"]) -> Float64[np.ndarray, " 6"]:
    """Return mean and deviation of each channel, from counts of its 256 values: no pixel becomes a wider number."""
    share = np.array(Image.fromarray(image).histogram(), np.float64).reshape(3, 256) / image[..., 0].size
    mean = share @ _VALUES
    deviation = np.sqrt((share * (_VALUES - mean[:, None]) ** 2).sum(1))
    return np.concatenate([mean, deviation])


def appearance_of(store: ImageStore, numbers: Int64[np.ndarray, " n"]) -> Appearance:
    """Describe images of a store, some at a time."""
    parts = (numbers[start : start + _AT_ONCE] for start in range(0, len(numbers), _AT_ONCE))
    return Appearance.join([appearance(store.read(part)) for part in parts])
