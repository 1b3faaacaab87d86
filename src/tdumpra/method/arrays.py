"""The array functions: checked shells over the kernels of :mod:`tdumpra.core`.

They take numpy arrays or torch tensors and return the kind and floating-point type of their first argument. Half
precision is computed in float32. Nothing that is handed in is written to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tdumpra import checks
from tdumpra.core import gate, metrics, posterior
from tdumpra.core.gate import FUSION_RULES, Fused, FusionRule, GateSignals, GateThresholds
from tdumpra.core.rowwise import normalise
from tdumpra.core.rowwise import widen as widen

ArrayT = TypeVar("ArrayT", np.ndarray, Tensor)


def like(original: Any) -> Callable[[Tensor], Any]:
    """Return a function that turns results back into ``original``'s kind and floating-point type."""
    if isinstance(original, Tensor):
        dtype = original.dtype

        def restore(result: Tensor) -> Any:
            return result.to(dtype) if result.is_floating_point() else result
    else:
        kind = np.asarray(original).dtype

        def restore(result: Tensor) -> Any:
            array = result.cpu().numpy()
            return array.astype(kind, copy=False) if result.is_floating_point() else array

    return restore


def narrow(p: Tensor, dtype: torch.dtype) -> Tensor:
    """Round ``p`` to ``dtype`` and keep each row's label.

    Half precision can make two classes equal, and then the first of them would become the label: the former first is
    lifted by one unit in the last place.
    """
    if p.dtype == dtype:
        return p
    rounded, label = p.to(dtype), p.argmax(-1)
    rows = (rounded.argmax(-1) != label).nonzero().squeeze(1)
    rounded.view(torch.int16)[rows, label[rows]] += 1  # the next larger number, of positive ones
    return rounded


def vmf_posterior(z: ArrayT, prototypes: Any, mask: Any = None, *, kappa: float = 20.0, tau: float = 1.0) -> ArrayT:
    """Return class probabilities by cosine to prototypes, as a mixture of von Mises–Fisher components.

    Args:
        z: embeddings (n, d); they are normalised here.
        prototypes: (C, K, d); normalised too.
        mask: (C, K), true where a prototype is live; all of them if left out.
        kappa: concentration, the same for all prototypes.
        tau: temperature of the posterior.

    Returns:
        Probabilities (n, C). A class without live prototypes gets zero.
    """
    rows = checks.check_embeddings(z, "z")
    checks.check_positive(kappa, "kappa")
    checks.check_positive(tau, "tau")
    bank = widen(checks.to_tensor(prototypes, "prototypes"))
    if bank.ndim != 3:
        raise ValueError(f"prototypes must have shape (classes, prototypes, width), not {tuple(bank.shape)}")
    if bank.shape[2] != rows.shape[1]:
        raise ValueError(f"z has width {rows.shape[1]} and the prototypes have width {bank.shape[2]}")
    live = torch.ones(bank.shape[:2], dtype=torch.bool) if mask is None else checks.to_tensor(mask, "mask").bool()
    if live.shape != bank.shape[:2]:
        raise ValueError(f"mask must have shape {tuple(bank.shape[:2])}, not {tuple(live.shape)}")
    if not live.any():
        raise ValueError("mask leaves no prototype alive")
    checks.check_directions(bank[live.to(bank.device)], "prototypes")
    wide = normalise(rows)
    similarity = posterior.prototype_similarity(wide, normalise(bank).to(wide))
    scores = posterior.vmf_class_scores(similarity, live.to(wide.device), kappa=kappa)
    return like(z)(posterior.similarity_posterior(scores, tau=tau))  # type: ignore[no-any-return]


def js_divergence(p: ArrayT, q: Any) -> ArrayT:
    """Return the Jensen–Shannon divergence of each pair of rows in nats, from 0 (equal) to ln 2 (no overlap)."""
    left, right = _two_posteriors(p, q, "p", "q")
    return like(p)(gate.js_divergence(left, right))  # type: ignore[no-any-return]


def fuse(p_cls: Any, p_sim: Any, thresholds: GateThresholds, *, rule: FusionRule = "linear") -> Fused:
    """Gate and fuse two posteriors row by row.

    Args:
        p_cls: the classifier's probabilities (n, C).
        p_sim: retrieval's.
        thresholds: when the gate opens, and the classifier's weight where it does.
        rule: ``"linear"``, as in the paper, or ``"log-linear"``.

    Returns:
        ``p`` (rows whose gate is shut are those of ``p_cls`` to the bit), ``opened``, and the ``signals`` behind it.
    """
    if not isinstance(thresholds, GateThresholds):
        raise TypeError(f"thresholds must be GateThresholds, not {type(thresholds).__name__}")
    checks.check_choice(rule, "rule", FUSION_RULES)
    left, right = _two_posteriors(p_cls, p_sim, "p_cls", "p_sim")
    fused = gate.fuse(left, right, thresholds, rule=rule)
    restore = like(p_cls)
    signals = GateSignals(*(restore(signal) for signal in fused.signals))
    final = narrow(fused.p, checks.to_tensor(p_cls, "p_cls").dtype)
    return Fused(restore(final), restore(fused.opened), signals)


def classification_metrics(p: Any, y: Any) -> dict[str, float]:
    """Return ``accuracy macro_f1 balanced_accuracy macro_auroc ece nll brier`` of probabilities.

    Absent classes are left out of the averages; what the data do not define is NaN. With two classes the AUROC is
    that of class 1.
    """
    return metrics.classification_metrics(*posterior_and_labels(p, y))


def expected_calibration_error(p: Any, y: Any, n_bins: int = metrics.N_BINS) -> float:
    """Return the expected calibration error of the top-1 probability, in equal-width bins ``(lo, hi]``."""
    checks.check_count(n_bins, "n_bins")
    return metrics.expected_calibration_error(*posterior_and_labels(p, y), n_bins)


def posterior_and_labels(p: Any, y: Any, name: str = "p") -> tuple[np.ndarray, np.ndarray]:
    """Check probabilities and labels of at least one row; return them in float64 and int64."""
    rows = checks.check_probabilities(p, name)
    if not len(rows):
        raise ValueError(f"{name} has no rows")
    labels = checks.check_labels(y, "y", n_rows=len(rows), n_classes=rows.shape[1])
    return rows.double().cpu().numpy(), labels.numpy()


def _two_posteriors(p: Any, q: Any, p_name: str, q_name: str) -> tuple[Tensor, Tensor]:
    left = checks.check_probabilities(p, p_name)
    right = checks.check_probabilities(q, q_name, n_classes=left.shape[1])
    if len(left) != len(right):
        raise ValueError(f"{p_name} has {len(left)} rows and {q_name} has {len(right)}")
    wide = widen(left)
    return wide, right.to(wide)
