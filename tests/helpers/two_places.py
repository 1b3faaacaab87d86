"""A classifier from one place and cases of another: shifted features, and other class shares."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from tdumpra.estimator import DualPathClassifier
from tdumpra.method.record import BankRecipe, Record
from tdumpra.method.rows import KeptRows

Array = np.ndarray
NAMES = ("amber", "blue", "cyan", "dun")
_WIDTH, _EMBEDDING = 12, 6
_HOME = (0.55, 0.25, 0.15, 0.05)
_THERE = (0.1, 0.3, 0.2, 0.4)


def arrays(n: int, *, there: bool, seed: int, sureness: float = 1.0) -> dict[str, Array]:
    """Return rows of one place: features around a mean of their class, and the home classifier's word on them.

    Two rows show one lesion. Elsewhere all features are moved, and classes are spread differently.
    """
    fixed = np.random.default_rng(99)
    means, shift = 0.9 * fixed.normal(size=(4, _WIDTH)), 1.8 * fixed.normal(size=_WIDTH)
    project = fixed.normal(size=(_WIDTH, _EMBEDDING))
    rng = np.random.default_rng(seed)
    y = np.repeat(rng.choice(4, size=(n + 1) // 2, p=_THERE if there else _HOME), 2)[:n]
    features = means[y] + 1.5 * rng.normal(size=(n, _WIDTH)) + (shift if there else 0)
    # the best classifier at home: Gaussian classes of one width, with the shares of home
    logits = features @ means.T / 2.25 - (means**2).sum(1) / 4.5 + np.log(_HOME)
    place = "there" if there else "home"
    return {
        "p": softmax(sureness * logits, axis=1), "z": np.tanh(features @ project / 4), "features": features, "y": y,
        "group": np.array([f"{place} {seed} lesion {i // 2}" for i in range(n)]),
        "id": np.array([f"{place} {seed} image {i}" for i in range(n)]),
    }  # fmt: skip


def kept(columns: dict[str, Array]) -> KeptRows:
    """Return rows as a model keeps them."""
    return KeptRows(
        ids=columns["id"], groups=columns["group"], y=columns["y"], p=columns["p"].astype(np.float32),
        z=columns["z"].astype(np.float32), features=columns["features"].astype(np.float32),
    )  # fmt: skip


@cache
def home_model(sureness: float = 1.0) -> tuple[DualPathClassifier, Record]:
    """Return a fitted classifier of home, and the record of its rows; copy it before you change it."""
    train, validation = (kept(arrays(n, there=False, seed=seed, sureness=sureness)) for n, seed in ((400, 1), (200, 2)))
    model = DualPathClassifier(n_prototypes=2)
    model.fit(train.z, train.y, train.groups, ids=train.ids, class_names=NAMES)
    model.tune(validation.p.astype(np.float64), validation.z, validation.y, validation.groups)
    record = Record.keep(train, validation, BankRecipe(2, 0, 0.999))
    model.record_ = record
    return model, record


def write_outputs(path: Path, *, n_there: int = 160, there: bool = True, **changes: Any) -> Path:
    """Write one file of outputs: train and validation rows of home, and as test rows those of the other place."""
    parts = [
        arrays(400, there=False, seed=1), arrays(200, there=False, seed=2), arrays(n_there, there=there, seed=3),
    ]  # fmt: skip
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    columns["logits"] = np.log(columns.pop("p"))
    columns["split"] = np.repeat([0, 1, 2], [len(part["y"]) for part in parts])
    np.savez(path, **{**columns, "classes": np.array(NAMES), **changes})
    return path
