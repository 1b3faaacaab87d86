r"""The gate and the fusion.

Symbols: ``p_cls``, ``p_sim`` the two posteriors; :math:`\gamma` top-1 probability; :math:`\Delta_{sim}` lead of the
similarity's first class over its second; :math:`H` entropy; :math:`D_{JS}` Jensen–Shannon divergence in nats;
:math:`\theta, \beta, m, \delta` thresholds; :math:`\alpha` the classifier's weight where the gate is open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tdumpra.core.calibration import adjust_prior
from tdumpra.core.rowwise import softmax_rows

FusionRule = Literal["linear", "log-linear"]
FUSION_RULES: tuple[FusionRule, ...] = ("linear", "log-linear")

LN2 = math.log(2)


@dataclass(frozen=True, slots=True)
class GateThresholds:
    """When retrieval may move a prediction, and how far. Chosen on validation data only.

    With two classes the lead is ``2 * top - 1``, so ``margin`` and ``beta`` say the same thing twice.
    """

    theta: float  # the classifier is unsure below this top-1 probability
    beta: float  # retrieval is reliable above this top-1 probability ...
    margin: float  # ... and this lead over its second class
    delta: float  # the two posteriors differ by more than this JS divergence, in nats
    alpha: float  # weight of the classifier where the gate is open
    entropy: float | None = None  # a sixth clause, off by default: the classifier's entropy exceeds this, in nats

    def __post_init__(self) -> None:
        limits = {"delta": LN2, "entropy": math.inf}
        for field in fields(self):
            value, upper = getattr(self, field.name), limits.get(field.name, 1.0)
            if field.name == "entropy" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
                raise TypeError(f"{field.name} must be a number, not {value!r}")
            if not 0 <= value <= upper:  # false for NaN too
                raise ValueError(f"{field.name} must lie between 0 and {upper:.4g}, not {value!r}")
            object.__setattr__(self, field.name, float(value))  # JSON cannot hold NumPy's numbers

    @property
    def guarantees_similarity(self) -> bool:
        r"""Return whether an open gate with linear fusion always follows retrieval (appendix, alpha_bound).

        The paper asks for :math:`(1-\alpha) m > \alpha \theta`; its gate's own inequalities are strict, so equality
        suffices. This holds for real numbers: where a row lies within rounding of :math:`\theta` and of :math:`m` at
        once, the two classes can come out equal.
        """
        return self.alpha < 1 and (1 - self.alpha) * self.margin >= self.alpha * self.theta

    @classmethod
    def shut(cls) -> GateThresholds:
        """Return the gate that never opens: no top-1 probability lies below zero."""
        return cls(theta=0.0, beta=1.0, margin=1.0, delta=LN2, alpha=1.0)


class GateSignals(NamedTuple):
    """The signals that the gate compares with thresholds, by row."""

    gamma_cls: Float[Tensor, " n"]
    entropy_cls: Float[Tensor, " n"]
    gamma_sim: Float[Tensor, " n"]
    margin_sim: Float[Tensor, " n"]
    js: Float[Tensor, " n"]
    label_cls: Int[Tensor, " n"]
    label_sim: Int[Tensor, " n"]


class Fused(NamedTuple):
    """The final posterior, where the gate opened, and the signals."""

    p: Float[Tensor, "n c"]
    opened: Bool[Tensor, " n"]
    signals: GateSignals


def entropy(p: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    r"""Shannon entropy in nats (paper, entropy_cls): :math:`H = -\sum_c p_c \log p_c`, with :math:`0 \log 0 = 0`."""
    h: Tensor = torch.special.entr(p).sum(-1)
    return h


def js_divergence(p: Float[Tensor, "n c"], q: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    r"""Jensen–Shannon divergence in nats (paper, js_div), between 0 and ln 2.

    .. math:: D_{JS} = \tfrac12 KL(p \Vert \tfrac{p+q}2) + \tfrac12 KL(q \Vert \tfrac{p+q}2)

    This is the divergence; SciPy's ``jensenshannon`` gives its square root.
    """
    middle = ((p + q) / 2).clamp(min=torch.finfo(p.dtype).tiny)  # where both are zero, neither counts
    return ((torch.xlogy(p, p / middle) + torch.xlogy(q, q / middle)).sum(-1) / 2).clamp(0, LN2)


def gate_signals(p_cls: Float[Tensor, "n c"], p_sim: Float[Tensor, "n c"]) -> GateSignals:
    """Compute confidence, reliability and disagreement of the two posteriors (paper, gamma_cls to js_div)."""
    gamma_cls, label_cls = p_cls.max(-1)
    gamma_sim, label_sim = p_sim.max(-1)  # the first of equals
    second = p_sim.scatter(1, label_sim[:, None], -1.0).amax(-1)
    return GateSignals(
        gamma_cls=gamma_cls,
        entropy_cls=entropy(p_cls),
        gamma_sim=gamma_sim,
        margin_sim=gamma_sim - second,
        js=js_divergence(p_cls, p_sim),
        label_cls=label_cls,
        label_sim=label_sim,
    )


def gate_opens(signals: GateSignals, thresholds: GateThresholds) -> Bool[Tensor, " n"]:
    r"""Return where the gate opens (paper, gate_full): all clauses hold, each strictly.

    .. math:: g = [\gamma_{cls} < \theta][\gamma_{sim} > \beta][\Delta_{sim} > m][D_{JS} > \delta]
        [\hat y_{cls} \ne \hat y_{sim}]
    """
    opened = (
        (signals.gamma_cls < thresholds.theta)
        & (signals.gamma_sim > thresholds.beta)
        & (signals.margin_sim > thresholds.margin)
        & (signals.js > thresholds.delta)
        & (signals.label_cls != signals.label_sim)
    )
    if thresholds.entropy is not None:
        opened &= signals.entropy_cls > thresholds.entropy
    return opened


def fuse_linear(p_cls: Float[Tensor, "n c"], p_sim: Float[Tensor, "n c"], *, alpha: float) -> Float[Tensor, "n c"]:
    r"""Linear fusion (paper, fuse_when_on): :math:`\alpha p_{cls} + (1-\alpha) p_{sim}`."""
    return alpha * p_cls + (1 - alpha) * p_sim


def fuse_log_linear(p_cls: Float[Tensor, "n c"], p_sim: Float[Tensor, "n c"], *, alpha: float) -> Float[Tensor, "n c"]:
    r"""Log-linear fusion, ours: :math:`p \propto p_{cls}^{\alpha} \, p_{sim}^{1-\alpha}`.

    A class to which a path of positive weight gives zero stays at zero. If that holds for every class, the linear
    fusion is returned.
    """
    # xlogy, not a product: 0 * log 0 is 0, so that a path of weight zero has no effect
    log_p = torch.xlogy(torch.full_like(p_cls, alpha), p_cls) + torch.xlogy(torch.full_like(p_sim, 1 - alpha), p_sim)
    impossible = log_p.isneginf().all(-1, keepdim=True)
    fused = softmax_rows(log_p.masked_fill(impossible, 0.0))
    return torch.where(impossible, fuse_linear(p_cls, p_sim, alpha=alpha), fused)


def fuse_where_open(
    p_cls: Float[Tensor, "n c"],
    p_sim: Float[Tensor, "n c"],
    opened: Bool[Tensor, " n"],
    *,
    alpha: float,
    rule: FusionRule,
    prior: Float[Tensor, " c"] | None = None,
    exponent: float = 0.0,
) -> Float[Tensor, "n c"]:
    """Return the final posterior (paper, final_posterior): fused where the gate is open, else ``p_cls`` unchanged."""
    final = p_cls.clone()
    rows = opened.nonzero().squeeze(1)
    final[rows] = fuse_rows(p_cls[rows], p_sim[rows], alpha=alpha, rule=rule, prior=prior, exponent=exponent)
    return final


def fuse_rows(
    p_cls: Float[Tensor, "n c"],
    p_sim: Float[Tensor, "n c"],
    *,
    alpha: float,
    rule: FusionRule,
    prior: Float[Tensor, " c"] | None = None,
    exponent: float = 0.0,
) -> Float[Tensor, "n c"]:
    r"""Fuse by either rule and, our addition, divide by a power of the class prior: :math:`p / \pi^t`.

    A classifier favours common classes, retrieval does not. Dividing corrects this where the two disagree; where they
    agree, the classifier's result is left as it is.
    """
    fused = (fuse_linear if rule == "linear" else fuse_log_linear)(p_cls, p_sim, alpha=alpha)
    return fused if prior is None else adjust_prior(fused, prior, exponent)


def is_first_choice(
    fused: Float[Tensor, "n c"], p_cls: Float[Tensor, "n c"], p_sim: Float[Tensor, "n c"]
) -> Bool[Tensor, " n"]:
    """Return where the fused label is the classifier's or retrieval's first choice, not a class that both rank lower.

    A clause of our own: without it, fusing may lift a class that neither path named.
    """
    label = fused.argmax(-1)
    return (label == p_cls.argmax(-1)) | (label == p_sim.argmax(-1))


def fuse(
    p_cls: Float[Tensor, "n c"], p_sim: Float[Tensor, "n c"], thresholds: GateThresholds, *, rule: FusionRule
) -> Fused:
    """Compute signals, gate and fusion."""
    signals = gate_signals(p_cls, p_sim)
    opened = gate_opens(signals, thresholds)
    return Fused(fuse_where_open(p_cls, p_sim, opened, alpha=thresholds.alpha, rule=rule), opened, signals)
