"""One step of training: launched, compiled or captured, and who chooses."""

from __future__ import annotations

import copy
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tiny_networks import Tiny
from tiny_runs import launched, settings, train_run
from torch import Tensor, nn

from tdumpra.core.ema import EmaTeacher
from tdumpra.core.losses import joint_loss
from tdumpra.errors import StopRequestedError
from tdumpra.networks import step as step_module
from tdumpra.networks.build import Encoding
from tdumpra.networks.checkpoint import is_finished, python_generators, read_networks, training_identity
from tdumpra.networks.progress import Screen
from tdumpra.networks.step import (
    REPAYS_COMPILING,
    CapturedStep,
    Step,
    Way,
    choose_way,
    joined_loss,
    make_step,
)
from tdumpra.networks.watch import TrainingError
from tdumpra.runs.config import Config, TrainConfig, read_config
from tdumpra.runs.folder import RunFolder
from tdumpra.toml import ConfigError

GPU = torch.device("cuda")
LONG = REPAYS_COMPILING


@pytest.fixture(autouse=True)
def _leave_no_global_state():
    yield
    torch.use_deterministic_algorithms(False)


def ways(folder: RunFolder) -> list[tuple[str, str]]:
    return [(row["steps"], row["reason"]) for row in folder.read_metrics() if "steps" in row]


# --- the choice


def choice(steps: int = LONG, *, device: torch.device = GPU, world_size: int = 1, **train: Any) -> Way:
    return choose_way(TrainConfig(**train), device=device, world_size=world_size, steps=steps)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (choice(device=torch.device("cpu")), "CPU"),
        (choice(world_size=2), "several processes"),
        (choice(precision="16-mixed"), "scaler"),
        (choice(accumulate=4), "train.accumulate = 4"),
    ],
    ids=lambda value: value.reason if isinstance(value, Way) else None,
)
def test_what_cannot_be_captured_is_launched_and_the_reason_named(way, reason):
    assert way.name == "eager"
    assert reason in way.reason


def test_auto_captures_on_one_gpu_and_compiles_long_trainings():
    assert choice(LONG - 1).name == "captured"
    assert "4,999 steps" in choice(LONG - 1).reason
    assert choice(LONG).name == "captured and compiled"
    assert choice(LONG, precision="bf16-mixed").name == "captured and compiled"


def test_deterministic_steps_are_never_compiled():
    way = choice(10 * LONG, deterministic=True)
    assert way.name == "captured"
    assert "to the bit" in way.reason


def test_true_and_false_mean_what_they_meant():
    assert choice(1, compile=True)[:2] == (True, False)
    assert choice(LONG, compile=False)[:2] == (False, False)
    assert choice(LONG, compile=False).reason == "train.compile is false"


def test_a_configuration_says_auto_true_or_false(tmp_path):
    path = tmp_path / "config.toml"
    for text, value in (('"auto"', "auto"), ("true", True), ("false", False)):
        path.write_text(f'name = "a"\n[train]\ncompile = {text}\n')
        assert read_config(path).train.compile == value
    for text in ('"always"', "1"):
        path.write_text(f'name = "a"\n[train]\ncompile = {text}\n')
        with pytest.raises(ConfigError, match=r"compile must be .*auto"):
            read_config(path)


def test_checkpoints_of_eager_and_chosen_steps_go_on_from_each_other(tmp_path):
    auto, eager, compiled = (training_identity(TrainConfig(compile=value), 0) for value in ("auto", False, True))
    assert auto == eager != compiled
    train_run(settings(epochs=1, compile=False), tmp_path)
    train_run(settings(epochs=1), tmp_path)  # nothing to do, and nothing to refuse


# --- the step itself


class Heads(nn.Module):
    """A network with both heads, and what a step needs besides."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Tiny(0, dropout=0.3)
        self.classifier, self.projection = nn.Linear(16, 3), nn.Linear(16, 8)

    def forward(self, images: Tensor) -> Encoding:
        features = self.backbone(images)
        return Encoding(self.classifier(features), nn.functional.normalize(self.projection(features)), features)


def batches(n: int, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.rand(2 * size, 3, 16, 16, generator=generator), torch.randint(3, (size,), generator=generator).repeat(2))
        for _ in range(n)
    ]


class Made(NamedTuple):
    network: nn.Module
    teacher: EmaTeacher
    optimizer: torch.optim.Optimizer
    step: Step
    way: Way


def make(config: Config, *, steps: int = 10) -> Made:
    """A step of a network with dropout and BatchNorm, from seed 0."""
    fabric = launched(config)
    torch.use_deterministic_algorithms(config.train.deterministic)
    torch.manual_seed(0)
    network = Heads().to(fabric.device).to(memory_format=torch.channels_last)
    teacher = EmaTeacher(network, 0.9)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.01, fused=fabric.device.type == "cuda")
    torch.manual_seed(7)
    step, way = make_step(
        network,
        teacher,
        optimizer,
        lambda encoding, labels: joined_loss(encoding, labels, config.train, None, fabric),
        config.train,
        fabric,
        image_size=16,
        steps=steps,
    )
    return Made(network, teacher, optimizer, step, way)


def take(made: Made, n: int = 5) -> list[float]:
    """Take ``n`` steps, each at another learning rate; return their losses."""
    device, losses = next(made.network.parameters()).device, []
    made.step.student.train()
    torch.manual_seed(11)  # dropout draws from one generator, whoever takes the steps
    for i, (views, labels) in enumerate(batches(n)):
        views = views.to(device, memory_format=torch.channels_last)
        losses.append(float(made.step.gradients(views, labels.to(device)).total))
        made.step.move(0.01 / (1 + i))
    return losses


def state(made: Made) -> dict[str, Tensor]:
    moments = {
        f"{i}.{name}": value
        for i, values in made.optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    return {**made.network.state_dict(), **made.teacher.state_dict(), **moments}


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_a_step_is_the_plain_loop_to_the_bit(clip_norm):
    """Two batches a step: forward pass, both losses, backward pass, clipping, AdamW, teacher."""
    made = make(settings(clip_norm=clip_norm, contrastive_weight=0.2, accumulate=2))
    network, teacher = copy.deepcopy(made.network).train(), copy.deepcopy(made.teacher)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.01)
    torch.manual_seed(3)
    expected = []
    for i, (views, labels) in enumerate(batches(6)):
        encoding = network(views.contiguous(memory_format=torch.channels_last))
        loss = joint_loss(encoding.logits, encoding.z, labels, weight=0.2).total
        (loss / 2).backward()
        expected.append(loss.item())
        if i % 2:
            optimizer.param_groups[0]["lr"] = 0.01 / i
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
            optimizer.step()
            optimizer.zero_grad()
            teacher.update(network)
    torch.manual_seed(3)
    made.step.student.train()
    losses = []
    for i, (views, labels) in enumerate(batches(6)):
        views = views.contiguous(memory_format=torch.channels_last)
        losses.append(float(made.step.gradients(views, labels, in_step=2, last=bool(i % 2)).total))
        if i % 2:
            made.step.move(0.01 / i)
    assert losses == expected
    wanted = state(made._replace(network=network, teacher=teacher, optimizer=optimizer))
    assert [name for name, tensor in state(made).items() if not torch.equal(tensor, wanted[name])] == []


def test_a_step_leaves_the_other_generators_alone():
    made, before = make(settings()), python_generators()
    take(made, 1)
    assert python_generators() == before


def test_a_step_that_cannot_be_recorded_is_launched(tmp_path, monkeypatch):
    if torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "CUDAGraph", None)
    monkeypatch.setattr(step_module, "choose_way", lambda *_, **__: Way(True, True, "asked for"))
    folder = train_run(settings(epochs=1), tmp_path)
    ((name, reason),) = ways(folder)
    assert name == "eager"
    assert reason.startswith("it could not be captured: ")
    assert is_finished(folder.checkpoint("last"))


# --- on a GPU

on_a_gpu = pytest.mark.gpu


def gpu_settings(backbone: str = "tiny_networks:dropout", *, pipeline: Any = "device", **train: Any) -> Config:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    options: dict[str, Any] = {"accelerator": "cuda", "epochs": 3, **train}
    config = settings(backbone, **options)
    return replace(config, data=replace(config.data, pipeline=pipeline))


@on_a_gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_captured_steps_are_eager_ones(precision, clip_norm):
    options: dict[str, Any] = {"precision": precision, "clip_norm": clip_norm, "contrastive_weight": 0.2}
    eager = make(gpu_settings(compile=False, **options))
    captured = make(gpu_settings(**options))
    assert not isinstance(eager.step, CapturedStep)
    assert isinstance(captured.step, CapturedStep)
    assert take(captured) == pytest.approx(take(eager), rel=1e-4)
    for (name, found), wanted in zip(state(captured).items(), state(eager).values(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5, msg=name)


@on_a_gpu
def test_recording_leaves_no_trace():
    before, made = make(gpu_settings(compile=False)), make(gpu_settings())
    state_of_before = state(before)  # and both were seeded alike
    assert isinstance(made.step, CapturedStep)
    assert [name for name, tensor in state(made).items() if not torch.equal(tensor, state_of_before[name])] == []
    assert made.optimizer.state_dict()["state"] == {}
    torch.manual_seed(7)
    wanted = torch.rand(4, device="cuda"), torch.rand(4)
    torch.manual_seed(7)
    make_again = make(gpu_settings())  # seeds with 7 before it records
    assert isinstance(make_again.step, CapturedStep)
    assert torch.equal(torch.rand(4, device="cuda"), wanted[0])
    assert torch.equal(torch.rand(4), wanted[1])


@on_a_gpu
def test_dropout_draws_anew_in_every_replay_from_the_saved_position():
    made = make(gpu_settings())
    views, labels = (part.cuda() for part in batches(1)[0])
    position = torch.cuda.get_rng_state()
    first, second = (float(made.step.gradients(views, labels).total) for _ in range(2))
    torch.cuda.set_rng_state(position)
    assert float(made.step.gradients(views, labels).total) == pytest.approx(first, rel=1e-6)
    assert first != second


@on_a_gpu
def test_a_batch_of_another_size_is_refused():
    made = make(gpu_settings())
    views, labels = (part.cuda() for part in batches(1, size=4)[0])
    with pytest.raises(ValueError, match="captured for one batch of 16 views, not 8"):
        made.step.gradients(views, labels)


def networks(folder: RunFolder) -> dict[str, Tensor]:
    found = read_networks(folder.checkpoint("last"))
    return {**found.student, **{f"teacher.{name}": tensor for name, tensor in found.teacher.items()}}


def stopped_and_resumed(config: Config, root: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Train, stop after step 3 with a checkpoint, and go on from it with a new recording."""
    real = Screen.log

    def interrupt(self: Screen, folder: Any, progress: Any, *rest: Any) -> None:
        real(self, folder, progress, *rest)
        if progress.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(Screen, "log", interrupt)
        with pytest.raises(StopRequestedError, match="step 3"):
            train_run(config, root)
    return train_run(config, root)


@on_a_gpu
@pytest.mark.parametrize("pipeline", ["device", "workers"])
def test_a_captured_training_resumes_to_the_bit(tmp_path, monkeypatch, pipeline):
    config = gpu_settings(pipeline=pipeline)
    whole, parts = train_run(config, tmp_path / "whole"), stopped_and_resumed(config, tmp_path / "parts", monkeypatch)
    assert [name for name, _ in ways(whole)] == ["captured"]
    assert [name for name, _ in ways(parts)] == ["captured", "captured"]
    wanted = networks(whole)
    assert [name for name, tensor in networks(parts).items() if not torch.equal(tensor, wanted[name])] == []


@on_a_gpu
def test_a_deterministic_training_has_the_same_weights_captured_and_eager(tmp_path):
    captured = train_run(gpu_settings(), tmp_path / "captured")
    eager = train_run(gpu_settings(compile=False), tmp_path / "eager")
    assert [name for name, _ in ways(captured) + ways(eager)] == ["captured", "eager"]
    wanted = networks(eager)
    assert [name for name, tensor in networks(captured).items() if not torch.equal(tensor, wanted[name])] == []


@on_a_gpu
@pytest.mark.parametrize(
    ("network", "reason"),
    [
        ("branching", "synchroniz"),
        ("waiting", "it could not be captured"),
        ("drawing", "random numbers on the host"),
        ("counting", "keeps count on the host"),
        ("replacing", "replaces its buffers"),
    ],
)
def test_a_network_that_no_graph_can_hold_is_trained_without(tmp_path, network, reason):
    random.seed(0)
    folder = train_run(gpu_settings(f"tiny_networks:{network}"), tmp_path / "auto")
    ((name, why),) = ways(folder)
    assert name == "eager"
    assert reason in why
    random.seed(0)
    wanted = networks(train_run(gpu_settings(f"tiny_networks:{network}", compile=False), tmp_path / "eager"))
    assert [name for name, tensor in networks(folder).items() if not torch.equal(tensor, wanted[name])] == []
    assert memory_comes_back()


def memory_comes_back() -> bool:
    """Whether memory that two streams used is free again once both are done; a recording under way would keep it."""
    torch.cuda.synchronize()
    before, beside = torch.cuda.memory_allocated(), torch.cuda.Stream()
    for _ in range(20):
        tensor = torch.zeros(2**20, device="cuda")
        tensor.record_stream(beside)
        del tensor
        torch.cuda.synchronize()
    torch.zeros(1, device="cuda")
    return torch.cuda.memory_allocated() - before < 10 * 2**22


@on_a_gpu
def test_a_captured_loss_that_is_no_number_is_seen(tmp_path):
    with pytest.raises(TrainingError, match="the loss is no longer a finite number at step 3"):
        train_run(gpu_settings("tiny_networks:exploding", log_every=5), tmp_path)
    assert [name for name, _ in ways(RunFolder(tmp_path))] == ["captured"]


LONG_TRAINING = """
import sys
from pathlib import Path
from tiny_runs import settings, train_run
from tdumpra.networks import step
step.REPAYS_COMPILING = 1
train_run(settings("tiny_networks:plain", accelerator="cuda", epochs=3, deterministic=False), Path(sys.argv[1]))
"""


@on_a_gpu
def test_a_long_training_is_captured_and_compiled(tmp_path):
    """In a process of its own: the compiler cannot read functions whose arguments are checked."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-c", LONG_TRAINING, str(tmp_path / "compiled")]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
    compiled = RunFolder(tmp_path / "compiled")
    assert [name for name, _ in ways(compiled)] == ["captured and compiled"]
    eager = train_run(gpu_settings("tiny_networks:plain", compile=False), tmp_path / "eager")
    losses = [[row["loss"] for row in each.read_metrics() if "loss" in row] for each in (compiled, eager)]
    assert losses[0][:3] == pytest.approx(losses[1][:3], rel=0.02)  # what follows grows apart, as after any rounding


@on_a_gpu
def test_a_gpu_trains_with_what_cannot_be_captured(tmp_path):
    for options, reason in (({"accumulate": 2}, "accumulate"), ({"precision": "16-mixed"}, "scaler")):
        folder = train_run(gpu_settings(**options), tmp_path / reason)
        ((name, why),) = ways(folder)
        assert name == "eager"
        assert reason in why
        assert is_finished(folder.checkpoint("last"))
