"""Retrieval without prototypes: classify a query by the training rows around it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tdumpra.core.rowwise import block_rows, normalise

N_NEIGHBOURS = 16
_CHUNK_ENTRIES = 2**23


def cache_affinity(
    z_train: Float[Tensor, "m d"],
    y_train: Int[Tensor, " m"],
    z: Float[Tensor, "n d"],
    *,
    sharpness: tuple[float, ...],
    n_classes: int,
) -> Float[Tensor, "s n c"]:
    r"""Return, for each sharpness :math:`b`, the mean over a class's training rows of :math:`e^{-b (1 - \cos)}`.

    It is 0 for a class without rows.
    """
    keys = normalise(z_train)
    votes = torch.nn.functional.one_hot(y_train, n_classes).to(keys.dtype)
    votes = votes / votes.sum(0).clamp(min=1)
    affinity = keys.new_empty(len(sharpness), len(z), n_classes)
    for rows, cosine in _cosines(z, keys):
        closeness = cosine.sub_(1)
        for number, b in enumerate(sharpness):
            affinity[number, rows] = (b * closeness).exp_() @ votes
    return affinity


def nearest_neighbour_shares(
    z_train: Float[Tensor, "m d"],
    y_train: Int[Tensor, " m"],
    z: Float[Tensor, "n d"],
    *,
    n_classes: int,
    n_neighbours: int = N_NEIGHBOURS,
) -> Float[Tensor, "n c"]:
    """Return class shares among the training rows with the largest cosine."""
    bank = normalise(z_train)
    k = min(n_neighbours, len(bank))
    shares = bank.new_empty(len(z), n_classes)
    for rows, cosine in _cosines(z, bank):
        nearest = cosine.topk(k, dim=1).indices
        shares[rows] = class_shares(y_train, nearest, n_classes=n_classes, dtype=bank.dtype)
    return shares


def class_shares(
    y_train: Int[Tensor, " m"], nearest: Int[Tensor, "n k"], *, n_classes: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "n c"]:
    """Return how large a share of each row's neighbours every class has."""
    votes = torch.ones(nearest.shape, dtype=dtype)
    return (
        torch.zeros(len(nearest), n_classes, dtype=dtype)
        .scatter_add_(1, y_train[nearest], votes)
        .div_(nearest.shape[1])
    )


def _cosines(z: Float[Tensor, "n d"], keys: Float[Tensor, "m d"]) -> Iterator[tuple[slice, Float[Tensor, "b m"]]]:
    """Yield the cosines of some rows of ``z`` with all keys, and which rows they are; the memory is used again.

    One block of memory serves all of them: freed and asked for again, blocks of this size leave holes that add up.
    """
    step = max(1, _CHUNK_ENTRIES // len(keys))
    room = keys.new_empty(min(step, len(z)), len(keys))
    block = block_rows(keys.shape[1])
    for start in range(0, len(z), block):
        queries = normalise(z[start : start + block]).to(keys)
        for first in range(0, len(queries), step):
            chunk = queries[first : first + step]
            cosine = torch.mm(chunk, keys.T, out=room[: len(chunk)])
            yield slice(start + first, start + first + len(chunk)), cosine
