"""The probabilities of a file of outputs: as they are, renormalised in float64, or the softmax of its logits."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from tdumpra import checks
from tdumpra.core.rowwise import by_rows

Array = np.ndarray
_ALIKE = 0.02  # p is taken for the softmax of logits up to so much
_ODD_SHARE = 0.05  # of rows to which the two give other labels: more than calibration or averaging does


def probabilities(arrays: Mapping[str, Array]) -> Array:
    """Return the rows of ``p``, or of the softmax of ``logits`` where there is no ``p``."""
    if "logits" not in arrays:
        return renormalised(arrays["p"], "p")
    logits = arrays["logits"]
    if "p" in arrays:
        p = renormalised(arrays["p"], "p")
        _compare(p, logits)
        return p
    if logits.ndim != 2 or not np.issubdtype(logits.dtype, np.floating) or not np.isfinite(logits).all():
        raise ValueError("logits must be a matrix of finite floating-point numbers")
    return _softmax(logits)


def _compare(p: Array, logits: Array) -> None:
    """Refuse logits that contradict ``p``; those from before its calibration are ignored with a warning."""
    if p.shape != logits.shape or not np.issubdtype(logits.dtype, np.floating):
        raise ValueError(f"p has shape {p.shape} and logits have shape {logits.shape}: keep one of the two")
    of_logits = _softmax(logits)
    rows, label = np.arange(len(p)), p.argmax(1)
    odd = p[rows, label] - p[rows, of_logits.argmax(1)] > _ALIKE
    if odd.mean() > _ODD_SHARE:
        row = int(odd.argmax())
        raise ValueError(
            f"p and logits contradict each other in {int(odd.sum())} of {len(p)} rows: in row {row} p gives class "
            f"{label[row]} {p[row, label[row]]:.3f}, and softmax(logits) {of_logits[row, label[row]]:.3f}; keep one"
        )
    if np.abs(p - of_logits).max(initial=0) > _ALIKE:
        warnings.warn("p is not the softmax of logits (calibrated, or averaged?): p is used", stacklevel=2)


def renormalised(values: Array, name: str) -> Array:
    """Check rows of probabilities, and divide each by its sum."""
    p = checks.check_probabilities(values, name)
    divided: Array = by_rows(_divided, p).numpy()
    return divided


def _divided(p: Tensor) -> Tensor:
    p = p.double()
    return p / p.sum(1, keepdim=True)


def _softmax(logits: Array) -> Array:
    rows = by_rows(
        lambda part: torch.from_numpy(softmax(part.double().numpy(), axis=1)), checks.to_tensor(logits, "logits")
    )
    of_logits: Array = rows.numpy()
    return of_logits
