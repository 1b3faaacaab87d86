r"""A gate that compares fitted chances of being right (Propositions A.3 and A.4, made practical).

The paper's five clauses stand in for the comparison :math:`a_{sim} > a_{cls}` of the two paths' chances of being right.
Here the chances are fitted: on rows where the paths disagree, each is a logistic function of both confidences.

.. math:: a_e = \sigma(w_e^\top (1, \operatorname{logit} \gamma_{cls}, \operatorname{logit} \gamma_{sim})), \qquad
    g = [\hat y_{cls} \ne \hat y_{sim}] \, [a_{sim} - a_{cls} > m]

Symbols: :math:`\gamma` top-1 probability, :math:`a` chance of being right, :math:`m` ``margin``. Six numbers are
fitted, and one is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tdumpra.core.gate import GateSignals

Array = np.ndarray
Weights = tuple[float, float, float]

# A Gaussian prior of unit width around these weights: with few rows, a path's confidence is its chance of being right,
# as in Assumption A.1.
PRIOR_CLASSIFIER: Weights = (0.0, 1.0, 0.0)
PRIOR_SIMILARITY: Weights = (0.0, 0.0, 1.0)
FEWEST_ROWS = 12  # disagreements: two for each fitted number

_LEAST_DOUBT = 1e-6  # a confidence of one has no finite logit
_NEWTON_STEPS = 50


@dataclass(frozen=True, slots=True)
class CalibratedGate:
    """Fitted chances of being right, and the lead that retrieval needs."""

    classifier: Weights
    similarity: Weights
    margin: float

    def __post_init__(self) -> None:
        for name in ("classifier", "similarity"):
            if not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name} must be three finite weights, not {getattr(self, name)!r}")
        if not 0 <= self.margin <= 1:
            raise ValueError(f"margin must lie between 0 and 1, not {self.margin!r}")


class Chances(NamedTuple):
    """The fitted chance that each path is right, by row; meaningful where the paths disagree."""

    classifier: Float[Tensor, " n"]
    similarity: Float[Tensor, " n"]


def chances(signals: GateSignals, classifier: Weights, similarity: Weights) -> Chances:
    """Return both paths' chances of being right, in float64."""
    x = confidence_features(signals)
    by_path = (torch.sigmoid(x @ torch.tensor(w, dtype=x.dtype, device=x.device)) for w in (classifier, similarity))
    return Chances(*by_path)


def advantage(signals: GateSignals, classifier: Weights, similarity: Weights) -> Float[Tensor, " n"]:
    """Return by how much retrieval is likelier to be right."""
    fitted = chances(signals, classifier, similarity)
    return fitted.similarity - fitted.classifier


def calibrated_gate_opens(signals: GateSignals, gate: CalibratedGate) -> Bool[Tensor, " n"]:
    """Return where the paths disagree and retrieval's chance is ahead by more than the margin."""
    ahead = advantage(signals, gate.classifier, gate.similarity) > gate.margin
    return ahead & (signals.label_cls != signals.label_sim)


def confidence_features(signals: GateSignals) -> Float[Tensor, "n 3"]:
    """Return an intercept and the logits of the two confidences."""
    both = torch.stack([signals.gamma_cls, signals.gamma_sim], 1).double().clamp(_LEAST_DOUBT, 1 - _LEAST_DOUBT)
    return torch.cat([torch.ones_like(both[:, :1]), both.logit()], 1)


def fit_chance(x: Float[Array, "n 3"], right: Bool[Array, " n"], prior: Weights) -> Weights:
    r"""Return the most probable weights: :math:`\min_w \sum_i \log(1 + e^{-s_i w^\top x_i}) + \tfrac12 \|w - w_0\|^2`.

    The objective is strictly convex: Newton's method with halved steps finds its only minimum.
    """
    w = start = np.asarray(prior, dtype=np.float64)

    def loss(weights: Array) -> float:
        score = x @ weights
        return float(np.logaddexp(0, np.where(right, -score, score)).sum() + ((weights - start) ** 2).sum() / 2)

    for _ in range(_NEWTON_STEPS):
        a = 1 / (1 + np.exp(-(x @ w)))
        gradient = x.T @ (a - right) + (w - start)
        step = np.linalg.solve((x * (a * (1 - a))[:, None]).T @ x + np.eye(3), gradient)
        size = 1.0
        while loss(w - size * step) > loss(w) and size > 1e-6:
            size /= 2
        w = w - size * step
        if np.abs(step).max() < 1e-10:
            break
    return (float(w[0]), float(w[1]), float(w[2]))
