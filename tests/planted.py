"""Validation outputs whose truth is known: retrieval is made as good, or as useless, as a test wants it."""

from __future__ import annotations

import numpy as np
import torch

from tdumpra.method.bank import PrototypeBank
from tdumpra.method.outputs import ValidationOutputs

C = 4
PRIOR = torch.full((C,), 1 / C, dtype=torch.float64)


def unit_bank() -> PrototypeBank:
    """One prototype per class, on the axes: an embedding's largest coordinate is what retrieval says."""
    return PrototypeBank.fit(np.eye(C), np.arange(C), 1)


def planted(seed: int, *, cls_right: float, sim_right: float, lesions: int = 300) -> ValidationOutputs:
    """Where the paths disagree, each is right with the given chance, whatever their confidence.

    Equal chances make retrieval useless: it fixes as many predictions as it breaks. A lesion has one to three images
    that share its fate, so that images are not independent.
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(C, size=lesions)
    other, third = (y + 1) % C, (y + 2) % C
    disagree, fate = rng.random(lesions) < 0.35, rng.random(lesions)
    label_cls = np.where(disagree & (fate >= cls_right), other, y)
    label_sim = np.where(
        disagree, np.where(fate < cls_right, other, np.where(fate < cls_right + sim_right, y, third)), y
    )
    both_wrong = ~disagree & (rng.random(lesions) < 0.2)
    label_cls, label_sim = (np.where(both_wrong, other, label) for label in (label_cls, label_sim))
    image = np.repeat(np.arange(lesions), rng.integers(1, 4, size=lesions))
    confidence = rng.uniform(0.3, 0.95, size=(len(image), 1))
    p = np.full((len(image), C), 1.0) * (1 - confidence) / (C - 1)
    p[np.arange(len(image)), label_cls[image]] = confidence[:, 0]
    p /= p.sum(1, keepdims=True)
    z = np.eye(C)[label_sim[image]] + rng.uniform(0, 0.6, size=(len(image), C))
    return ValidationOutputs.check(p, z, y[image], image.astype(str))
