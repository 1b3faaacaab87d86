"""Small models without networks, with records: clusters on a sphere, a classifier that errs, a gate that opens."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tdumpra.core.gate import GateThresholds
from tdumpra.estimator import DualPathClassifier
from tdumpra.method import lineage
from tdumpra.method.record import BankRecipe, Record
from tdumpra.method.rows import KeptRows
from tdumpra.models.opened import OpenedModel, open_model

CLASSES = ("amber", "blue", "cyan")
WIDTH = 6
OPEN = GateThresholds(theta=0.9, beta=0.0, margin=0.0, delta=0.0, alpha=0.2)


def local_rows(labels: Any, name: str, *, seed: int = 0, n_known: int = len(CLASSES), noise: float = 0.25) -> KeptRows:
    """Two rows a group; class c lies around the c-th axis. The classifier is unsure, and blind to further classes."""
    y, random = np.asarray(labels), np.random.default_rng(seed)
    y = np.repeat(y, 2)
    z = np.eye(WIDTH)[y] + random.normal(0, noise, (len(y), WIDTH))
    logits = random.normal(0, 1, (len(y), n_known)) + 1.5 * np.eye(n_known + 3)[y][:, :n_known]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return KeptRows(
        ids=np.array([f"{name}-image-{i:04d}" for i in range(len(y))], np.str_),
        groups=np.array([f"{name}-lesion-{i // 2:04d}" for i in range(len(y))], np.str_),
        y=y.astype(np.int64),
        p=p.astype(np.float32),
        z=z.astype(np.float32),
        features=random.normal(size=(len(y), 4)).astype(np.float16),
    )


def array_model(
    folder: Path, *, thresholds: GateThresholds = OPEN, with_validation: bool = False, **changes: Any
) -> Path:
    """Write a model as ``tdumpra attach`` does, with a gate that opens often, and return its path."""
    from dataclasses import replace

    train, validation = local_rows([0, 1, 2] * 12, "train", seed=1), local_rows([0, 1, 2] * 8, "val", seed=2)
    classifier = DualPathClassifier(
        n_prototypes=3, preset="paper", selection="crossfit" if with_validation else "validation", folds=3
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        classifier.fit(train.z, train.y, train.groups, ids=train.ids, class_names=CLASSES)
        classifier.tune(validation.p, validation.z, validation.y, validation.groups)
    fitted = classifier.fitted_
    recipe = BankRecipe(3, 0, None, with_validation)
    record = Record.keep(train, validation, recipe)
    decision = replace(fitted.tuning.decision, thresholds=thresholds, bank=record.rebuild_bank(CLASSES), **changes)
    tuned = fitted._replace(tuning=replace(fitted.tuning, decision=decision))
    made = DualPathClassifier.from_fitted(tuned, CLASSES, **classifier.get_params(deep=False))
    made.record_ = record
    made.lineage_ = lineage.append((), command="attach", settings={}, inputs={})
    path = folder / "model.safetensors"
    made.save(path)
    return path


def opened(path: Path) -> OpenedModel:
    """Open a model that a test has written."""
    return open_model(path)


def write_outputs(path: Path, rows: KeptRows, names: tuple[str, ...]) -> Path:
    """Write rows as a file of outputs, labels by name."""
    np.savez(
        path, p=rows.p, z=rows.z, y=np.array(names)[rows.y], group=rows.groups, id=rows.ids, classes=np.array(CLASSES)
    )
    return path
