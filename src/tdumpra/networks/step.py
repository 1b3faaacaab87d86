"""One step of training, in one of three ways behind one interface.

:class:`Step` launches each kernel from the host, those of a compiled network if asked to. :class:`CapturedStep` has the
forward pass, both losses and the backward pass recorded once as a CUDA graph and replays it: one launch in place of
thousands. What comes after the gradients (clipping, AdamW, the teacher) is a few fused launches either way, which the
host makes while the GPU is busy with the replay; so both ways compute the same numbers, and a checkpoint does not know
which of them wrote it. :func:`make_step` chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from tdumpra.core.ema import EmaTeacher
from tdumpra.core.losses import JointLoss, joint_loss
from tdumpra.data.batches.pipeline import VIEWS
from tdumpra.networks.build import Encoding
from tdumpra.networks.capture import record
from tdumpra.networks.settings import TrainConfig

REPAYS_COMPILING = 5_000  # steps; compiling takes a minute or so, and saves about a hundredth of a second in each

Objective = Callable[[Encoding, Tensor], JointLoss]  # of a network's outputs and the labels


class Way(NamedTuple):
    """How steps are taken, and why."""

    compiled: bool
    captured: bool
    reason: str

    @property
    def name(self) -> str:
        """The way in a word or two."""
        words = [word for word, is_so in (("captured", self.captured), ("compiled", self.compiled)) if is_so]
        return " and ".join(words) or "eager"


def choose_way(config: TrainConfig, *, device: torch.device, world_size: int, steps: int) -> Way:
    """Choose how a training of ``steps`` takes them. It must choose alike when the training resumes: it times nothing.

    ``auto`` captures where it can, and compiles what it captures where the training is long enough to repay that.
    """
    if config.compile != "auto":
        return Way(config.compile, False, f"train.compile is {str(config.compile).lower()}")
    obstacles = {
        "a CPU has no launches to save": device.type != "cuda",
        "several processes exchange gradients in each step": world_size > 1,
        "the scaler of 16-bit floats decides on the host whether to step": config.precision == "16-mixed",
        f"train.accumulate = {config.accumulate} adds up batches": config.accumulate > 1,
    }
    for reason, is_so in obstacles.items():
        if is_so:
            return Way(False, False, reason)
    if config.deterministic:
        return Way(False, True, "replayed kernels are those of an eager step, to the bit, and compiled ones are not")
    if steps < REPAYS_COMPILING:
        return Way(False, True, f"{steps:,} steps would not repay compiling, {REPAYS_COMPILING:,} would")
    return Way(True, True, f"{steps:,} steps repay compiling")


@dataclass(eq=False)
class Step:
    """A step that the host launches: gradients of one batch after the other, then a move of the weights."""

    student: Any  # the network as Fabric runs it
    network: nn.Module
    teacher: EmaTeacher
    optimizer: Any  # as Fabric runs it
    objective: Objective
    clip_norm: float | None
    fabric: Fabric

    def gradients(self, views: Tensor, labels: Tensor, *, in_step: int = 1, last: bool = True) -> JointLoss:
        """Add the gradients of a batch, one of ``in_step`` that make up the step; return its loss."""
        with self.fabric.no_backward_sync(self.student, enabled=not last):
            loss = self.objective(self.student(views), labels)
            self.fabric.backward(loss.total / in_step)
        return JointLoss(*(part.detach() for part in loss))

    def move(self, learning_rate: float) -> None:
        """Move the weights along the gradients, and the teacher after them."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if self.clip_norm is not None:
            # an infinite gradient is the scaler's business in fp16, and the watch's otherwise
            self.fabric.clip_gradients(self.student, self.optimizer, max_norm=self.clip_norm, error_if_nonfinite=False)
        self.optimizer.step()
        self.forget_gradients()
        average_buffers(self.network, self.fabric)
        self.teacher.update(self.network)

    def forget_gradients(self) -> None:
        """Let the next batch begin anew."""
        self.optimizer.zero_grad()


class CapturedStep(Step):
    """A step whose gradients are a CUDA graph: it reads the batch from, and leaves gradients and loss in, fixed places.

    Recording moves no weight and leaves no trace (:mod:`tdumpra.networks.capture`).
    """

    def __init__(self, eager: Step, views: Tensor, labels: Tensor) -> None:
        super().__init__(**vars(eager))
        self.views, self.labels = views, labels
        self.graph, self.loss = self._record()

    def gradients(self, views: Tensor, labels: Tensor, *, in_step: int = 1, last: bool = True) -> JointLoss:
        """Compute the gradients of a batch. The loss is overwritten by the next one."""
        if views.shape != self.views.shape or in_step != 1:
            raise ValueError(f"a step was captured for one batch of {len(self.views)} views, not {len(views)}")
        self.views.copy_(views)
        self.labels.copy_(labels)
        self.graph.replay()
        return self.loss

    def forget_gradients(self) -> None:
        """Keep them: the graph overwrites its own."""

    def _record(self) -> tuple[Any, JointLoss]:
        self.student.train()
        try:
            return record(self._gradients_anew, self.network, self.fabric.device)
        except BaseException:
            self.network.zero_grad()
            raise

    def _gradients_anew(self) -> JointLoss:
        self.network.zero_grad()
        return super().gradients(self.views, self.labels)


def make_step(
    network: nn.Module,
    teacher: EmaTeacher,
    optimizer: Optimizer,
    objective: Objective,
    config: TrainConfig,
    fabric: Fabric,
    *,
    image_size: int,
    steps: int,
) -> tuple[Step, Way]:
    """Return the step of a training of ``steps``, and how it is taken.

    A network that cannot be compiled or captured is trained without, unless the configuration insists.
    """
    way = choose_way(config, device=fabric.device, world_size=fabric.world_size, steps=steps)
    while True:
        runnable = cast(nn.Module, torch.compile(network)) if way.compiled else network
        student, wrapped = fabric.setup(runnable, optimizer)
        eager = Step(student, network, teacher, wrapped, objective, config.clip_norm, fabric)
        if not way.captured:
            return eager, way
        layout = torch.channels_last if config.channels_last else torch.contiguous_format
        n = VIEWS * config.batch_size  # every batch of a plan is full
        views = torch.zeros(n, 3, image_size, image_size, device=fabric.device).contiguous(memory_format=layout)
        labels = torch.zeros(n, dtype=torch.int64, device=fabric.device)
        try:
            return CapturedStep(eager, views, labels), way
        except Exception as error:  # whatever a network does that no graph can hold, it can still be trained
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
            # without the compiler first, and then without either
            way = Way(False, way.compiled, f"it could not be {way.name}: {told}")


def joined_loss(
    encoding: Encoding, labels: Tensor, config: TrainConfig, class_weights: Tensor | None, fabric: Fabric
) -> JointLoss:
    """Return the loss of the batch of all processes together.

    Each process computes all of it. The gather's gradient sums over processes and DDP's averages over them, so every
    parameter gets exactly the gradient that one process would compute on the joined batch.
    """
    logits, z, _ = encoding
    if fabric.world_size > 1:
        logits, z = (_flat_gather(fabric, part, sync_grads=True) for part in (logits, z))
        labels = _flat_gather(fabric, labels, sync_grads=False)
    return joint_loss(
        logits,
        z,
        labels,
        weight=config.contrastive_weight,
        temperature=config.contrastive_temperature,
        reduction=config.contrastive_reduction,
        class_weights=class_weights,
        label_smoothing=config.label_smoothing,
    )


@torch.no_grad()
def average_buffers(network: nn.Module, fabric: Fabric) -> None:
    """Average BatchNorm's statistics over processes, so that all teachers are the same."""
    if fabric.world_size == 1:
        return
    buffers = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
    if not buffers:
        return
    joined = cast(Tensor, fabric.all_reduce(torch.cat([buffer.flatten() for buffer in buffers]), reduce_op="mean"))
    for buffer, part in zip(buffers, torch.split(joined, [buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))


def _flat_gather(fabric: Fabric, part: Tensor, *, sync_grads: bool) -> Tensor:
    return cast(Tensor, fabric.all_gather(part, sync_grads=sync_grads)).flatten(0, 1)
