"""Plan which images make up which batch, as a function of (seed, epoch) alone.

A plan describes whole batches, however many processes share them. Process r of w takes every w-th image of each batch,
starting with its r-th, so that all of them together see what a single process would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from tdumpra.checks import check_count
from tdumpra.data.batches.counter_rng import permutation

_ORDER, _CLASSES = 2**31, 2**31 + 1  # streams of random numbers; the augmentation's are far below


class Sample(NamedTuple):
    """Images of one batch. ``copy`` tells the showings of one image within an epoch apart: 0, 1, ..."""

    numbers: Int64[np.ndarray, " n"]
    copy: Int64[np.ndarray, " n"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The training batches of every epoch.

    ``balanced`` shows each class equally often, as many images in all as there are: a rare class's images come several
    times an epoch, each time with another crop; a common class's take turns over the epochs.
    """

    numbers: Int64[np.ndarray, " n"] = field(repr=False)  # the training images, by their number in the store
    batch_size: int  # of all processes together
    seed: int
    balanced: bool = False
    labels: Int64[np.ndarray, " n"] | None = field(default=None, repr=False)  # needed where balanced
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        check_count(self.batch_size, "batch_size")
        check_count(self.world_size, "world_size")
        check_count(self.rank, "rank", least=0)
        if self.rank >= self.world_size:
            raise ValueError(f"rank must be below world_size ({self.world_size}), not {self.rank}")
        if self.batch_size % self.world_size:
            raise ValueError(f"batch_size {self.batch_size} cannot be shared evenly by {self.world_size} processes")
        if self.balanced and (self.labels is None or len(self.labels) != len(self.numbers)):
            raise ValueError("balanced sampling needs one label for each image")
        if self.n_batches == 0:
            raise ValueError(f"{len(self.numbers)} images make no full batch of {self.batch_size}: lower batch_size")

    @property
    def n_batches(self) -> int:
        """Full batches in an epoch; the images left over wait for the next one."""
        return len(self.numbers) // self.batch_size

    def batches(self, epoch: int, start: int = 0) -> Iterator[Sample]:
        """Yield this process's part of each batch of ``epoch``, from batch ``start`` on."""
        check_count(epoch, "epoch", least=0)
        check_count(start, "start", least=0)
        epoch_sample = self._balanced(epoch) if self.balanced else self._shuffled(epoch)
        for number in range(start, self.n_batches):
            batch = slice(number * self.batch_size + self.rank, (number + 1) * self.batch_size, self.world_size)
            yield Sample(epoch_sample.numbers[batch], epoch_sample.copy[batch])

    def _shuffled(self, epoch: int) -> Sample:
        order = permutation(self.seed, epoch=epoch, length=len(self.numbers), stream=_ORDER)
        return Sample(self.numbers[order], np.zeros(len(order), dtype=np.int64))

    def _balanced(self, epoch: int) -> Sample:
        classes = np.unique(self.labels) if self.labels is not None else np.empty(0, np.int64)
        quota = -(-len(self.numbers) // len(classes))  # rounded up
        parts = [self._turns(np.flatnonzero(self.labels == c), quota, epoch, int(c)) for c in classes]
        numbers = np.concatenate([part.numbers for part in parts])
        copy = np.concatenate([part.copy for part in parts])
        order = permutation(self.seed, epoch=epoch, length=len(numbers), stream=_ORDER)[: len(self.numbers)]
        return Sample(numbers[order], copy[order])

    def _turns(self, members: Int64[np.ndarray, " m"], quota: int, epoch: int, c: int) -> Sample:
        """Return ``quota`` showings of one class: each member as often as any other, give or take one."""
        order = permutation(self.seed, epoch=epoch, length=len(members), stream=_CLASSES + c)
        showing = np.arange(quota)
        return Sample(self.numbers[members[order[showing % len(members)]]], showing // len(members))
