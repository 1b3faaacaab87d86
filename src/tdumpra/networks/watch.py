"""Watch over training: refuse losses and weights that are not finite, and stop on request."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from tdumpra.data.batches.sampling import BatchPlan
from tdumpra.errors import TdumpraError
from tdumpra.networks.checkpoint import Progress, TrainingFiles


class TrainingError(TdumpraError):
    """Training cannot go on, and the message says what to change."""


class FiniteWatch:
    """Find losses that are not finite without making the GPU wait: they stay on the device until somebody asks."""

    def __init__(self, plan: BatchPlan, ids: tuple[str, ...], folder: TrainingFiles) -> None:
        self.plan, self.ids, self.folder = plan, ids, folder
        self.losses: list[Tensor] = []  # of the batches since the last check
        self.seen: list[tuple[int, int, int]] = []  # their steps, epochs and batches

    def look(self, loss: Tensor, progress: Progress) -> None:
        """Look at the loss of a batch."""
        self.losses.append(loss.clone())  # a captured step writes the next one into the same place
        self.seen.append((progress.step, progress.epoch, progress.batch))

    def refuse_non_finite(self, learning_rate: float, network: nn.Module | None = None) -> None:
        """Raise if a loss since the last check, or a weight of ``network``, is not finite."""
        first, seen = _first_non_finite(self.losses), self.seen
        self.losses, self.seen = [], []
        what = "the loss"
        if first < 0:
            if network is None or not seen or _is_finite(network):
                return
            first, what = -1, "a weight"  # a finite loss may still have had an infinite gradient
        step, epoch, batch = seen[first]
        whole = replace(self.plan, rank=0, world_size=1)  # the images of all processes
        sample = next(whole.batches(epoch, start=batch))
        if self.plan.rank == 0:
            ids = [self.ids[number] for number in sample.numbers]
            row = {"step": step, "epoch": epoch, "batch": batch, "learning_rate": learning_rate}
            self.folder.append_metrics({**row, "error": f"{what} is not finite", "ids": ids})
        raise TrainingError(
            f"{what} is no longer a finite number at step {step} (epoch {epoch + 1}, learning rate "
            f"{learning_rate:.3g}); {self.folder.metrics} names the images of that batch, and the last checkpoint is "
            "from before it. Try a lower train.learning_rate, train.clip_norm, or precision 32-true"
        )


def _first_non_finite(losses: list[Tensor]) -> int:
    """Return the place of the first, or -1."""
    if not losses:
        return -1
    bad = ~torch.stack(losses).isfinite()
    return int(torch.where(bad.any(), bad.int().argmax(), -1))


def _is_finite(network: nn.Module) -> bool:
    largest = torch._foreach_norm([p.detach() for p in network.parameters()], ord=math.inf)
    return bool(torch.stack([each.float() for each in largest]).isfinite().all())


class Stop:
    """A request to stop, shared by all processes."""

    asked = False

    def is_set(self, fabric: Fabric) -> bool:
        """Return whether any process was asked to stop."""
        if fabric.world_size == 1:
            return self.asked
        anyone = fabric.all_reduce(torch.tensor(float(self.asked), device=fabric.device), reduce_op="sum")
        return bool(cast(Tensor, anyone) > 0)


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Let Ctrl-C and SIGTERM stop training at the next step; a second Ctrl-C stops at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # Python lets no other thread handle signals
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _: Any) -> None:
        stop.asked = True
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
