"""Run networks over images in order: logits, embeddings and features, sharded over processes and joined again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from jaxtyping import Int64
from lightning_fabric import Fabric
from torch import Tensor, nn

from tdumpra.allocator import keep_freed_memory
from tdumpra.data.batches.pipeline import Pipeline
from tdumpra.networks.build import Encoding, NetworkError
from tdumpra.networks.passes import NetworkPass
from tdumpra.networks.settings import Precision


@torch.no_grad()
def encode(
    networks: list[nn.Module],
    pipeline: Pipeline,
    numbers: Int64[np.ndarray, " n"],
    *,
    batch_size: int,
    fabric: Fabric,
    precision: Precision | None = None,
    on_batch: Callable[[int], object] | None = None,
) -> list[Encoding]:
    """Return each network's outputs on the images ``numbers``, on the CPU, in that order, the same on every process.

    The ``precision`` is training's unless given. ``on_batch`` gets the number of images that all processes did.
    Features are rounded to half precision: there are many of them, and a fit on them has more noise than that.

    Process r of w takes every w-th batch from the r-th on. Any number of processes thus runs exactly the batches of
    one, and rounding cannot differ. Shards are padded to equal length for the gather, and the padding is dropped.
    """
    modes = [network.training for network in networks]
    for network in networks:
        network.eval()
    if fabric.device.type == "cpu":
        keep_freed_memory()
    mine = _shard(numbers, batch_size, fabric)
    passes = [NetworkPass(network, pipeline.evaluation, precision, channels_last=True) for network in networks]
    parts: list[list[Encoding]] = [[] for _ in networks]
    for batch in pipeline.evaluate(mine, batch_size):
        with fabric.autocast() if precision is None else nullcontext():
            for collected, each in zip(parts, passes, strict=True):
                encoding = each.encode(batch.images)
                collected.append(Encoding(encoding.logits.float(), encoding.z.float(), encoding.features.half()))
        if on_batch is not None:
            on_batch(len(batch.numbers) * fabric.world_size)
    for network, mode in zip(networks, modes, strict=True):
        network.train(mode)
    joined = [Encoding(*(torch.cat(column) for column in zip(*part, strict=True))) for part in parts if part]
    return [Encoding(*(_gather(column, len(numbers), batch_size, fabric).cpu() for column in each)) for each in joined]


def refuse_non_finite(encodings: Sequence[Encoding], ids: Sequence[str]) -> None:
    """Refuse logits or embeddings that are not finite: their class would be arbitrary."""
    for encoding in encodings:
        bad = ~(encoding.logits.isfinite().all(1) & encoding.z.isfinite().all(1))
        if bad.any():
            raise NetworkError(
                f"the network's output is not finite for {int(bad.sum())} of {len(bad)} images, the first of them "
                f"{ids[int(bad.nonzero()[0])]}: train again with a lower learning rate, or embed in float32"
            )


def _shard(numbers: Int64[np.ndarray, " n"], batch_size: int, fabric: Fabric) -> Int64[np.ndarray, " m"]:
    """Return this process's images, at least one, so that all processes take part in the gather."""
    batch = np.arange(len(numbers)) // batch_size
    mine = numbers[batch % fabric.world_size == fabric.global_rank]
    return mine if len(mine) else numbers[:1]


def _gather(shard: Tensor, total: int, batch_size: int, fabric: Fabric) -> Tensor:
    """Interleave the processes' batches: batch i came from process i modulo their number."""
    world = fabric.world_size
    if world == 1:
        return shard
    rounds = -(-total // (batch_size * world))
    padding = shard[:1].expand(rounds * batch_size - len(shard), *shard.shape[1:])
    gathered = fabric.all_gather(torch.cat([shard, padding]))  # (world, rounds * batch_size, ...)
    assert isinstance(gathered, Tensor)
    by_batch = gathered.view(world, rounds, batch_size, *shard.shape[1:]).transpose(0, 1)
    return by_batch.flatten(0, 2)[:total]
