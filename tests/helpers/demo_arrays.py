"""A small problem worth two paths, made on the spot: arrays in the form that ``attach`` reads.

Seven classes with a long tail and three appearance modes each; some modes of different classes look alike. Each case
belongs to a lesion, and a lesion has one to three photographs. The "classifier" is a real one, a linear model that
cannot bend around modes; the embedding is a second, independently noisy view of the same cases. Nothing is staged: what
the gate wins, it wins because two views are better than one.
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from tdumpra.writing import write_bytes

_SHARES = np.array([0.03, 0.05, 0.11, 0.03, 0.12, 0.63, 0.03])
_LESIONS, _MODES, _LATENT, _WIDTH = 2600, 3, 12, 64


def demo_outputs(seed: int = 0) -> dict[str, np.ndarray]:
    """Probabilities, embeddings, labels, groups and a lesion-disjoint split; made once, and copied."""
    return {name: array.copy() for name, array in _made(seed).items()}


@cache
def _made(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    n_classes = len(_SHARES)
    modes = rng.normal(size=(n_classes, _MODES, _LATENT))
    modes[4, 0] = modes[5, 0] + rng.normal(scale=0.5, size=_LATENT)  # look-alikes: one mode of each of two classes
    modes[2, 1] = modes[4, 1] + rng.normal(scale=0.5, size=_LATENT)
    label = rng.choice(n_classes, size=_LESIONS, p=_SHARES)
    lesion = modes[label, rng.integers(_MODES, size=_LESIONS)] + rng.normal(scale=0.35, size=(_LESIONS, _LATENT))
    group = np.repeat(np.arange(_LESIONS), rng.integers(1, 4, size=_LESIONS))
    case, y = lesion[group], label[group]
    split = rng.choice(3, size=_LESIONS, p=[0.6, 0.15, 0.25])[group]

    first, second = (_view(case, rng, noise) for noise in (0.5, 0.35))
    train = split == 0
    classifier = LogisticRegression(C=0.3, max_iter=2000).fit(first[train], y[train])
    return {
        "p": classifier.predict_proba(first).astype(np.float32),
        "z": second.astype(np.float32),
        "y": y.astype(np.int64),
        "split": split.astype(np.int8),
        "group": np.array([f"lesion-{g:04d}" for g in group]),
        "id": np.array([f"case-{i:05d}" for i in range(len(y))]),
    }


def write_demo(path: Path, seed: int = 0) -> Path:
    """Write :func:`demo_outputs` as an ``.npz`` file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **demo_outputs(seed))
    write_bytes(path, buffer.getvalue())
    return path


def _view(case: np.ndarray, rng: np.random.Generator, noise: float) -> np.ndarray:
    """What one sensor sees of a case: a fixed random nonlinear map with noise of its own."""
    seen = case + rng.normal(scale=noise, size=case.shape)
    view: np.ndarray = np.tanh(seen @ rng.normal(scale=_LATENT**-0.5, size=(_LATENT, _WIDTH)))
    return view
