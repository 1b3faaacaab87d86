"""Encoding: in order, in evaluation mode, by any number of processes (for two see test_distributed)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_runs import colours, launched, make_task, settings, silent, train_run

from tdumpra.artifacts import read_artifact, write_artifact
from tdumpra.networks.build import Encoding, NetworkError
from tdumpra.networks.checkpoint import KIND, SCHEMA
from tdumpra.networks.encode import _gather, _shard, encode, refuse_non_finite
from tdumpra.runs.pixel_stages import embed_stage


class FewProcesses:
    """As many processes as asked for, one after the other."""

    def __init__(self, world_size: int) -> None:
        self.world_size, self.global_rank = world_size, 0
        self.shards: list[torch.Tensor] = []

    def all_gather(self, _: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.shards)


def test_rows_come_in_the_order_asked_for():
    config = settings("tiny_networks:dropout")
    fabric = launched(config)
    network, task = make_task(config, colours(), fabric)
    network.train()
    numbers = task.train[::-1].copy()
    seen: list[int] = []
    one, two = encode([network, network], task.pipeline, numbers, batch_size=7, fabric=fabric, on_batch=seen.append)
    assert torch.equal(one.logits, two.logits)  # no dropout: evaluation mode
    assert network.training  # and back
    assert sum(seen) == len(numbers)
    for row in (0, 8, len(numbers) - 1):
        batch = next(task.pipeline.evaluate(numbers[row : row + 1], 1))
        network.eval()
        alone = network(batch.images)
        torch.testing.assert_close(one.logits[row], alone.logits[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(one.z[row], alone.z[0], rtol=1e-5, atol=1e-6)
    assert one.z.dtype == torch.float32


def test_shards_are_whole_batches_and_come_together_again():
    for total in (1, 2, 5, 8, 9, 23):
        for world in (1, 2, 3):
            for batch_size in (1, 2, 4):
                fabric = FewProcesses(world)
                numbers = np.arange(100, 100 + total)
                rounds = -(-total // (batch_size * world))
                shards = []
                for rank in range(world):
                    fabric.global_rank = rank
                    mine = _shard(numbers, batch_size, fabric)  # type: ignore[arg-type]
                    assert len(mine) >= 1
                    starts = mine[::batch_size] - 100
                    assert rank * batch_size >= total or (starts % batch_size == 0).all()
                    shards.append(torch.from_numpy(mine)[:, None].float())
                fabric.shards = [torch.cat([s, s[:1].expand(rounds * batch_size - len(s), 1)]) for s in shards]
                joined = _gather(shards[0], total, batch_size, fabric)  # type: ignore[arg-type]
                assert joined[:, 0].tolist() == numbers.tolist()


@pytest.mark.parametrize("field", ["logits", "z"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_outputs_that_are_not_finite_are_refused(field, value):
    good = Encoding(torch.zeros(3, 2), torch.ones(3, 4), torch.ones(3, 5))
    refuse_non_finite([good, good], ["a", "b", "c"])
    bad = getattr(good, field).clone()
    bad[1, 0] = value
    with pytest.raises(NetworkError, match="1 of 3 images, the first of them b"):
        refuse_non_finite([good, good._replace(**{field: bad})], ["a", "b", "c"])


def test_a_network_whose_output_is_not_finite_is_not_embedded(tmp_path):
    config, data = settings(epochs=1), colours()
    folder = train_run(config, tmp_path, data)
    torch.use_deterministic_algorithms(False)
    artifact = read_artifact(folder.checkpoint("last"), kind=KIND, schema=SCHEMA)
    artifact.tensors["student.classifier.weight"][:] = torch.nan
    write_artifact(folder.checkpoint("last"), kind=KIND, schema=SCHEMA, tensors=artifact.tensors, meta=artifact.meta)
    with pytest.raises(NetworkError):
        embed_stage(config, data, folder, fabric=launched(config), console=silent())
    assert not folder.outputs("train").exists()
