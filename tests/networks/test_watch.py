"""What stops training: losses and weights that are not finite, and signals."""

from __future__ import annotations

import math
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tiny_runs import colours, settings, train_run
from torch import Tensor

from tdumpra.errors import StopRequestedError
from tdumpra.networks import step as step_module
from tdumpra.networks.checkpoint import is_finished, read_networks
from tdumpra.networks.progress import Screen
from tdumpra.networks.watch import FiniteWatch, TrainingError
from tdumpra.runs.folder import RunFolder


@pytest.fixture(autouse=True)
def _leave_no_global_state():
    yield
    torch.use_deterministic_algorithms(False)


def networks(folder: RunFolder) -> dict[str, Tensor]:
    found = read_networks(folder.checkpoint("last"))
    return {**found.student, **{f"teacher.{name}": tensor for name, tensor in found.teacher.items()}}


def test_a_loss_that_is_no_number_stops_at_once_and_names_its_images(tmp_path):
    with pytest.raises(TrainingError, match=r"the loss .* at step 3 .*learning rate 0\.00"):
        train_run(settings("tiny_networks:exploding", log_every=1), tmp_path)
    (row,) = [row for row in RunFolder(tmp_path).read_metrics() if "error" in row]
    assert (row["step"], row["epoch"], row["batch"]) == (3, 0, 3)
    assert len(row["ids"]) == 8
    train_ids = {colours().manifest.records[i].id for i in colours().rows("train")}
    assert set(row["ids"]) <= train_ids
    assert not RunFolder(tmp_path).checkpoint("last").exists()


def test_between_two_looks_the_first_bad_batch_is_remembered(tmp_path):
    with pytest.raises(TrainingError, match="at step 3"):
        train_run(settings("tiny_networks:exploding", log_every=5), tmp_path)


def test_weights_that_are_no_numbers_are_never_saved(tmp_path, monkeypatch):
    def poison(network: Any, fabric: Any) -> None:
        next(network.parameters()).data[:] = math.nan

    config = settings(epochs=1, log_every=1000)
    monkeypatch.setattr(step_module, "average_buffers", poison)
    monkeypatch.setattr(FiniteWatch, "look", _look_away)
    with pytest.raises(TrainingError, match="a weight"):
        train_run(config, tmp_path)
    assert not RunFolder(tmp_path).checkpoint("last").exists()


def _look_away(self: Any, loss: Tensor, progress: Any) -> None:
    self.seen.append((progress.step, progress.epoch, progress.batch))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_stops_and_can_be_resumed_to_the_bit(tmp_path, monkeypatch, number):
    config = settings("tiny_networks:dropout")
    whole = networks(train_run(config, tmp_path / "whole"))
    real = Screen.log

    def interrupt(self: Screen, folder: RunFolder, progress: Any, *rest: Any) -> None:
        real(self, folder, progress, *rest)
        if progress.step == 3:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Screen, "log", interrupt)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(StopRequestedError, match="step 3"):
        train_run(config, tmp_path / "stopped")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    monkeypatch.undo()
    folder = train_run(config, tmp_path / "stopped")
    for name, tensor in networks(folder).items():
        assert torch.equal(tensor, whole[name]), name
    logged = [row["step"] for row in folder.read_metrics() if "loss" in row]
    assert logged == sorted(set(logged))  # no step twice


def test_training_needs_no_main_thread(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        folder = pool.submit(train_run, settings(epochs=1), tmp_path).result()
    assert is_finished(folder.checkpoint("last"))
