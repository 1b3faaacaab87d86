r"""The resize of every framed image: antialiased, bicubic, from 8 bits to 8 bits.

torch's kernel does it where torch is loaded. Elsewhere NumPy does the same arithmetic, to the bit: weights of Keys'
cubic with :math:`a = -1/2`, rounded to 16 bits with as many of them behind the point as the largest one allows; rows
first, then columns, each rounded to 8 bits.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import UInt8

_SUPPORT = 2.0  # the cubic is zero beyond
_MOST_BITS = 22  # behind the point


def resize(pixels: UInt8[np.ndarray, "h w 3"], height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
    """Bring a picture to another size: forty times as fast where torch is loaded, and the same without."""
    if "torch" in sys.modules:
        return _with_torch(pixels, height, width)
    return without_torch(pixels, height, width)


def without_torch(pixels: UInt8[np.ndarray, "h w 3"], height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
    """Resize with NumPy alone."""
    if pixels.shape[1] != width:  # along rows: the columns of the picture become the first axis, and go back
        columns = np.ascontiguousarray(pixels.transpose(1, 0, 2))
        pixels = _along_first(columns, width).transpose(1, 0, 2)
    if pixels.shape[0] != height:
        pixels = _along_first(np.ascontiguousarray(pixels), height)
    return np.ascontiguousarray(pixels)


def _with_torch(pixels: UInt8[np.ndarray, "h w 3"], height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
    import torch

    from tdumpra.checks import to_tensor

    x = to_tensor(pixels, "pixels").unsqueeze(0).permute(0, 3, 1, 2)  # in this order torch knows the channels as last
    x = torch.nn.functional.interpolate(x, (height, width), mode="bicubic", antialias=True)
    return x.permute(0, 2, 3, 1).squeeze(0).contiguous().numpy()


class _Taps(NamedTuple):
    """For each pixel after a resize: which pixels before count, and with what weight."""

    places: np.ndarray  # (taps, after)
    weights: np.ndarray  # (taps, after), in units of 2^-bits
    bits: int


def _along_first(pixels: np.ndarray, after: int) -> np.ndarray:
    taps = _taps(len(pixels), after)
    rows = pixels.reshape(len(pixels), -1)
    total = np.full((after, rows.shape[1]), 1 << (taps.bits - 1), dtype=np.int32)  # one half, to round
    for place, weight in zip(taps.places, taps.weights, strict=True):
        total += weight[:, None] * rows[place]
    np.clip(total >> taps.bits, 0, 255, out=total)
    return total.astype(np.uint8).reshape(after, *pixels.shape[1:])


@lru_cache(maxsize=64)  # the pictures of a data set have few sizes
def _taps(before: int, after: int) -> _Taps:
    scale = before / after
    stretch = max(scale, 1.0)  # a smaller picture averages over as many pixels as become one
    support = _SUPPORT * stretch
    centre = scale * (np.arange(after) + 0.5)
    first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + support + 0.5).astype(np.int64), before)
    offsets = np.arange(2 * math.ceil(support) + 1)[:, None]
    weights = np.where(offsets < last - first, _cubic((offsets + first - centre + 0.5) * (1 / stretch)), 0.0)
    weights = weights / weights.sum(0)
    bits = _bits_for(float(weights.max()))
    scaled = weights * (1 << bits)
    rounded = np.trunc(np.where(scaled < 0, scaled - 0.5, scaled + 0.5)).astype(np.int32)
    return _Taps(np.minimum(offsets + first, before - 1), rounded, bits)


def _bits_for(largest: float) -> int:
    """Return how many bits behind the point let the largest weight fit into 16 bits with a sign."""
    return next((bits for bits in range(_MOST_BITS) if int(0.5 + largest * (1 << (bits + 1))) >= 1 << 15), _MOST_BITS)


def _cubic(x: np.ndarray) -> np.ndarray:
    a, x = -0.5, np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < _SUPPORT, far, 0.0))
