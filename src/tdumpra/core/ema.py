r"""The teacher: an exponential moving average of the student (paper, ema_teacher)."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tdumpra.core.rowwise import widen


class EmaTeacher(nn.Module):
    r"""A frozen copy of a network that follows it slowly.

    .. math:: \bar\theta \leftarrow \mu \bar\theta + (1 - \mu) \theta

    Parameters and floating-point buffers are averaged (BatchNorm's statistics belong to the weights that they were
    measured with), integer buffers are copied. The copy always stays in evaluation mode, also when a parent calls
    ``.train()``. Half-precision weights are widened to float32, where an update of one in a thousand does not vanish.

    Args:
        student: the network to follow; it is copied.
        momentum: :math:`\mu`, in [0, 1).
        warmup: start with :math:`\min(\mu, (1 + t) / (10 + t))` after ``t`` updates, so that the random start is
            forgotten in the first epoch. The paper has none.
    """

    step: int  # updates so far; not a tensor, because reading one would stall a GPU at every update

    def __init__(self, student: nn.Module, momentum: float = 0.999, warmup: bool = True) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), not {momentum}")
        self.momentum = momentum
        self.warmup = warmup
        self.module = copy.deepcopy(student).requires_grad_(False)
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            if tensor.is_floating_point():
                tensor.data = widen(tensor.data)
        self.step = 0
        self._pairs: _Pairs | None = None
        self.eval()

    def current_momentum(self, step: int) -> float:
        """Return the momentum of the update that follows ``step`` updates."""
        return min(self.momentum, (1 + step) / (10 + step)) if self.warmup else self.momentum

    @torch.no_grad()
    def update(self, student: nn.Module) -> None:
        """Move one step towards ``student``, which must have the same parameters and buffers by name and shape."""
        if self._pairs is None or not self._pairs.hold(student):
            self._pairs = _pair(self.module, student)
        pairs = self._pairs
        if pairs.averaged:
            sources = pairs.sources
            if not pairs.alike:
                sources = [source.to(target) for target, source in zip(pairs.averaged, sources, strict=True)]
            # lerp computes teacher + (1 - mu) (student - teacher), exact where the two agree
            torch._foreach_lerp_(pairs.averaged, sources, 1 - self.current_momentum(self.step))
        if pairs.copied:
            torch._foreach_copy_(pairs.copied, pairs.originals)
        self.step += 1

    def __getstate__(self) -> dict[str, Any]:
        """Leave the student out of copies and pickles; the next update finds it again."""
        return {**self.__dict__, "_pairs": None}

    def get_extra_state(self) -> Tensor:
        """Return the number of updates, for the state dict."""
        return torch.tensor(self.step)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the number of updates."""
        self.step = int(state)

    def train(self, mode: bool = True) -> EmaTeacher:
        """Stay in evaluation mode."""
        return super().train(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the teacher's output."""
        return self.module(*args, **kwargs)


class _Slot(NamedTuple):
    """A tensor and where it was found, to notice when it is replaced."""

    home: dict[str, Any]
    name: str
    tensor: Tensor


class _Pairs(NamedTuple):
    """Which of the teacher's tensors follows which of the student's.

    Finding the pairs costs more than an update, so they are kept until a tensor is replaced (by ``.to``, say).
    """

    student: nn.Module
    slots: list[_Slot]  # of both networks
    averaged: list[Tensor]
    sources: list[Tensor]
    copied: list[Tensor]
    originals: list[Tensor]
    alike: bool  # in type and device, so that nothing needs converting

    def hold(self, student: nn.Module) -> bool:
        return self.student is student and all(slot.home.get(slot.name) is slot.tensor for slot in self.slots)


def _pair(teacher: nn.Module, student: nn.Module) -> _Pairs:
    ours, theirs = _slots(teacher), _slots(student)
    if ours.keys() != theirs.keys():
        odd = sorted(ours.keys() ^ theirs.keys())
        raise ValueError(f"the student is not the network that this teacher follows: {odd[0]!r} is in one only")
    for name, slot in ours.items():
        if slot.tensor.shape != theirs[name].tensor.shape:  # else a smaller one would be broadcast
            raise ValueError(
                f"the student is not the network that this teacher follows: {name!r} has shape "
                f"{tuple(theirs[name].tensor.shape)}, where the teacher has {tuple(slot.tensor.shape)}"
            )
    averaged = [name for name, slot in ours.items() if slot.tensor.is_floating_point()]
    copied = [name for name in ours if name not in set(averaged)]
    return _Pairs(
        student=student,
        slots=[*ours.values(), *theirs.values()],
        averaged=[ours[name].tensor for name in averaged],
        sources=[theirs[name].tensor for name in averaged],
        copied=[ours[name].tensor for name in copied],
        originals=[theirs[name].tensor for name in copied],
        alike=all(_kind(ours[name].tensor) == _kind(theirs[name].tensor) for name in averaged),
    )


def _kind(tensor: Tensor) -> tuple[torch.dtype, torch.device]:
    return tensor.dtype, tensor.device


def _slots(module: nn.Module) -> dict[str, _Slot]:
    """Return parameters and buffers by name; a shared one is listed once."""
    slots: dict[str, _Slot] = {}
    seen: set[int] = set()
    for prefix, part in module.named_modules():
        for home in (part._parameters, part._buffers):
            for name, tensor in home.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    slots[f"{prefix}.{name}" if prefix else name] = _Slot(home, name, tensor)
    return slots
