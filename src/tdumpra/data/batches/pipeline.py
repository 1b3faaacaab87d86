"""Make batches for training and evaluation, by either of two routes behind one interface.

:class:`WorkerPipeline` augments images in CPU processes through torchvision and sends them to the device.
:class:`DevicePipeline` keeps all images on the device and augments whole batches there. Both follow the same
:class:`~tdumpra.data.batches.sampling.BatchPlan` and draw the same parameters; their training pixels differ by the
rounding of 8-bit arithmetic (less than two grey levels on average), their evaluation pixels not at all.
"""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tdumpra.checks import check_choice, check_count
from tdumpra.data.batches.augment import AugmentConfig, AugmentParams, apply_one, draw
from tdumpra.data.batches.augment_batch import Colours, apply_batch
from tdumpra.data.batches.sampling import BatchPlan, Sample
from tdumpra.data.images.framing import EvalTransform
from tdumpra.data.images.store import ImageStore
from tdumpra.data.images.workers import available_cores

VIEWS = 2
DEVICE_SHARE = 0.4  # of the device's free memory that images may take; the rest is the network's

Kind = Literal["auto", "workers", "device"]


class TrainBatch(NamedTuple):
    """Augmented views of some images; ``views.flatten(0, 1)`` gives all first views, then all second ones."""

    views: Float32[Tensor, "v n 3 size size"]
    numbers: Int64[Tensor, " n"]  # of the images in the store; on the device, like the pixels


class EvalBatch(NamedTuple):
    """Images as the model sees them at test time."""

    images: Float32[Tensor, "n 3 size size"]
    numbers: Int64[Tensor, " n"]


class Pipeline(ABC):
    """Images of one store, ready for the network."""

    def __init__(
        self, store: ImageStore, augment: AugmentConfig, evaluation: EvalTransform, device: torch.device
    ) -> None:
        if store.framing != evaluation.framing:
            raise ValueError(
                f"the images are framed as {store.framing}, and the evaluation transform expects {evaluation.framing}"
            )
        self.store, self.augment, self.evaluation, self.device = store, augment, evaluation, device

    @abstractmethod
    def train(self, plan: BatchPlan, epoch: int, *, start: int = 0, compiled: bool = False) -> Iterator[TrainBatch]:
        """Yield two augmented views of each batch of ``epoch``, from batch ``start`` on.

        ``compiled`` has a compiler fuse what the device does to the pixels, where it augments them.
        """

    @abstractmethod
    def evaluate(self, numbers: Int64[np.ndarray, " n"], batch_size: int) -> Iterator[EvalBatch]:
        """Yield the images ``numbers`` in that order, unaugmented; the last batch may be smaller."""

    @cached_property
    def _colours(self) -> Colours:
        """Mean and standard deviation on the device, where copying them for each batch would make it wait."""
        mean, std = torch.tensor([self.evaluation.mean, self.evaluation.std], device=self.device).view(2, 3, 1, 1)
        return Colours(mean, std)


def make_pipeline(
    kind: Kind,
    store: ImageStore,
    *,
    augment: AugmentConfig,
    evaluation: EvalTransform,
    device: torch.device | str,
    workers: int | None = None,
) -> Pipeline:
    """Return the pipeline of that kind. ``auto`` takes the faster one.

    That is the device's where the device is a GPU and the images fit into 0.4 of its free memory. On CPU cores it is
    the workers': one image at a time stays in a core's cache, and 8-bit arithmetic moves a quarter of the bytes
    (``benchmarks/pipeline.py`` measures both).
    """
    device = torch.device(device)
    check_choice(kind, "pipeline", get_args(Kind))
    if kind == "auto":
        fits = device.type == "cuda" and store.nbytes <= DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]
        kind = "device" if fits else "workers"
    if kind == "device":
        return DevicePipeline(store, augment, evaluation, device)
    return WorkerPipeline(store, augment, evaluation, device, workers=available_cores() if workers is None else workers)


class WorkerPipeline(Pipeline):
    """CPU processes read, augment with torchvision, and hand over 8-bit batches; the device normalises them."""

    def __init__(
        self,
        store: ImageStore,
        augment: AugmentConfig,
        evaluation: EvalTransform,
        device: torch.device,
        *,
        workers: int,
    ) -> None:
        super().__init__(store, augment, evaluation, device)
        check_count(workers, "workers", least=0)
        self.workers = workers

    def train(self, plan: BatchPlan, epoch: int, *, start: int = 0, compiled: bool = False) -> Iterator[TrainBatch]:
        """Each worker makes whole batches, so that their parameters are drawn at once."""
        views = _Views(self.store, self.augment, self.evaluation.size, plan.seed, epoch)
        for images, numbers in self._load(views, list(plan.batches(epoch, start))):
            yield TrainBatch((images.float() / 255 - self._colours.mean) / self._colours.std, numbers)

    def evaluate(self, numbers: Int64[np.ndarray, " n"], batch_size: int) -> Iterator[EvalBatch]:
        """Workers read, and decode where the store streams; resizing and normalising is the device's."""
        samples = [Sample(part, np.zeros_like(part)) for part in _batches(numbers, batch_size)]
        for images, loaded in self._load(_Framed(self.store), samples):
            yield EvalBatch(self.evaluation(images), loaded)

    def _load(self, dataset: _SampleDataset, samples: list[Sample]) -> Iterator[tuple[Tensor, Tensor]]:
        on_gpu = self.device.type == "cuda"
        loader = DataLoader(
            dataset,
            sampler=samples,  # a "sampler" of whole batches, with batch_size=None
            batch_size=None,
            num_workers=min(self.workers, len(samples)),
            pin_memory=on_gpu,
            # a loader draws a seed for its workers: from the global generator it would disturb dropout's stream, and a
            # run resumed within an epoch would not be the uninterrupted one
            generator=torch.Generator(),
            worker_init_fn=_leave_signals_to_parent,
        )
        for images, numbers in loader:
            yield images.to(self.device, non_blocking=on_gpu), numbers.to(self.device, non_blocking=on_gpu)


class DevicePipeline(Pipeline):
    """All images live on the device; a batch is a gather and a few batched operations, with no copy from the host."""

    def __init__(
        self, store: ImageStore, augment: AugmentConfig, evaluation: EvalTransform, device: torch.device
    ) -> None:
        super().__init__(store, augment, evaluation, device)
        height, width = store.framing.height, store.framing.width
        self.images = torch.empty(len(store), height, width, 3, dtype=torch.uint8, device=device)
        for part in _batches(np.arange(len(store)), 256):
            self.images[part[0] : part[-1] + 1] = torch.from_numpy(store.read(part))

    def train(self, plan: BatchPlan, epoch: int, *, start: int = 0, compiled: bool = False) -> Iterator[TrainBatch]:
        """Gather, augment both views as one batch, normalise."""
        for sample in plan.batches(epoch, start):
            numbers = self._to_device(sample.numbers)
            params = draw_views(self.augment, sample, self.store, seed=plan.seed, epoch=epoch)
            images = self.images[numbers].permute(0, 3, 1, 2).repeat(VIEWS, 1, 1, 1)
            views = apply_batch(images, params, self.evaluation.size, colours=self._colours, compiled=compiled)
            yield TrainBatch(views.view(VIEWS, len(numbers), *views.shape[1:]), numbers)

    def evaluate(self, numbers: Int64[np.ndarray, " n"], batch_size: int) -> Iterator[EvalBatch]:
        """Gather and transform."""
        for part in _batches(numbers, batch_size):
            on_device = self._to_device(part)
            yield EvalBatch(self.evaluation(self.images[on_device]), on_device)

    def _to_device(self, numbers: Int64[np.ndarray, " n"]) -> Int64[Tensor, " n"]:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self.device)


def draw_views(config: AugmentConfig, sample: Sample, store: ImageStore, *, seed: int, epoch: int) -> AugmentParams:
    """Draw parameters of all first views, then of all second ones. Each showing of an image has views of its own."""
    view = (np.arange(VIEWS)[:, None] + VIEWS * sample.copy).ravel()
    height, width = store.framing.height, store.framing.width
    index = np.tile(sample.numbers, VIEWS)
    return draw(config, seed=seed, epoch=epoch, index=index, view=view, height=height, width=width)


class _SampleDataset(Dataset[tuple[Tensor, Tensor]]):
    """Indexed by whole batches."""

    def __init__(self, store: ImageStore) -> None:
        self.store = store


class _Framed(_SampleDataset):
    def __getitem__(self, sample: Sample) -> tuple[UInt8[Tensor, "n h w 3"], Int64[Tensor, " n"]]:
        return torch.from_numpy(self.store.read(sample.numbers)), torch.from_numpy(np.ascontiguousarray(sample.numbers))


class _Views(_SampleDataset):
    def __init__(self, store: ImageStore, augment: AugmentConfig, size: int, seed: int, epoch: int) -> None:
        super().__init__(store)
        self.augment, self.size, self.seed, self.epoch = augment, size, seed, epoch

    def __getitem__(self, sample: Sample) -> tuple[UInt8[Tensor, "v n 3 size size"], Int64[Tensor, " n"]]:
        images = torch.from_numpy(self.store.read(sample.numbers)).permute(0, 3, 1, 2)
        params = draw_views(self.augment, sample, self.store, seed=self.seed, epoch=self.epoch)
        n, size = len(sample.numbers), self.size
        views = torch.empty(VIEWS * n, 3, size, size, dtype=torch.uint8)
        for row in range(VIEWS * n):
            views[row] = apply_one(images[row % n], params[row : row + 1], size)
        return views.view(VIEWS, n, 3, size, size), torch.from_numpy(np.ascontiguousarray(sample.numbers))


def _leave_signals_to_parent(_: int) -> None:
    """Ignore Ctrl-C, which reaches every process of a terminal, and SLURM's SIGTERM: the parent decides."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _batches(numbers: Int64[np.ndarray, " n"], batch_size: int) -> Iterator[Int64[np.ndarray, " m"]]:
    check_count(batch_size, "batch_size")
    return (numbers[start : start + batch_size] for start in range(0, len(numbers), batch_size))
