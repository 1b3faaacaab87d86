"""Removing a group from a model of 10,000 training rows: from the file to the new file, networks aside."""

from __future__ import annotations

import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import Row, within
from tdumpra.core.calibration import class_prior
from tdumpra.core.gate import GateThresholds
from tdumpra.estimator import DualPathClassifier
from tdumpra.method.record import BankRecipe, Record
from tdumpra.method.rows import KeptRows
from tdumpra.models.bank import remove
from tdumpra.models.opened import open_model

N, VALIDATION, D, CLASSES, FEATURES = 10_000, 1_000, 128, 7, 1280
LIMIT = 5.0  # seconds of the processor


def rows(n: int, name: str, modes: np.ndarray, random: np.random.Generator) -> KeptRows:
    y = random.choice(CLASSES, n, p=[0.03, 0.05, 0.11, 0.01, 0.11, 0.67, 0.02])
    y[:CLASSES] = np.arange(CLASSES)
    z = modes[y, random.integers(0, 5, n)] + random.normal(0, 0.05, (n, D))
    p = random.dirichlet(np.ones(CLASSES), n)
    return KeptRows(
        ids=np.array([f"{name}-{i}" for i in range(n)], np.str_),
        groups=np.array([f"{name}-{i // 2}" for i in range(n)], np.str_),
        y=y, p=p.astype(np.float32), z=z.astype(np.float32),
        features=random.normal(size=(n, FEATURES)).astype(np.float16),
    )  # fmt: skip


def write_model(path: Path) -> None:
    random = np.random.default_rng(0)
    modes = random.normal(0, 1 / np.sqrt(D), (CLASSES, 5, D))
    names = tuple(f"class {c}" for c in range(CLASSES))
    record = Record.keep(
        rows(N, "train", modes, random), rows(VALIDATION, "val", modes, random), BankRecipe(5, 0, 0.999)
    )
    small = record.validation
    classifier = DualPathClassifier(preset="paper").fit(small.z, small.y, small.groups, class_names=names)
    other = rows(300, "tune", modes, random)
    with warnings.catch_warnings():  # of small validation data: what is tuned here is never used
        warnings.simplefilter("ignore", UserWarning)
        fitted = classifier.tune(other.p, other.z, other.y, other.groups).fitted_
    decision = replace(
        fitted.tuning.decision, bank=record.rebuild_bank(names), thresholds=GateThresholds.shut(),
        prior=class_prior(torch.from_numpy(record.train.y), CLASSES),
    )  # fmt: skip
    tuned = fitted._replace(tuning=replace(fitted.tuning, decision=decision))
    made = DualPathClassifier.from_fitted(tuned, names, **classifier.get_params(deep=False))
    made.record_ = record
    made.save(path)


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write_model(path)
        used = []
        for repeat in range(3):
            start = time.process_time()
            model = open_model(path)
            changed = remove(model, groups=["train-7"])
            out = Path(folder) / f"new{repeat}.safetensors"
            model.write_child(out, changed.content, command="bank remove", settings={}, inputs={})
            used.append(time.process_time() - start)
    name = f"bank remove, {N:,} training rows × {D}, {FEATURES} features"
    return [within(name, min(used), LIMIT, unit="s", against="5 s of the processor, reading and writing included")]
