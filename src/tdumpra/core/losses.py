r"""The training objective.

Symbols: ``z`` unit embeddings of all 2B views, :math:`\tau` ``temperature``, :math:`\lambda` ``weight`` of the
contrastive term, :math:`P(i)` the other views of anchor ``i``'s class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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
    r"""Cross-entropy plus the weighted supervised contrastive loss (paper, train_total).

    .. math:: \mathcal L = \mathcal L_{CE} + \lambda \, \mathcal L_{SCL}

    Cross-entropy is the plain mean over all rows, with class weights too, so that equal shards of a batch average to
    the whole. With ``reduction="sum"``, as the paper writes :math:`\mathcal L_{SCL}`, 128 views and
    :math:`\lambda = 0.03` the contrastive term outweighs cross-entropy about tenfold.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
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
    number of rows: the similarity matrix is made in blocks, and made again for the gradient.

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
        wide = z.to(torch.promote_types(z.dtype, torch.float32))
        classes, members = torch.unique(labels, return_inverse=True)
        positives = torch.bincount(members, minlength=len(classes))[members] - 1  # |P(i)|
        counts = positives > 0
        anchors = counts.sum().clamp(min=1) if reduction == "mean" else 1
        anchor_weight = counts.to(wide.dtype) / anchors

        # The positives' part needs no similarity matrix: sum_p z_i.z_p = z_i.(sum of the class - z_i).
        class_sum = wide.new_zeros(len(classes), wide.shape[1]).index_add(0, members, wide)
        attraction = (wide * (class_sum[members] - wide)).sum(1) / positives.clamp(min=1)
        repulsion = _LogSumExpOfOthers.apply(wide, temperature)
        loss: Tensor = (anchor_weight * (repulsion - attraction / temperature)).sum()
        return loss


class _LogSumExpOfOthers(torch.autograd.Function):
    r"""Row by row :math:`\log \sum_{a \ne i} \exp(z_i^\top z_a / \tau)`, in blocks of rows.

    Its gradient is :math:`(G + G^\top) z / \tau` with :math:`G` the upstream gradient times the softmax. Saving only
    ``z`` and the result and rebuilding each block costs one more matrix product and saves n² numbers.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, temperature: float) -> Tensor:
        result = z.new_empty(len(z))
        for rows, block in _similarity_blocks(z, temperature):
            result[rows] = block.logsumexp(1)
        result = result.masked_fill(result.isneginf(), 0.0)  # a lone row has no others
        ctx.save_for_backward(z, result)
        ctx.temperature = temperature
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        z, result = ctx.saved_tensors
        gradient = torch.zeros_like(z)
        with torch.autocast(z.device.type, enabled=False):
            for rows, block in _similarity_blocks(z, ctx.temperature):
                block.sub_(result[rows, None]).exp_().mul_(upstream[rows, None])
                gradient[rows] += block @ z
                gradient += block.T @ z[rows]
        return gradient / ctx.temperature, None


def _similarity_blocks(z: Tensor, temperature: float) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows of ``z z' / temperature``, each row's own entry masked out before any exponential."""
    step = max(1, _CHUNK_ENTRIES // max(1, len(z)))
    scaled = z / temperature
    for start in range(0, len(z), step):
        rows = slice(start, min(start + step, len(z)))
        block = scaled[rows] @ z.T
        block.diagonal(start).fill_(-torch.inf)
        yield rows, block
