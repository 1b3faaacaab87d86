r"""The teacher: an exponential moving average of the student (paper, ema_teacher)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class EmaTeacher(nn.Module):
    r"""A frozen copy of a network that follows it slowly.

    .. math:: \bar\theta \leftarrow \mu \bar\theta + (1 - \mu) \theta

    Parameters and floating-point buffers are averaged (BatchNorm's statistics belong to the weights that they were
    measured with), integer buffers are copied. The copy is in evaluation mode for good: a parent's ``.train()`` does
    not reach it. Half-precision weights are widened to float32, where an update of one in a thousand does not vanish.

    Args:
        student: the network to follow; it is copied, not kept.
        momentum: :math:`\mu`, in [0, 1).
        warmup: start with :math:`\min(\mu, (1 + t) / (10 + t))` after ``t`` updates, so that the random start is
            forgotten in the first epoch. The paper has none.
    """

    step: Tensor

    def __init__(self, student: nn.Module, momentum: float = 0.999, warmup: bool = True) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), not {momentum}")
        self.momentum = momentum
        self.warmup = warmup
        self.module = copy.deepcopy(student).requires_grad_(False)
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(torch.promote_types(tensor.dtype, torch.float32))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.eval()

    def current_momentum(self, step: int) -> float:
        """The momentum of the update that follows ``step`` updates."""
        return min(self.momentum, (1 + step) / (10 + step)) if self.warmup else self.momentum

    @torch.no_grad()
    def update(self, student: nn.Module) -> None:
        """Move one step towards ``student``, which must have the same parameters and buffers by name and shape."""
        ours, theirs = _tensors(self.module), _tensors(student)
        if ours.keys() != theirs.keys():
            odd = sorted(ours.keys() ^ theirs.keys())
            raise ValueError(f"the student is not the network that this teacher follows: {odd[0]!r} is in one only")
        for name, tensor in ours.items():
            if tensor.shape != theirs[name].shape:  # else a smaller one would be broadcast
                raise ValueError(
                    f"the student is not the network that this teacher follows: {name!r} has shape "
                    f"{tuple(theirs[name].shape)}, where the teacher has {tuple(tensor.shape)}"
                )
        averaged = [name for name, tensor in ours.items() if tensor.is_floating_point()]
        targets = [ours[name] for name in averaged]
        sources = [theirs[name].to(target) for name, target in zip(averaged, targets, strict=True)]
        if targets:
            # lerp computes teacher + (1 - mu) (student - teacher), exact where the two agree
            torch._foreach_lerp_(targets, sources, 1 - self.current_momentum(int(self.step)))
        for name, tensor in ours.items():
            if not tensor.is_floating_point():
                tensor.copy_(theirs[name])
        self.step += 1

    def train(self, mode: bool = True) -> EmaTeacher:
        """Stays in evaluation mode, whatever a parent asks."""
        return super().train(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The teacher's own output."""
        return self.module(*args, **kwargs)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
