"""One step of training, in one of three ways behind one interface.

:class:`Step` launches each kernel from the host, those of a compiled network if asked to. :class:`CapturedStep` has the
forward pass, both losses and the backward pass recorded once as a CUDA graph and replays it: one launch in place of
thousands. What comes after the gradients (clipping, AdamW, the teacher) is a few fused launches either way, which the
host makes while the GPU is busy with the replay; so both ways compute the same numbers, and a checkpoint does not know
which of them wrote it. :func:`make_step` chooses.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from tdumpra.networks.checkpoint import generator_states, python_generators, set_generators
from tdumpra.networks.settings import TrainConfig

REPAYS_COMPILING = 5_000  # steps; compiling takes a minute or so, and saves about a hundredth of a second in each
_WARM_UP = 3  # passes before the recording, in which libraries choose kernels and a compiler compiles

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

    Recording leaves no trace: it moves no weight, and puts back BatchNorm's statistics and the generators. Dropout
    draws from the default generator, whose position each replay reads and advances as an eager step would.
    """

    def __init__(self, eager: Step, views: Tensor, labels: Tensor) -> None:
        super().__init__(**vars(eager))
        self.views, self.labels = views, labels
        self.graph = torch.cuda.CUDAGraph()
        self.loss = self._record()

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

    def _record(self) -> JointLoss:
        device, buffers = self.fabric.device, dict(self.network.named_buffers())
        kept = {name: buffer.clone() for name, buffer in buffers.items()}
        generators = generator_states(), python_generators()
        on_device = torch.cuda.default_generators[device.index or 0]
        spare = on_device.clone_state()
        here, beside = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        beside.wait_stream(here)
        self.student.train()
        plain = _PlainState(self.network)
        try:
            with torch.cuda.stream(beside):
                for _ in range(_WARM_UP):
                    self._gradients_anew()
                with _waiting_is_an_error():
                    self._gradients_anew()
            if _host_state() != _host_state(generators):
                raise RuntimeError("the network draws random numbers on the host")
            if plain.has_changed():
                raise RuntimeError("the network keeps count on the host")
            if any(buffers.get(name) is not buffer for name, buffer in self.network.named_buffers()):
                raise RuntimeError("the network replaces its buffers")
            self.network.zero_grad()
            with torch.cuda.graph(self.graph, stream=beside, capture_error_mode="thread_local"):
                return super().gradients(self.views, self.labels)
        except BaseException:
            on_device.graphsafe_set_state(spare)  # a recording that fails leaves the generator waiting for its end
            self.network.zero_grad()
            raise
        finally:
            here.wait_stream(beside)
            set_generators(*generators)
            plain.put_back()
            for name, buffer in self.network.named_buffers():
                buffer.copy_(kept[name])

    def _gradients_anew(self) -> None:
        self.network.zero_grad()
        super().gradients(self.views, self.labels)


class _PlainState:
    """Numbers and words that a network's modules hold beside tensors: a graph would keep them as they are for ever."""

    def __init__(self, network: nn.Module) -> None:
        self.network, self.before = network, self._now(network)

    def has_changed(self) -> bool:
        """Return whether any of them is another now, or new."""
        return self._now(self.network) != self.before

    def put_back(self) -> None:
        """Let all be as they were."""
        for module, name in self._now(self.network).keys() - self.before.keys():
            delattr(self.network.get_submodule(module), name)
        for (module, name), value in self.before.items():
            setattr(self.network.get_submodule(module), name, value)

    @staticmethod
    def _now(network: nn.Module) -> dict[tuple[str, str], Any]:
        modules = network.named_modules()
        held = ((module, *each) for module, own in modules for each in vars(own).items())
        return {(module, name): value for module, name, value in held if isinstance(value, int | float | str)}


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


def _host_state(generators: tuple[dict[str, Tensor], dict[str, Any]] | None = None) -> tuple[list[int], dict[str, Any]]:
    """Return the states of the generators on the host, now or as they were kept, in a form that can be compared."""
    states, python = generators or (generator_states(), python_generators())
    return states["torch"].tolist(), python


@contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    """Refuse operations that make the host wait for the GPU: no graph can hold one, and a recording would end badly."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode")  # says that it finds most, not all
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
