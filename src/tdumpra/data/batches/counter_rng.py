"""Random numbers that depend on where they are used, not on what was drawn before.

Image 4711's crop in epoch 3 must be the same whether a run was resumed, split over eight processes, or fed by another
pipeline. So there is no state: the numbers are Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", SC 2011) of a key (the seed) and a counter (what the numbers are for), for a whole batch at once.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64, UInt32
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_ROUNDS = 10


def philox(seed: int, counter: UInt32[np.ndarray, "*shape 4"]) -> UInt32[np.ndarray, "*shape 4"]:
    """Return four random words for each counter of four words."""
    x0, x1, x2, x3 = (counter[..., i].astype(np.uint64) for i in range(4))
    key0, key1 = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32 & 0xFFFFFFFF)
    for _ in range(_ROUNDS):
        a, b = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1, x2, x3 = (b >> _WORD) ^ x1 ^ key0, b & _LOW, (a >> _WORD) ^ x3 ^ key1, a & _LOW
        key0, key1 = (key0 + _WEYL[0]) & _LOW, (key1 + _WEYL[1]) & _LOW
    return np.stack([x0, x1, x2, x3], axis=-1).astype(np.uint32)


def uniforms(
    seed: int,
    *,
    epoch: int,
    index: Int64[np.ndarray, " n"],
    stream: Int64[np.ndarray, " n"],
    blocks: int,
) -> Float64[np.ndarray, "n blocks 4"]:
    """Return ``blocks`` × 4 numbers in [0, 1) for each ``(seed, epoch, index, stream)``."""
    counter = np.empty((len(index), blocks, 4), dtype=np.uint32)
    counter[:, :, 0] = index[:, None]
    counter[:, :, 1] = epoch
    counter[:, :, 2] = stream[:, None]
    counter[:, :, 3] = np.arange(blocks)
    return philox(seed, counter) / 2.0**32


def permutation(seed: int, *, epoch: int, length: int, stream: int) -> NDArray[np.int64]:
    """Return the numbers below ``length`` in an order that ``(seed, epoch, stream)`` determines."""
    counter = np.zeros((length, 4), dtype=np.uint32)
    counter[:, 0] = np.arange(length)
    counter[:, 1] = epoch
    counter[:, 2] = stream
    words = philox(seed, counter).astype(np.uint64)
    return np.argsort(words[:, 0] << _WORD | words[:, 1], kind="stable")
