"""Checkpoints: a run killed at any moment ends with the weights of one that was not."""

from __future__ import annotations

import random
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import child_processes
import numpy as np
import pytest
import torch
from child_processes import WRITE_MOMENTS
from tiny_networks import Tiny
from tiny_runs import colours, launched, settings, silent, train_run

from tdumpra.artifacts import read_artifact
from tdumpra.core.ema import EmaTeacher
from tdumpra.errors import ArtifactError
from tdumpra.networks.checkpoint import (
    KIND,
    SCHEMA,
    Checkpointer,
    Progress,
    is_finished,
    training_identity,
)
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder, RunFolderError
from tdumpra.runs.pixel_stages import embed_stage

EPOCHS = 2
# every step is saved; what a run saves has no bearing on its weights
DROPOUT = settings("tiny_networks:dropout", epochs=EPOCHS, checkpoint_minutes=1e-9)


@pytest.fixture(autouse=True)
def _leave_no_global_state():
    yield
    torch.use_deterministic_algorithms(False)


def state_of(folder: RunFolder, name: str = "last"):
    """Everything that training goes on from: networks, optimiser, generators, progress."""
    artifact = read_artifact(folder.checkpoint(name), kind=KIND, schema=SCHEMA)
    return artifact.tensors, artifact.meta


def assert_same_state(folder: RunFolder, other: RunFolder) -> None:
    (tensors, meta), (wanted, wanted_meta) = state_of(folder), state_of(other)
    assert tensors.keys() == wanted.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], wanted[name])] == []
    assert meta["progress"] == wanted_meta["progress"]


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory) -> RunFolder:
    root = tmp_path_factory.mktemp("uninterrupted")
    assert child_processes.finish(child_processes.start(child_processes.train, DROPOUT, root)) == 0
    return RunFolder(root)


def kill_while_writing(root: Path, number: int, moment: str) -> None:
    process = child_processes.start(child_processes.train, DROPOUT, root, (number, moment))
    assert child_processes.finish(process) == -signal.SIGKILL


def kill_at_random(root: Path, rng: random.Random, config: Config = DROPOUT) -> bool:
    """Kill after a random time; whether the run was still going."""
    process = child_processes.start(child_processes.train, config, root)
    time.sleep(rng.uniform(0.0, 0.4))
    process.kill()
    return child_processes.finish(process) == -signal.SIGKILL


def test_killed_runs_end_with_the_weights_of_the_uninterrupted_one(tmp_path, uninterrupted):
    kill_while_writing(tmp_path, 2, "half written")
    rng = random.Random(1)
    kill_at_random(tmp_path, rng)
    kill_at_random(tmp_path, rng)
    assert child_processes.finish(child_processes.start(child_processes.train, DROPOUT, tmp_path)) == 0
    assert_same_state(RunFolder(tmp_path), uninterrupted)


@pytest.mark.parametrize("moment", WRITE_MOMENTS)
def test_a_kill_while_writing_leaves_a_whole_checkpoint(tmp_path, moment, uninterrupted):
    folder = RunFolder(tmp_path)
    kill_while_writing(tmp_path, 3, moment)
    step = state_of(folder)[1]["progress"]["step"]
    assert step == (4 if moment == "renamed" else 3)
    assert child_processes.finish(child_processes.start(child_processes.train, DROPOUT, tmp_path)) == 0
    assert_same_state(folder, uninterrupted)


@pytest.mark.campaign
def test_a_hundred_kills(tmp_path, uninterrupted):
    """A third of them while a checkpoint is being written; some runs read their images in worker processes."""
    rng = random.Random(0)
    kills = writing = runs = 0
    with_workers = replace(DROPOUT, data=replace(DROPOUT.data, workers=1))
    while kills < 100:
        root, runs = tmp_path / str(runs), runs + 1
        config = with_workers if runs % 4 == 0 else DROPOUT
        for _ in range(rng.randint(1, 4)):
            if kills % 3 == 0:
                done = state_of(RunFolder(root))[1]["progress"]["step"] if _has_checkpoint(root) else 0
                left = EPOCHS * (len(colours().rows("train")) // 8) - done
                if left < 2:
                    break
                kill_while_writing(root, rng.randrange(left - 1), rng.choice(WRITE_MOMENTS))
                writing += 1
            elif not kill_at_random(root, rng, config):
                break  # it had finished
            kills += 1
        assert child_processes.finish(child_processes.start(child_processes.train, config, root)) == 0
        assert_same_state(RunFolder(root), uninterrupted)
    assert writing >= 33
    print(f"{kills} kills, {writing} of them while writing, over {runs} runs: all resumed to identical weights")


def _has_checkpoint(root: Path) -> bool:
    return RunFolder(root).checkpoint("last").exists()


def test_a_killed_process_leaves_no_lock_behind_though_its_children_live(tmp_path):
    process = child_processes.start(child_processes.hold, DROPOUT, tmp_path)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
        assert process.exitcode is None
    with pytest.raises(RunFolderError, match=r"another process is working in .*: wait for it, or choose another"):
        train_run(DROPOUT, tmp_path)
    process.kill()
    process.join()
    with RunFolder(tmp_path).claim(DROPOUT, 0):
        pass


# --- the file


def parts():
    torch.manual_seed(0)
    network = Tiny(3, dropout=0.5).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    return network, EmaTeacher(network), optimizer


def take_step(network, teacher, optimizer) -> None:
    images = torch.randn(4, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    network(images).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    teacher.update(network)


class OneProcess:
    """As much of Fabric as a checkpoint asks for, with a gradient scaler."""

    world_size, global_rank, is_global_zero = 1, 0, True

    def __init__(self) -> None:
        self.strategy = self.precision = self
        self.scaler = {"scale": 2.0}

    def barrier(self) -> None: ...

    def state_dict(self) -> dict[str, float]:
        return self.scaler

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scaler = state


def of(root: Path, network: Any, teacher: Any, optimizer: Any, *, fabric: Any = None, **identity: str) -> Checkpointer:
    identity = {"data": "abc", **identity}
    (root / "checkpoints").mkdir(exist_ok=True)
    process: Any = fabric or OneProcess()
    return Checkpointer(network, teacher, optimizer, identity, RunFolder(root), process)


PROGRESS = Progress(epoch=1, batch=2, step=3, best_loss=0.5)


def test_a_restored_state_goes_on_as_the_saved_one(tmp_path):
    first = parts()
    for _ in range(3):
        take_step(*first)
    of(tmp_path, *first).save(PROGRESS)
    noise = torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
    second = parts()
    take_step(*second)
    fabric = OneProcess()
    fabric.scaler = {}
    assert of(tmp_path, *second, fabric=fabric).restore() == PROGRESS
    assert fabric.scaler == {"scale": 2.0}
    assert second[1].step == 3
    again = torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
    assert torch.equal(noise[0], again[0])
    assert np.array_equal(noise[1], again[1])
    assert noise[2] == again[2]
    for each in (first, second):
        torch.manual_seed(9)
        take_step(*each)
    for a, b in zip(first[0].state_dict().values(), second[0].state_dict().values(), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(first[1].state_dict().values(), second[1].state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_the_optimisers_state_lies_in_memory_as_its_parameters_do(tmp_path):
    first, second = parts(), parts()
    take_step(*first)
    of(tmp_path, *first).save(PROGRESS)
    of(tmp_path, *second).restore()
    weight = second[0].stem.weight
    state = second[2].state[weight]
    assert not weight.is_contiguous()
    assert state["exp_avg"].stride() == weight.stride()
    assert torch.equal(state["exp_avg"], first[2].state[first[0].stem.weight]["exp_avg"])


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    of(tmp_path, *parts()).save(PROGRESS)
    network = Tiny(4)
    with pytest.raises(ArtifactError, match="does not belong to this network"):
        of(tmp_path, network, EmaTeacher(network), torch.optim.AdamW(network.parameters())).restore()


@pytest.mark.parametrize("keep", [0, 7, 100, 0.5, 0.999])
def test_a_checkpoint_cut_short_is_refused(tmp_path, keep):
    folder = train_run(settings(epochs=1), tmp_path)
    path = folder.checkpoint("last")
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(keep * len(data))])
    with pytest.raises(ArtifactError, match=r"last\.safetensors (is truncated|was altered or cut short|is not a)"):
        is_finished(path)
    with pytest.raises(ArtifactError):
        train_run(settings(epochs=1), tmp_path)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path):
    path = RunFolder(tmp_path).checkpoint("last")
    state = parts()
    of(tmp_path, *state).save(PROGRESS)
    before = path.read_bytes()
    take_step(*state)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write beyond the limit fails like a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(ArtifactError, match=r"cannot write .*last\.safetensors: "):
            of(tmp_path, *state).save(PROGRESS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]  # no rubbish beside it
    of(tmp_path, *parts()).restore()


def test_a_state_of_other_data_is_refused_and_changes_nothing(tmp_path):
    saved, other = parts(), parts()
    take_step(*saved)
    of(tmp_path, *saved).save(PROGRESS)
    before = {name: tensor.clone() for name, tensor in other[0].state_dict().items()}
    with pytest.raises(ArtifactError, match=r"was trained with other data than this configuration names"):
        of(tmp_path, *other, data="xyz").restore()
    assert all(torch.equal(tensor, before[name]) for name, tensor in other[0].state_dict().items())
    of(tmp_path, *other, later="a key that this state lacks").restore()


# --- the seed and the settings


def test_a_finished_checkpoint_of_another_seed_is_refused(tmp_path):
    one, other = train_run(settings(epochs=1), tmp_path / "0"), train_run(settings(epochs=1), tmp_path / "1", seed=1)
    one.checkpoint("last").write_bytes(other.checkpoint("last").read_bytes())
    with pytest.raises(ArtifactError, match="other seed"):
        train_run(settings(epochs=1), tmp_path / "0")
    with pytest.raises(ArtifactError, match="other seed"):
        embed_stage(settings(epochs=1), colours(), one, seed=0, fabric=launched(settings()), console=silent())


def test_an_unfinished_checkpoint_of_other_settings_is_refused(tmp_path):
    kill_while_writing(tmp_path / "slow", 2, "renamed")
    fast = RunFolder(tmp_path / "fast")
    fast.checkpoint("last").parent.mkdir(parents=True)
    fast.checkpoint("last").write_bytes(RunFolder(tmp_path / "slow").checkpoint("last").read_bytes())
    other = replace(DROPOUT, train=replace(DROPOUT.train, learning_rate=0.5))
    with pytest.raises(ArtifactError, match="other training settings"):
        train_run(other, fast.root)


def test_only_settings_that_change_the_weights_are_part_of_the_identity():
    config = settings().train
    same = replace(config, log_every=7, checkpoint_minutes=1.0, checkpoint_every=3, tensorboard=True)
    assert training_identity(same, 0) == training_identity(config, 0)
    assert training_identity(replace(config, epochs=9), 0) != training_identity(config, 0)
    assert training_identity(config, 1) != training_identity(config, 0)
