"""Adapting on 1,000 local cases with 1,280 pooled features: processor time within 30 s.

Everything that ``tdumpra adapt`` does after its rows are read: six ways under nested folds, intervals, the dose curve.
It runs in one thread, so that processor time is what the clock shows where a core is free, and a busy machine changes
it little.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
import torch
from scipy.special import softmax
from threadpoolctl import threadpool_limits

from benchmarks.common import Row, within
from tdumpra.core.calibration import class_prior
from tdumpra.core.gate import GateThresholds
from tdumpra.method.decision import Decision
from tdumpra.method.record import BankRecipe, Record
from tdumpra.method.rows import KeptRows
from tdumpra.models.adapt import adapt
from tdumpra.models.dose import dose_curve
from tdumpra.models.ways import Workbench
from tdumpra.tuning.goal import Goal

CASES, TRAIN, FEATURES, CLASSES, WIDTH = 1000, 6500, 1280, 8, 128
LIMIT = 30.0  # seconds, in one thread


def rows(n: int, place: str, shift: float, seed: int) -> KeptRows:
    """Return rows around a mean of their class, moved by ``shift``; the spectrum falls as that of pooled features."""
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    scale = np.exp(-np.arange(FEATURES) / 150)
    means, away = fixed.normal(size=(CLASSES, FEATURES)) * scale, fixed.normal(size=FEATURES) * scale
    project = fixed.normal(size=(FEATURES, WIDTH)) / np.sqrt(FEATURES)
    y = rng.integers(CLASSES, size=n)
    features = means[y] + 3 * rng.normal(size=(n, FEATURES)) * scale + shift * away
    return KeptRows(
        ids=np.array([f"{place} {i}" for i in range(n)]), groups=np.array([f"{place} {i // 3 * 2}" for i in range(n)]),
        y=y, p=softmax(features @ means.T / 9 - (means**2).sum(1) / 18, axis=1).astype(np.float32),
        z=(features @ project).astype(np.float32), features=features.astype(np.float32),
    )  # fmt: skip


def run() -> list[Row]:
    """Adapt once, and compare the processor time with the limit."""
    warnings.simplefilter("ignore")
    train, validation, local = (
        rows(n, place, shift, seed)
        for seed, (n, place, shift) in enumerate(
            [(TRAIN, "home", 0.0), (800, "validation", 0.0), (CASES, "there", 2.0)]
        )
    )
    record = Record.keep(train, validation, BankRecipe(5, 0, 0.999))
    names = [f"class {c}" for c in range(CLASSES)]

    decision = Decision(
        bank=record.rebuild_bank(names),
        thresholds=GateThresholds(theta=0.7, beta=0.4, margin=0.1, delta=0.05, alpha=0.5),
        prior=class_prior(torch.from_numpy(train.y), CLASSES),
    )
    bench = Workbench(decision, record, names, local)
    with threadpool_limits(1):  # as the command does
        return _measured(bench)


def _measured(bench: Workbench) -> list[Row]:
    start, clock = time.process_time(), time.perf_counter()
    done = adapt(bench, Goal("balanced_accuracy"))
    chosen = time.process_time() - start
    dose_curve(bench, done)
    whole, wall = time.process_time() - start, time.perf_counter() - clock
    print(f"choice {chosen:.1f} s, with the dose curve {whole:.1f} s of processor time and {wall:.1f} s on the clock")
    name = f"adapt, {CASES:,} cases, {FEATURES:,} features, {TRAIN:,} training rows"
    return [within(name, whole, LIMIT, unit="s", against="30 s in one thread")]


if __name__ == "__main__":
    print(run())
