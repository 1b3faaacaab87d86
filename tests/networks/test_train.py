"""Training: the loop, its options, and what it refuses."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import CLASS_NAMES, colours, launched, make_task, settings, silent, train_run
from torch import Tensor

from tdumpra.core import metrics
from tdumpra.data.batches.sampling import BatchPlan
from tdumpra.errors import ArtifactError, StopRequestedError
from tdumpra.networks import train as train_module
from tdumpra.networks.checkpoint import is_finished, read_networks
from tdumpra.networks.progress import Screen
from tdumpra.networks.train import TrainingError, batches_in_step, learning_rate_at, make_fabric, train
from tdumpra.runs.config import TrainConfig
from tdumpra.runs.folder import RunFolder, RunFolderError
from tdumpra.runs.pixel_stages import train_stage


def rows_of(folder: RunFolder, key: str) -> list[Any]:
    return [row[key] for row in folder.read_metrics() if key in row]


def weights(folder: RunFolder, name: str = "last") -> dict[str, Tensor]:
    found = read_networks(folder.checkpoint(name))
    return {**{f"s.{k}": v for k, v in found.student.items()}, **{f"t.{k}": v for k, v in found.teacher.items()}}


def assert_same_weights(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


# --- what is learned


def test_the_loss_goes_down_and_validation_gets_better(tmp_path):
    folder = train_run(settings(epochs=8), tmp_path)
    losses = rows_of(folder, "cross_entropy")
    assert np.median(losses[-9:]) < 0.7 * np.median(losses[:5])  # some views are grey, and hard
    validations = rows_of(folder, "validation")
    assert validations[-1]["student"]["accuracy"] == 1.0
    assert validations[-1]["student"]["nll"] < validations[0]["student"]["nll"]


def test_each_line_of_metrics_says_step_losses_rate_and_speed(tmp_path):
    folder = train_run(settings(), tmp_path)
    way, *lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert way == {"step": 0, "epoch": 0, "steps": "eager", "reason": "a CPU has no launches to save"}
    first = lines[0]
    assert set(first) == {
        "step", "epoch", "loss", "cross_entropy", "contrastive", "learning_rate", "images_per_second",
    }  # fmt: skip
    assert first["loss"] == pytest.approx(first["cross_entropy"] + 0.03 * first["contrastive"], rel=1e-5)
    n_batches = len(colours().rows("train")) // 8
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 2 * n_batches + 1))
    assert [line["epoch"] for line in lines if "validation" in line] == [1, 2]


def test_the_teacher_follows_the_student(tmp_path):
    found = read_networks(train_run(settings(ema_momentum=0.5, ema_warmup=False), tmp_path).checkpoint("last"))
    key = "backbone.stem.weight"
    assert not torch.equal(found.student[key], found.teacher[key])
    assert torch.nn.functional.cosine_similarity(found.student[key].flatten(), found.teacher[key].flatten(), 0) > 0.95


def test_another_seed_gives_another_network_and_the_same_seed_the_same(tmp_path):
    config = settings(epochs=1)
    a, again, b = (
        weights(train_run(config, tmp_path / name, seed=seed)) for name, seed in (("a", 0), ("a2", 0), ("b", 1))
    )
    assert_same_weights(a, again)
    assert not torch.equal(a["s.classifier.weight"], b["s.classifier.weight"])


def test_both_pipelines_and_worker_processes_train(tmp_path):
    config = settings(epochs=1)
    in_process = train_run(config, tmp_path / "0")
    with_workers = replace(config, data=replace(config.data, workers=1))
    assert_same_weights(weights(in_process), weights(train_run(with_workers, tmp_path / "1")))
    on_device = replace(config, data=replace(config.data, pipeline="device"))
    assert is_finished(train_run(on_device, tmp_path / "2").checkpoint("last"))


# --- the schedule


def test_the_schedule_by_hand():
    config = TrainConfig(epochs=5, learning_rate=1.0, warmup_epochs=1.0)
    rates = [learning_rate_at(step, 4, config) for step in range(20)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])  # (step + 1) / 5, then the top of the cosine
    assert rates[12] == pytest.approx(0.5)  # half of the 16 steps after warm-up
    assert rates[16] == pytest.approx((1 + math.cos(0.75 * math.pi)) / 2)
    assert 0 < rates[-1] < 0.01
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_a_constant_schedule_has_no_warmup():
    config = TrainConfig(epochs=5, learning_rate=0.3, schedule="constant")
    assert {learning_rate_at(step, 4, config) for step in range(20)} == {0.3}


def test_the_schedule_is_what_the_optimiser_gets(tmp_path):
    config = settings(epochs=3)
    folder = train_run(config, tmp_path)
    per_epoch = len(colours().rows("train")) // 8
    expected = [learning_rate_at(step, per_epoch, config.train) for step in range(3 * per_epoch)]
    assert rows_of(folder, "learning_rate") == pytest.approx(expected)


# --- accumulation, clipping


def one_step(tmp_path: Path, monkeypatch, **options: Any) -> dict[str, Tensor]:
    """Gradients of the first step, as the optimiser gets them."""
    config = settings("tiny_networks:without_norm", epochs=1, **options)
    fabric = launched(config)
    network, task = make_task(config, colours(), fabric)
    seen: list[dict[str, Tensor]] = []

    class Watched(torch.optim.AdamW):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            seen.append({name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None})
            super().step(closure)

    monkeypatch.setattr(train_module, "AdamW", Watched)
    folder = RunFolder(tmp_path)
    with folder.claim(config, 0):
        train(network, task, config.train, folder, seed=0, fabric=fabric, screen=Screen(silent(), name="", quiet=True))
    return seen[0]


def test_accumulation_gives_the_gradient_of_the_larger_batch(tmp_path, monkeypatch):
    options: dict[str, Any] = {"contrastive_weight": 0.0, "log_every": 100}  # contrast is within a batch
    large = one_step(tmp_path / "large", monkeypatch, batch_size=16, **options)
    small = one_step(tmp_path / "small", monkeypatch, batch_size=4, accumulate=4, **options)
    assert large.keys() == small.keys()
    for name in large:
        torch.testing.assert_close(small[name], large[name], rtol=1e-4, atol=1e-7)


def test_a_short_last_step_counts_its_own_batches():
    # ten batches by four: steps of four, four and two
    assert [batches_in_step(batch, 10, 4) for batch in range(10)] == [4] * 8 + [2] * 2
    assert [batches_in_step(batch, 3, 1) for batch in range(3)] == [1, 1, 1]


def test_clipping_bounds_the_norm_of_all_gradients(tmp_path, monkeypatch):
    def norm(gradients: dict[str, Tensor]) -> float:
        return float(torch.cat([g.flatten() for g in gradients.values()]).norm())

    free = one_step(tmp_path / "free", monkeypatch)
    clipped = one_step(tmp_path / "clipped", monkeypatch, clip_norm=0.01)
    assert norm(free) > 0.02
    assert norm(clipped) == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(clipped["classifier.weight"] * norm(free) / 0.01, free["classifier.weight"])


# --- options of the loss and of the data


def test_class_weights_by_hand():
    data = colours(labels=[0] * 24 + [1] * 12 + [2] * 12)
    config = settings(class_weights="balanced")
    _, task = make_task(config, data, launched(config))
    counts = np.bincount(data.manifest.labels[task.train], minlength=3)
    given = train_module._class_weights(config.train, task, torch.device("cpu"))
    assert given is not None
    np.testing.assert_allclose(given.numpy(), counts.sum() / (3 * counts), rtol=1e-6)
    assert float((given.numpy() * counts).sum() / counts.sum()) == pytest.approx(1.0)  # the average image weighs one


def test_a_class_without_training_images_does_not_disturb_class_weights(tmp_path):
    data = colours(labels=[0, 0, 1, 1] * 15)  # "cyan" has a name and no image
    config = settings(class_weights="balanced", epochs=1)
    _, task = make_task(config, data, launched(config))
    given = train_module._class_weights(config.train, task, torch.device("cpu"))
    assert given is not None
    assert given.shape == (3,)
    assert float(given[task.labels[torch.from_numpy(task.train)]].mean()) == pytest.approx(1.0)
    assert is_finished(train_run(config, tmp_path, data).checkpoint("last"))


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": "balanced"}, {"label_smoothing": 0.1}, {"class_weights": "balanced"}, {"clip_norm": 1.0},
        {"accumulate": 4}, {"contrastive_reduction": "sum"}, {"precision": "bf16-mixed"}, {"schedule": "constant"},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_options_change_the_outcome(tmp_path, options, default_weights):
    changed = weights(train_run(settings(epochs=1, **options), tmp_path, colours(labels=UNEVEN)))
    assert not torch.equal(changed["s.classifier.weight"], default_weights["s.classifier.weight"])


def test_the_memory_layout_changes_nothing_but_rounding(tmp_path):
    plain, last = (
        rows_of(train_run(settings(epochs=1, channels_last=flag), tmp_path / str(flag)), "loss")
        for flag in (False, True)
    )
    assert plain == pytest.approx(last, rel=1e-3)


UNEVEN = [0] * 32 + [1] * 16 + [2] * 12


@pytest.fixture(scope="module")
def default_weights(tmp_path_factory) -> dict[str, Tensor]:
    return weights(train_run(settings(epochs=1), tmp_path_factory.mktemp("default"), colours(labels=UNEVEN)))


def test_the_balanced_sampler_shows_classes_evenly(tmp_path, monkeypatch):
    plans: list[BatchPlan] = []
    real = train_module._plan

    def spy(*args: Any) -> BatchPlan:
        plans.append(real(*args))
        return plans[-1]

    monkeypatch.setattr(train_module, "_plan", spy)
    data = colours(labels=[0] * 40 + [1] * 12 + [2] * 8)
    train_run(settings(epochs=1, sampler="balanced", batch_size=4), tmp_path, data)
    shown = np.concatenate([sample.numbers for sample in plans[0].batches(0)])
    counts = np.bincount(data.manifest.labels[shown], minlength=3)
    assert counts.max() - counts.min() <= 4  # the quota, less what the last, smaller batch would have had


def test_early_stop_and_the_best_checkpoint(tmp_path, monkeypatch):
    losses = iter([1.0, 0.5, 0.9, 0.8, 0.7, 0.1])
    real = metrics.classification_metrics

    def scripted(p: Any, y: Any) -> dict[str, float]:
        calls.append(1)
        return {**real(p, y), "nll": next(losses) if len(calls) % 2 else 0.0}  # student, teacher, student, ...

    calls: list[int] = []
    monkeypatch.setattr(metrics, "classification_metrics", scripted)
    folder = train_run(settings(epochs=6, early_stop=2), tmp_path)
    assert [row["epoch"] for row in folder.read_metrics() if "validation" in row] == [1, 2, 3, 4]
    assert is_finished(folder.checkpoint("last"))
    last, best = weights(folder), weights(folder, "best")
    assert not torch.equal(last["s.classifier.weight"], best["s.classifier.weight"])


def test_training_on_validation_images_too(tmp_path):
    data = colours()
    folder = train_run(settings(), tmp_path, data.without_validation())
    assert rows_of(folder, "validation") == []
    assert not folder.checkpoint("best").exists()
    steps = max(rows_of(folder, "step"))
    assert steps == 2 * (len(data.rows("train", "val")) // 8)


def test_tensorboard_gets_what_metrics_get(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = train_run(settings(tensorboard=True), tmp_path)
    events = event_accumulator.EventAccumulator(str(folder.root / "tensorboard"))
    events.Reload()
    logged = [event.value for event in events.Scalars("train/loss")]
    assert logged == pytest.approx(rows_of(folder, "loss"), rel=1e-5)
    assert len(events.Scalars("val/student/accuracy")) == 2


# --- going on


def test_training_does_not_go_on_with_other_images(tmp_path, monkeypatch):
    """An image that is tested now may have been trained on before."""
    with monkeypatch.context() as patched:
        patched.setattr(Screen, "log", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(StopRequestedError):
            train_run(settings(), tmp_path)
    data = colours()
    codes = data.codes.copy()
    codes[data.rows("train")[0]], codes[data.rows("test")[0]] = 2, 0
    moved = replace(data, codes=codes, split=replace(data.split, codes=codes))
    with pytest.raises(ArtifactError, match=r"was trained with other split than this configuration names"):
        train_run(settings(), tmp_path, moved)


def test_a_resumed_run_logs_each_line_once(tmp_path):
    folder = train_run(settings(epochs=1), tmp_path)
    lines = folder.read_metrics()
    folder.append_metrics({"step": 999, "loss": 1.0})
    folder.append_metrics({"step": lines[-1]["step"], "epoch": 9, "validation": {}})
    with folder.metrics.open("a") as file:
        file.write('{"step": 3, "lo')  # cut short by a crash
    folder.rewind_metrics(lines[-1]["step"], 1)
    assert folder.read_metrics() == lines


def test_a_run_that_never_saved_starts_its_log_anew(tmp_path):
    folder = RunFolder(tmp_path)
    tmp_path.mkdir(exist_ok=True)
    folder.append_metrics({"step": 77, "loss": 1.0})
    train_run(settings(epochs=1), tmp_path)
    assert 77 not in rows_of(folder, "step")


# --- bad input


def test_a_batch_larger_than_the_data_is_refused(tmp_path):
    with pytest.raises(TrainingError, match=r"train\.batch_size is 500, and there are \d+ training images"):
        train_run(settings(batch_size=500), tmp_path)


def test_a_single_class_is_refused(tmp_path):
    with pytest.raises(TrainingError, match="show 1 class: there is nothing to tell apart"):
        train_run(settings(), tmp_path, colours(labels=[1] * 40))


def test_a_class_with_one_image_is_trained_on(tmp_path):
    folder = train_run(settings(epochs=1), tmp_path, colours(labels=[0, 0, 1, 1] * 12 + [2]))
    assert is_finished(folder.checkpoint("last"))


def test_out_of_memory_says_what_to_lower(tmp_path):
    with pytest.raises(
        TrainingError, match=r"out of memory with train\.batch_size = 8 \(16 views of 16 px\): lower it"
    ):
        train_run(settings("tiny_networks:out_of_memory"), tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(TrainingError, match=r'train\.accelerator is "cuda", and PyTorch sees no CUDA device'):
        make_fabric(TrainConfig(accelerator="cuda"))


def test_what_a_cpu_cannot_do_is_refused():
    with pytest.raises(TrainingError, match="16-bit floats with a gradient scaler need a GPU"):
        make_fabric(TrainConfig(accelerator="cpu", precision="16-mixed"))
    with pytest.raises(TrainingError, match=r"train\.sync_batchnorm needs GPUs"):
        make_fabric(TrainConfig(accelerator="cpu", devices=2, sync_batchnorm=True))


def test_a_finished_run_is_not_trained_again(tmp_path):
    config, data = settings(epochs=1), colours()
    folder = train_run(config, tmp_path, data)
    before = folder.checkpoint("last").stat().st_mtime_ns
    fabric = launched(config)
    assert not train_stage(config, data, folder, seed=0, fabric=fabric, console=silent())
    assert folder.checkpoint("last").stat().st_mtime_ns == before


def test_a_folder_of_other_settings_says_what_differs(tmp_path):
    train_run(settings(epochs=1), tmp_path)
    with pytest.raises(
        RunFolderError, match=r"made with other settings: train\.learning_rate was 0\.01 and is now 0\.5"
    ):
        train_run(settings(epochs=1, learning_rate=0.5), tmp_path)


def test_the_names_of_classes_are_those_of_the_data():
    assert colours().manifest.class_names == CLASS_NAMES


@pytest.fixture(autouse=True)
def _leave_no_global_state():
    yield
    torch.use_deterministic_algorithms(False)
