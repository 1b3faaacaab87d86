from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tdumpra.data.batches import pipeline as pipeline_module
from tdumpra.data.batches.augment import AugmentConfig, AugmentParams
from tdumpra.data.batches.pipeline import DevicePipeline, Pipeline, TrainBatch, WorkerPipeline, make_pipeline
from tdumpra.data.batches.sampling import BatchPlan
from tdumpra.data.images.decode import decode_file
from tdumpra.data.images.framing import EvalTransform, Framing
from tdumpra.data.images.prepare import prepare
from tdumpra.data.images.store import ImageStore, StreamedImages
from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import FileReader

FRAMING = Framing(height=24, width=32)
AUGMENT = AugmentConfig()
EVALUATION = EvalTransform(framing=FRAMING, size=16, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
CPU = torch.device("cpu")


@dataclass
class Memory(ImageStore):
    """A store over an array."""

    array: np.ndarray
    framing: Framing = FRAMING

    def __len__(self) -> int:
        return len(self.array)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def read(self, numbers: np.ndarray) -> np.ndarray:
        return np.asarray(self.array[numbers])


@pytest.fixture
def store() -> Memory:
    coarse = torch.rand(40, 3, 3, 4, generator=torch.Generator().manual_seed(0)) * 255
    smooth = torch.nn.functional.interpolate(coarse, (24, 32), mode="bilinear")
    return Memory(smooth.to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy())


def plan(**changes) -> BatchPlan:
    return BatchPlan(**{"numbers": np.arange(4, 40), "batch_size": 8, "seed": 5, **changes})


def build(kind: str, store: Memory, workers: int = 0) -> Pipeline:
    if kind == "device":
        return DevicePipeline(store, AUGMENT, EVALUATION, CPU)
    return WorkerPipeline(store, AUGMENT, EVALUATION, CPU, workers=workers)


def equal(a: list[TrainBatch], b: list[TrainBatch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) for left, right in zip(a, b, strict=True) for x, y in zip(left, right, strict=True)
    )


def drawn(monkeypatch) -> list[AugmentParams]:
    """The parameters that are drawn from now on, in this process."""
    seen: list[AugmentParams] = []
    real = pipeline_module.draw_views

    def watch(*arguments, **named):
        seen.append(real(*arguments, **named))
        return seen[-1]

    monkeypatch.setattr(pipeline_module, "draw_views", watch)
    return seen


@pytest.mark.parametrize("kind", ["workers", "device"])
def test_training_batches_hold_two_different_views(store, kind):
    batches = list(build(kind, store).train(plan(), 0))
    assert len(batches) == 4
    for views, numbers in batches:
        assert views.shape == (2, 8, 3, 16, 16)
        assert views.dtype == torch.float32
        assert (views[0] != views[1]).flatten(1).any(1).all()
        assert views.abs().max() <= 2 + 1e-5  # (0…1 - 0.5) / 0.25
        assert numbers.dtype == torch.int64
    seen = torch.cat([numbers for _, numbers in batches])
    assert len(seen.unique()) == 32
    assert seen.min() >= 4


def test_both_pipelines_draw_the_same_parameters_and_nearly_the_same_pixels(store, monkeypatch):
    seen = drawn(monkeypatch)
    resident = list(build("device", store).train(plan(), 3))
    first, seen[:] = list(seen), []
    worked = list(build("workers", store).train(plan(), 3))
    for mine, theirs in zip(first, seen, strict=True):
        for f in fields(AugmentParams):
            np.testing.assert_array_equal(getattr(mine, f.name), getattr(theirs, f.name))  # bit for bit
    for a, b in zip(resident, worked, strict=True):
        assert torch.equal(a.numbers, b.numbers)
        levels = (a.views - b.views).abs() * 0.25 * 255
        assert levels.mean() < 2


@pytest.mark.parametrize("kind", ["workers", "device"])
def test_a_resumed_epoch_sees_the_same_pixels(store, kind):
    whole = list(build(kind, store).train(plan(), 2))
    assert equal(list(build(kind, store).train(plan(), 2, start=3)), whole[3:])
    assert not equal(list(build(kind, store).train(plan(), 1)), whole)


@pytest.mark.parametrize("kind", ["workers", "device"])
def test_shards_see_the_single_processs_pixels(store, kind):
    whole = list(build(kind, store).train(plan(), 0))
    shards = [list(build(kind, store).train(plan(rank=rank, world_size=2), 0)) for rank in range(2)]
    for batch, even, odd in zip(whole, *shards, strict=True):
        assert torch.equal(batch.numbers[0::2], even.numbers)
        torch.testing.assert_close(batch.views[:, 0::2], even.views, atol=1e-5, rtol=0)
        torch.testing.assert_close(batch.views[:, 1::2], odd.views, atol=1e-5, rtol=0)


def test_repeated_showings_of_an_image_differ(store):
    labels = np.array([0] * 34 + [1] * 2)
    batches = list(build("device", store).train(plan(balanced=True, labels=labels), 0))
    numbers = torch.cat([batch.numbers for batch in batches])
    views = torch.cat([batch.views.transpose(0, 1) for batch in batches])
    showings = views[numbers == numbers.mode().values]
    assert len(showings) > 3
    flat = showings.flatten(0, 1).flatten(1)
    assert len(flat.unique(dim=0)) == len(flat)


def test_worker_processes_change_nothing(store):
    assert equal(
        list(build("workers", store, workers=2).train(plan(), 0)), list(build("workers", store).train(plan(), 0))
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_is_the_same_by_either_route_and_in_order(store, workers):
    numbers = np.array([7, 3, 39, 0, 3])
    resident = list(build("device", store).evaluate(numbers, 2))
    worked = list(build("workers", store, workers).evaluate(numbers, 2))
    assert [len(batch.numbers) for batch in resident] == [2, 2, 1]
    assert torch.cat([batch.numbers for batch in worked]).tolist() == numbers.tolist()
    images = torch.cat([batch.images for batch in resident])
    assert torch.equal(images, torch.cat([batch.images for batch in worked]))
    torch.testing.assert_close(images, EVALUATION(torch.from_numpy(store.read(numbers))), atol=1e-5, rtol=0)


def test_evaluating_nothing_gives_nothing(store):
    for kind in ("workers", "device"):
        assert list(build(kind, store).evaluate(np.array([], dtype=np.int64), 4)) == []


def made(kind: Any, store: Memory, device: str = "cpu") -> Any:
    return make_pipeline(kind, store, augment=AUGMENT, evaluation=EVALUATION, device=device)


def test_auto_takes_workers_on_a_cpu_and_the_device_where_the_images_fit(store, monkeypatch):
    assert isinstance(made("auto", store), WorkerPipeline)
    assert isinstance(made("device", store), DevicePipeline)
    monkeypatch.setattr(pipeline_module, "DevicePipeline", lambda *arguments: "resident")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (store.nbytes * 3, 0))
    assert made("auto", store, "cuda") == "resident"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (store.nbytes * 2, 0))
    assert isinstance(made("auto", store, "cuda"), WorkerPipeline)
    with pytest.raises(ValueError, match="'gpu'"):
        made("gpu", store)


def test_a_transform_for_other_images_is_refused(store):
    with pytest.raises(ValueError, match="framed as"):
        DevicePipeline(store, AUGMENT, EvalTransform(), CPU)


def test_streamed_images_train_like_cached_ones(make_manifest, tmp_path):
    manifest = make_manifest(12)
    cached = prepare(manifest, tmp_path / "out", FRAMING, workers=0).images
    batches = []
    for images in (cached, StreamedImages(manifest.records, manifest.reader, FRAMING)):
        pipeline = WorkerPipeline(images, AUGMENT, EVALUATION, CPU, workers=2)
        batches.append(list(pipeline.train(plan(numbers=np.arange(12), batch_size=4), 0)))
    assert equal(*batches)


def ham10000_images() -> list[Path]:
    beside = Path(__file__).resolve().parents[4] / "shared" / "ham10000"
    return sorted(Path(os.environ.get("TDUMPRA_HAM10000", beside)).glob("**/ISIC_*.jpg"))[:96]


def test_real_images_go_all_the_way(tmp_path):
    paths = ham10000_images()
    if not paths:
        pytest.skip("HAM10000's images are not at hand: unpack them and set TDUMPRA_HAM10000")
    records = tuple(Record(path.stem, path, 0, path.stem) for path in paths)
    framing = Framing(height=192, width=256)
    evaluation = EvalTransform(framing=framing)
    prepared = prepare(Manifest("ham", ("a", "b"), records, FileReader()), tmp_path, framing)
    assert not prepared.quarantine
    pipeline = make_pipeline("auto", prepared.images, augment=AugmentConfig(), evaluation=evaluation, device="cpu")
    batch = next(pipeline.train(BatchPlan(numbers=np.arange(len(paths)), batch_size=8, seed=0), 0))
    assert batch.views.shape == (2, 8, 3, 224, 224)
    (evaluated,) = pipeline.evaluate(np.arange(4), 4)
    later = torch.from_numpy(np.stack([framing.apply(decode_file(path)) for path in paths[:4]]))
    assert torch.equal(evaluated.images, evaluation(later))  # a file predicted later is seen as it was evaluated
