"""A network over images in order: logits and embeddings, sharded over processes and put together again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from lightning_fabric import Fabric
from torch import Tensor, nn

from tdumpra.data.pipeline import Pipeline
from tdumpra.network import Encoding


@torch.no_grad()
def encode(
    networks: list[nn.Module],
    pipeline: Pipeline,
    numbers: Int64[np.ndarray, " n"],
    *,
    batch_size: int,
    fabric: Fabric,
    on_batch: Any = None,
) -> list[Encoding]:
    """Each network's outputs on the images ``numbers``, on the CPU, in that order, the same on every process.

    Process r of w takes every w-th image from the r-th on; shards are padded to equal length for the gather, and the
    padding is dropped. Networks are put back into the mode they were in.
    """
    modes = [network.training for network in networks]
    for network in networks:
        network.eval()
    mine = numbers[fabric.global_rank :: fabric.world_size]
    parts: list[list[Encoding]] = [[] for _ in networks]
    for batch in pipeline.evaluate(mine, batch_size):
        images = batch.images.to(memory_format=torch.channels_last)
        with fabric.autocast():
            for collected, network in zip(parts, networks, strict=True):
                encoding = network(images)
                collected.append(Encoding(encoding.logits.float(), encoding.z.float()))
        if on_batch is not None:
            on_batch(len(batch.numbers) * fabric.world_size)
    for network, mode in zip(networks, modes, strict=True):
        network.train(mode)
    joined = [Encoding(*(torch.cat(column) for column in zip(*each, strict=True))) for each in parts if each]
    return [Encoding(*(_gather(column, len(numbers), fabric).cpu() for column in each)) for each in joined]


def _gather(shard: Tensor, total: int, fabric: Fabric) -> Tensor:
    """Interleave the processes' shards: row i came from process i modulo their number."""
    world = fabric.world_size
    if world == 1:
        return shard
    longest = -(-total // world)
    padded = torch.cat([shard, shard[:1].expand(longest - len(shard), *shard.shape[1:])])
    gathered = fabric.all_gather(padded)  # (world, longest, ...)
    assert isinstance(gathered, Tensor)
    return gathered.transpose(0, 1).flatten(0, 1)[:total]
