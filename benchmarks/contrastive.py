"""Supervised contrastive loss, forward and backward, against pytorch-metric-learning's SupConLoss."""

from __future__ import annotations

import torch
from pytorch_metric_learning.losses import SupConLoss
from torch.nn.functional import normalize

from benchmarks.common import Row, best_times, faster, peak_memory, within
from tdumpra import supervised_contrastive_loss


def run() -> list[Row]:
    return [_speed(1024, repeats=9), _speed(4096, repeats=3), _memory(16_384)]


def _inputs(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = normalize(torch.randn(n, 128, generator=generator), dim=1).requires_grad_()
    return z, torch.randint(7, (n,), generator=generator)


def _speed(n: int, *, repeats: int) -> Row:
    z, labels = _inputs(n)
    peer = SupConLoss(temperature=0.07)

    def ours() -> torch.Tensor:
        z.grad = None
        loss = supervised_contrastive_loss(z, labels)
        loss.backward()
        return loss

    def theirs() -> torch.Tensor:
        z.grad = None
        loss: torch.Tensor = peer(z, labels)
        loss.backward()
        return loss

    assert abs(ours().item() - theirs().item()) < 1e-3  # the same loss, or there is nothing to compare
    mine, other = best_times(ours, theirs, repeats=repeats)
    return faster(f"contrastive loss, {n:,} × 128", mine, other, at_least=2, against="pytorch-metric-learning")


def _memory(n: int) -> Row:
    z, labels = _inputs(n)
    used = peak_memory(lambda: supervised_contrastive_loss(z, labels).backward())
    return within(f"contrastive loss, {n:,} × 128, memory", used, 1.0, unit="GiB", against="1 GiB above its inputs")
