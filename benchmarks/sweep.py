"""A sweep of 20,000 gates over θ × β × margin × α against calling ``fuse`` and scoring each of them."""

from __future__ import annotations

import itertools
import time

import numpy as np
import torch

from benchmarks.common import Row, faster
from tdumpra import GateThresholds, fuse
from tdumpra.experiments.surface import gate_surface

N, C, DELTA = 2000, 7, 0.05
THETA, BETA = tuple(np.linspace(0.4, 1.0, 20)), tuple(np.linspace(0.0, 0.95, 20))
MARGIN, ALPHA = tuple(np.linspace(0.0, 0.6, 10)), (0.1, 0.3, 0.5, 0.7, 0.9)
LOOPED = 40  # every 40th point is looped over, and the loop's time multiplied


def run() -> list[Row]:
    rng = np.random.default_rng(0)
    y = rng.choice(C, N, p=[0.03, 0.05, 0.11, 0.02, 0.11, 0.66, 0.02])
    p_cls, p_sim = (
        torch.from_numpy(strength * np.eye(C)[y] + rng.normal(size=(N, C))).softmax(1) for strength in (1.2, 1.0)
    )
    labels = torch.from_numpy(y)

    def sweep() -> np.ndarray:
        surface = gate_surface(p_cls, p_sim, labels, theta=THETA, beta=BETA, margin=MARGIN, alpha=ALPHA, delta=(DELTA,))
        return surface.accuracy

    sweep()
    start = time.perf_counter()
    accuracy = sweep()
    ours = time.perf_counter() - start
    points = list(itertools.product(ALPHA, THETA, reversed(BETA), reversed(MARGIN)))
    left, right = p_cls.numpy(), p_sim.numpy()
    start = time.perf_counter()
    looped = [
        (np.asarray(fuse(left, right, GateThresholds(theta, beta, margin, DELTA, alpha)).p).argmax(1) == y).mean()
        for alpha, theta, beta, margin in points[::LOOPED]
    ]
    theirs = (time.perf_counter() - start) * LOOPED
    assert np.abs(accuracy.ravel()[::LOOPED] - looped).max() < 1e-12
    name = f"sweep, {len(points):,} gates on {N:,} rows"
    return [faster(name, ours, theirs, at_least=10, against=f"fuse and score (timed on every {LOOPED}th)")]
