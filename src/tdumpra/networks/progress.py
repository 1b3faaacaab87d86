"""Show training and embedding: a progress bar on a terminal, otherwise a line per epoch or split."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning_fabric import Fabric
from rich.console import Console

from tdumpra import screen
from tdumpra.core.losses import JointLoss
from tdumpra.networks.checkpoint import Progress, TrainingFiles
from tdumpra.networks.step import Way

OnValidated = Callable[[int, Mapping[str, float]], None]  # the epoch, and the student's scores


class Screen:
    """Show and log the progress of training; silent on processes other than the first."""

    def __init__(
        self,
        console: Console,
        *,
        name: str,
        quiet: bool = False,
        tensorboard: Any = None,
        on_validated: OnValidated | None = None,
    ) -> None:
        self.console, self.name, self.quiet, self.tensorboard = console, name, quiet, tensorboard
        self._on_validated = on_validated
        self._step: Callable[..., None] = lambda *_, **__: None
        self._text = ""
        self._mark = (time.monotonic(), 0)
        self._batches = 1

    @contextmanager
    def training(self, epochs: int, n_batches: int, progress: Progress) -> Iterator[None]:
        """Show a bar of the whole run while the block runs."""
        self._batches = n_batches
        self._mark = (time.monotonic(), progress.step)
        with screen.progress(self.name, epochs * n_batches, console=self.console, show=not self.quiet) as self._step:
            self.advance(progress)
            yield

    def takes_steps(self, folder: TrainingFiles, progress: Progress, way: Way) -> None:
        """Say and log how steps are taken from here on, and why."""
        if self.quiet:
            return
        folder.append_metrics({"step": progress.step, "epoch": progress.epoch, "steps": way.name, "reason": way.reason})
        if way.captured or way.compiled:
            screen.say(f"{self.name}: steps are {way.name}: {way.reason}", self.console)

    def advance(self, progress: Progress) -> None:
        """Move the bar to ``progress``."""
        done = progress.epoch * self._batches + progress.batch
        self._step(done, what=f"{self.name}  {self._text}".rstrip())

    def log(
        self,
        folder: TrainingFiles,
        progress: Progress,
        loss: JointLoss,
        learning_rate: float,
        images: int,
        fabric: Fabric,
    ) -> None:
        """Write a line of metrics; ``images`` is how many views a step takes over all processes."""
        now, (then, step) = time.monotonic(), self._mark
        self._mark = (now, progress.step)
        speed = images * (progress.step - step) / max(1e-9, now - then)
        row = {
            "step": progress.step,
            "epoch": progress.epoch,
            "loss": loss.total.item(),
            "cross_entropy": loss.cross_entropy.item(),
            "contrastive": loss.contrastive.item(),
            "learning_rate": learning_rate,
            "images_per_second": round(speed, 1),
        }
        parts = f"ce {row['cross_entropy']:.3f}  scl {row['contrastive']:.3f}"
        self._text = f"epoch {progress.epoch + 1}  loss {row['loss']:.3f} ({parts})  {speed:,.0f} views/s"
        if fabric.is_global_zero:
            folder.append_metrics(row)
            self._track({f"train/{key}": value for key, value in row.items() if key not in ("step", "epoch")}, progress)

    def validated(self, progress: Progress, scores: dict[str, dict[str, float]]) -> None:
        """Show the validation scores of an epoch, and tell whoever watches the training."""
        if self._on_validated is not None:
            self._on_validated(progress.epoch, scores["student"])
        if self.quiet:
            return
        student, teacher = scores["student"], scores["teacher"]
        screen.say(
            f"{self.name}: epoch {progress.epoch}, validation loss {student['nll']:.4f}, accuracy "
            f"{student['accuracy']:.4f}, balanced {student['balanced_accuracy']:.4f}; teacher {teacher['nll']:.4f}, "
            f"{teacher['accuracy']:.4f}, {teacher['balanced_accuracy']:.4f}",
            self.console,
        )
        flat = {f"val/{who}/{key}": value for who, each in scores.items() for key, value in each.items()}
        self._track(flat, progress)

    def _track(self, values: dict[str, Any], progress: Progress) -> None:
        if self.tensorboard is not None:
            for key, value in values.items():
                self.tensorboard.add_scalar(key, value, progress.step)
