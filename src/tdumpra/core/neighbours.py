"""Retrieval without prototypes: classify a query by the training rows around it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tdumpra.core.rowwise import BLOCK, by_rows, normalise

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
    step = max(1, _CHUNK_ENTRIES // len(keys))
    parts = []
    for chunk in _unit_rows(z, step, like=keys):
        closeness = chunk @ keys.T - 1
        parts.append(torch.stack([(b * closeness).exp_() @ votes for b in sharpness]))
    return torch.cat(parts, dim=1)


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
    votes = torch.nn.functional.one_hot(y_train, n_classes).to(bank.dtype)
    k = min(n_neighbours, len(bank))
    step = max(1, _CHUNK_ENTRIES // len(bank))
    nearest = [(chunk @ bank.T).topk(k, dim=1).indices for chunk in _unit_rows(z, step, like=bank)]
    return by_rows(lambda rows: votes[rows].mean(1), torch.cat(nearest))


def _unit_rows(z: Tensor, step: int, *, like: Tensor) -> Iterator[Tensor]:
    """Yield ``step`` rows of length one after the other; only some of them are in memory at once."""
    for block in z.split(BLOCK):
        yield from normalise(block).to(like).split(step)
