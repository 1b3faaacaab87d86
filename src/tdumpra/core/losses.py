r"""The training objective.

Symbols: ``z`` unit embeddings of all 2B views, :math:`\tau` ``temperature``, :math:`\lambda` ``weight`` of the
contrastive term, :math:`P(i)` the other views of anchor ``i``'s class.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tdumpra.core.rowwise import widen

Reduction = Literal["mean", "sum"]

# Entries of the similarity matrix that are in memory at once: 64 MiB in float32. Whole rows are taken, so memory
# grows with the batch and not with its square.
_CHUNK_ENTRIES = 2**24


class JointLoss(NamedTuple):
    """The training loss and its two parts, before weighting."""

    total: Float[Tensor, ""]
    cross_entropy: Float[Tensor, ""]
    contrastive: Float[Tensor, ""]


def joint_loss(
    logits: Float[Tensor, "n c"],
    z: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    *,
    weight: float = 0.03,
    temperature: float = 0.07,
    reduction: Reduction = "mean",
    class_weights: Float[Tensor, " c"] | None = None,
    label_smoothing: float = 0.0,
) -> JointLoss:
    r"""Add cross-entropy and the weighted supervised contrastive loss (paper, train_total).

    .. math:: \mathcal L = \mathcal L_{CE} + \lambda \, \mathcal L_{SCL}

    Cross-entropy is the plain mean over all rows, also with class weights, so that equal shards of a batch average to
    the whole. With ``reduction="sum"``, as the paper writes :math:`\mathcal L_{SCL}`, 128 views and
    :math:`\lambda = 0.03` the contrastive term outweighs cross-entropy about tenfold.
    """
    wide = widen(logits)
    if class_weights is not None:
        class_weights = class_weights.to(wide)
    per_row = nn.functional.cross_entropy(
        wide, labels, weight=class_weights, label_smoothing=label_smoothing, reduction="none"
    )
    cross_entropy = per_row.mean()
    contrastive = supervised_contrastive_loss(z, labels, temperature=temperature, reduction=reduction)
    return JointLoss(cross_entropy + weight * contrastive, cross_entropy, contrastive)


def supervised_contrastive_loss(
    z: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    *,
    temperature: float = 0.07,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""]:
    r"""Supervised contrastive loss over unit embeddings (paper, supcon_full).

    .. math::
        \mathcal L_{SCL} = \sum_i \frac{-1}{|P(i)|} \sum_{p \in P(i)}
        \log \frac{\exp(z_i^\top z_p / \tau)}{\sum_{a \ne i} \exp(z_i^\top z_a / \tau)}

    An anchor without positives is left out. ``"mean"`` divides by the number of anchors that count, ``"sum"`` is the
    equation as written. Half precision is computed in float32, also under autocast. Memory grows linearly with the
    number of rows: the similarity matrix is made in blocks.

    Args:
        z: rows of length one (not checked: that would stall a GPU); all views of the batch.
        labels: the class of each row.
        temperature: :math:`\tau`, above zero.
        reduction: ``"mean"`` or ``"sum"``.

    Returns:
        A scalar; zero, with zero gradient, if no anchor has a positive.
    """
    if z.ndim != 2 or not z.is_floating_point():
        raise ValueError(f"z must be floating-point rows (n, d), not {z.dtype} of shape {tuple(z.shape)}")
    if labels.shape != (len(z),) or labels.is_floating_point():
        raise ValueError(f"labels must be {len(z)} integers, not {labels.dtype} of shape {tuple(labels.shape)}")
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, not {temperature}")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', not {reduction!r}")
    with torch.autocast(z.device.type, enabled=False):
        loss: Tensor = _SupervisedContrast.apply(widen(z), labels, temperature, reduction == "mean")
        return loss


def _row_blocks(n: int) -> list[slice]:
    """Split the rows of an n × n matrix into blocks of bounded memory."""
    step = max(1, _CHUNK_ENTRIES // max(1, n))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


class _SupervisedContrast(torch.autograd.Function):
    r"""The loss and its gradient, block of rows by block of rows.

    With :math:`G_{ia} = \mathrm{softmax}_{ia} - [a \in P(i)] / |P(i)|` for anchors that count and 0 for others, the
    gradient is :math:`(G + G^\top) z / \tau`. It is computed with each block and kept, as large as ``z``: no block is
    made twice, and a training step launches a third of the kernels of autograd.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, labels: Tensor, temperature: float, mean: bool) -> Tensor:
        needed = ctx.needs_input_grad[0]
        total, anchors = z.new_zeros(()), z.new_zeros(())
        gradient = torch.zeros_like(z) if needed else None
        scaled = z / temperature
        for rows in _row_blocks(len(z)):
            logits = scaled[rows] @ z.T
            logits.diagonal(rows.start).fill_(-torch.inf)  # before any exponential
            positive = labels[rows, None] == labels
            positive.diagonal(rows.start).fill_(False)
            n_positives = positive.sum(1)
            counts = (n_positives > 0).to(z.dtype)
            share = (counts / n_positives.clamp(min=1))[:, None]  # 1 / |P(i)|, 0 for an anchor that does not count
            log_norm = logits.logsumexp(1)
            attraction = logits.masked_fill(~positive, 0).sum(1) * share[:, 0]
            total += (counts * log_norm.masked_fill(counts == 0, 0) - attraction).sum()
            anchors += counts.sum()
            if gradient is not None:
                pull = torch.where(positive, share, 0)
                # an anchor that does not count has a norm of infinity, and so no weights
                g = logits.sub_(log_norm.masked_fill(counts == 0, torch.inf)[:, None]).exp_().sub_(pull)
                gradient[rows] += g @ z
                gradient += g.T @ z[rows]
        scale = 1 / anchors.clamp(min=1) if mean else torch.ones_like(anchors)
        if gradient is not None:
            ctx.save_for_backward(gradient.mul_(scale / temperature))
        return total * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream, None, None, None
