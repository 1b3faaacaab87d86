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


def outputs_of(sizes, gains, y) -> ValidationOutputs:
    """Lesions of so many images and these classes in which an open gate gains so many images, or loses them.

    Both paths are right on the others. Retrieval is sure everywhere, and the classifier unsure where they disagree.
    """
    lesion = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(lesion)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    changes = place < np.abs(gains)[lesion]
    truth, other = y[lesion], (y[lesion] + 1) % C
    label_cls = np.where(changes & (gains[lesion] > 0), other, truth)
    label_sim = np.where(changes & (gains[lesion] < 0), other, truth)
    p = np.where(np.eye(C)[label_cls] > 0, np.where(changes, 0.55, 0.97)[:, None], 0)
    p = np.where(p > 0, p, (1 - p.max(1, keepdims=True)) / (C - 1))
    return ValidationOutputs.check(p, np.eye(C)[label_sim], truth, np.array([f"{i:05}" for i in lesion]))
