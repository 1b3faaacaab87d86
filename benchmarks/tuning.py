"""The threshold search against calling ``fuse`` and scoring each combination; both must find the same winner."""

from __future__ import annotations

import itertools
import time

import numpy as np
import torch

from benchmarks.common import Row, faster
from tdumpra import GateThresholds, PrototypeBank, classification_metrics, fuse
from tdumpra.core.calibration import class_prior
from tdumpra.method.outputs import ValidationOutputs
from tdumpra.tuning.presets import Preset
from tdumpra.tuning.search import Search
from tdumpra.tuning.tune import tune

N, C, D = 10_000, 7, 32
PRESET = Preset(
    kappa=(20.0,),
    theta=tuple(np.linspace(0.4, 1.0, 7)),
    beta=tuple(np.linspace(0.0, 0.9, 8)),
    margin=tuple(np.linspace(0.0, 0.6, 6)),
    delta=(0.0, 0.05, 0.1),
    alpha=tuple(np.linspace(0.1, 0.9, 5)),
    rule=("linear", "log-linear"),
    temperatures=False,
)


def run() -> list[Row]:
    rng = np.random.default_rng(0)
    y = rng.choice(C, N, p=[0.03, 0.05, 0.11, 0.02, 0.11, 0.66, 0.02])
    directions = rng.normal(size=(C, D))
    z = directions[y] + 1.6 * rng.normal(size=(N, D))
    logits = 1.2 * np.eye(C)[y] + rng.normal(size=(N, C))
    p = torch.from_numpy(logits).softmax(1)
    bank = PrototypeBank.fit(z[:5000], y[:5000], 5)
    validation = ValidationOutputs.check(p, z, y)
    prior = class_prior(torch.from_numpy(y), C)

    def search() -> GateThresholds | None:
        tuned = tune(bank, validation, prior, Search(PRESET))
        return tuned.best.thresholds

    search()
    start = time.perf_counter()
    winner = search()
    ours = time.perf_counter() - start
    start = time.perf_counter()
    naive_winner = _naive(p.numpy(), bank.posterior(z), y)
    naive = time.perf_counter() - start
    assert winner == naive_winner, f"{winner} is not {naive_winner}"
    count = int(np.prod([len(getattr(PRESET, axis)) for axis in ("theta", "beta", "margin", "delta", "alpha", "rule")]))
    name = f"tuning, {count:,} combinations on {N:,} rows"
    return [faster(name, ours, naive, at_least=50, against="fuse and score, one by one")]


def _naive(p: np.ndarray, p_sim: np.ndarray, y: np.ndarray) -> GateThresholds | None:
    base = classification_metrics(p, y)
    best, winner = (base["balanced_accuracy"], 0), None
    predicted_base = p.argmax(1)
    recall_of = [np.flatnonzero(y == c) for c in range(C)]
    grid = itertools.product(
        PRESET.rule, PRESET.alpha, sorted(PRESET.theta),
        *(sorted(getattr(PRESET, name), reverse=True) for name in ("beta", "margin", "delta")),
    )  # fmt: skip
    for rule, alpha, theta, beta, margin, delta in grid:
        thresholds = GateThresholds(*(float(value) for value in (theta, beta, margin, delta, alpha)))
        fused = fuse(p, p_sim, thresholds, rule=rule)
        correct = np.asarray(fused.p).argmax(1) == y
        if correct.mean() < (predicted_base == y).mean():
            continue
        score = (round(float(np.mean([correct[rows].mean() for rows in recall_of])), 12), -int(fused.opened.sum()))
        if score > (round(best[0], 12), best[1]):
            best, winner = score, thresholds
    return winner
