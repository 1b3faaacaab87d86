"""Two processes are one: the gradients of the joined batch, the same teacher everywhere, the same tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tiny_networks import Tiny
from tiny_runs import colours, launched, make_task, settings, silent
from torch import Tensor, nn
from two_processes import TWO, run_two

from tdumpra.core.ema import EmaTeacher
from tdumpra.method.bank import PrototypeBank
from tdumpra.networks import train as train_module
from tdumpra.networks.build import Encoding
from tdumpra.networks.checkpoint import is_finished, read_networks
from tdumpra.networks.encode import encode
from tdumpra.networks.progress import Screen
from tdumpra.networks.step import joined_loss
from tdumpra.networks.train import _plan, train
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.pixel_stages import embed_stage, train_stage
from tdumpra.runs.tables import OutputsTable

# --- gradients


class DoubleHeads(nn.Module):
    """Both heads in float64, where rounding cannot hide a wrong factor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = Tiny(0, norm=False)
        self.classifier, self.projection = nn.Linear(16, 3), nn.Linear(16, 8)
        self.double()

    def forward(self, images: Tensor) -> Encoding:
        features = self.backbone(images.double())
        return Encoding(self.classifier(features), nn.functional.normalize(self.projection(features)), features)


def first_step(config: Config, *, double: bool) -> dict[str, Tensor]:
    """Loss and gradients of the first batch, through the very functions that the loop calls."""
    fabric = launched(config)
    network, task = make_task(config, colours(), fabric)
    network = DoubleHeads() if double else network
    student = fabric.setup(network)
    batch = next(task.pipeline.train(_plan(config.train, task, 0, fabric), 0))
    labels = task.labels[batch.numbers].repeat(len(batch.views))
    loss = joined_loss(student(batch.views.flatten(0, 1)), labels, config.train, None, fabric).total
    fabric.backward(loss)
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    assert len(gradients) == len(list(network.parameters()))
    return {**gradients, "loss": loss.detach().reshape(1)}


def first_step_of_a_rank(rank: int, config: Config, root: Path) -> None:
    for double in (False, True):
        safetensors.torch.save_file(first_step(config, double=double), root / f"{rank}-{double}.safetensors")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_two_processes_give_the_gradient_of_the_joined_batch(tmp_path, reduction):
    # no BatchNorm: its statistics are each process's own unless they are synchronised, which needs GPUs
    options: dict[str, Any] = {"contrastive_weight": 0.5, "contrastive_reduction": reduction, "label_smoothing": 0.1}
    config = settings("tiny_networks:without_norm", **TWO, **options)
    run_two(first_step_of_a_rank, config, tmp_path)
    alone = replace(config, train=replace(config.train, devices=1))
    for double in (False, True):
        wanted = first_step(alone, double=double)
        # the sum over anchors is 16 times the mean, and its rounding in float32 too; float64 shows that it is rounding
        tolerance = 1e-12 if double else 1e-6 * (16 if reduction == "sum" else 1)
        for rank in range(2):
            found = safetensors.torch.load_file(tmp_path / f"{rank}-{double}.safetensors")
            assert found.keys() == wanted.keys()
            for name, tensor in wanted.items():
                torch.testing.assert_close(found[name], tensor, rtol=0 if name != "loss" else 1e-6, atol=tolerance)


# --- the teacher


def train_a_rank(rank: int, config: Config, root: Path) -> None:
    fabric = launched(config)
    network, task = make_task(config, colours(), fabric)
    teachers: list[Any] = []

    real = EmaTeacher

    def keep(*args: Any) -> Any:
        teachers.append(real(*args))
        return teachers[0]

    setattr(train_module, "EmaTeacher", keep)  # noqa: B010  # the module does not export it
    train(
        network, task, config.train, RunFolder(root), seed=0, fabric=fabric,
        screen=Screen(silent(), name="", quiet=True),
    )  # fmt: skip
    state = {name: tensor.contiguous() for name, tensor in teachers[0].state_dict().items()}
    safetensors.torch.save_file(state, root / f"teacher-{rank}.safetensors")


def test_every_process_has_the_same_teacher(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    run_two(train_a_rank, settings(**TWO), tmp_path)
    first, second = (safetensors.torch.load_file(tmp_path / f"teacher-{rank}.safetensors") for rank in range(2))
    assert any("running_mean" in name for name in first)
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


# --- stages


def run_stages(rank: int, config: Config, root: Path) -> None:
    fabric, data, folder = launched(config), colours(), RunFolder(root)
    train_stage(config, data, folder, seed=0, fabric=fabric, console=silent())
    embed_stage(config, data, folder, fabric=fabric, console=silent())


def test_training_resumes_and_tables_are_those_of_one_process(tmp_path):
    config = settings("tiny_networks:dropout", **TWO)
    folder = RunFolder(tmp_path)
    for part in ("checkpoints", "outputs"):
        (tmp_path / part).mkdir()
    run_two(run_stages, config, tmp_path)
    assert is_finished(folder.checkpoint("last"))
    alone = replace(config, train=replace(config.train, devices=1))
    single = RunFolder(tmp_path / "single")
    for part in ("checkpoints", "outputs"):
        (tmp_path / "single" / part).mkdir(parents=True)
    single.checkpoint("last").write_bytes(folder.checkpoint("last").read_bytes())
    embed_stage(alone, colours(), single, fabric=launched(alone), console=silent())
    for part in ("train", "val", "test"):
        two, one = OutputsTable.read(folder.outputs(part)), OutputsTable.read(single.outputs(part))
        assert (two.ids, two.groups, two.identity) == (one.ids, one.groups, one.identity)
        for name in ("labels", "logits", "z_student", "logits_teacher", "z_teacher"):
            assert torch.equal(getattr(two, name), getattr(one, name)), (part, name)
    banks = [PrototypeBank.fit(t.z_teacher, t.labels, 2, t.groups) for t in (two, one)]
    assert torch.equal(banks[0].prototypes, banks[1].prototypes)
    assert read_networks(folder.checkpoint("last")).student.keys()


def encode_few(rank: int, config: Config, root: Path) -> None:
    """Fewer images than processes, and a number that does not divide."""
    fabric = launched(config)
    network, task = make_task(config, colours(), fabric)
    found = {}
    for count in (1, 2, 3, 7, 13):
        (encoding,) = encode([network], task.pipeline, task.train[:count], batch_size=2, fabric=fabric)
        found[f"{count}"] = encoding.logits
    safetensors.torch.save_file(found, root / f"few-{rank}.safetensors")


def test_any_number_of_images_is_shared_and_put_together(tmp_path):
    config = settings(**TWO)
    run_two(encode_few, config, tmp_path)
    alone = replace(config, train=replace(config.train, devices=1))
    fabric = launched(alone)
    network, task = make_task(alone, colours(), fabric)
    for rank in range(2):
        found = safetensors.torch.load_file(tmp_path / f"few-{rank}.safetensors")
        for count, logits in found.items():
            (one,) = encode([network], task.pipeline, task.train[: int(count)], batch_size=2, fabric=fabric)
            assert torch.equal(logits, one.logits), count
