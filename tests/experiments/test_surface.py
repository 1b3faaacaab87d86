from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.support import random_posterior

from tdumpra import GateThresholds, fuse
from tdumpra.experiments.surface import gate_surface

GRID: dict[str, Any] = {
    "theta": (0.5, 0.9),
    "beta": (0.3, 0.6),
    "margin": (0.0, 0.3),
    "alpha": (0.1, 0.5),
    "delta": (0.05,),
}


@pytest.mark.parametrize("rule", ["linear", "log-linear"])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_point_is_what_fuse_gives(seed, rule):
    rng = np.random.default_rng(seed)
    p_cls, p_sim, y = random_posterior(rng, 150, 4), random_posterior(rng, 150, 4), rng.integers(4, size=150)
    surface = gate_surface(*map(torch.from_numpy, (p_cls, p_sim, y)), rule=rule, **GRID)
    points = surface.points()
    assert len(points) == surface.accuracy.size == 16
    for point in points:
        thresholds = GateThresholds(*(point[name] for name in ("theta", "beta", "margin", "delta", "alpha")))
        fused = fuse(p_cls, p_sim, thresholds, rule=rule)
        before, after, opened = p_cls.argmax(1), np.asarray(fused.p).argmax(1), np.asarray(fused.opened)
        assert point["opened"] == opened.sum()
        assert point["flipped"] == (before != after).sum()
        assert point["fixed"] == ((before != y) & (after == y)).sum()
        assert point["broken"] == ((before == y) & (after != y)).sum()
        assert point["accuracy"] == pytest.approx((after == y).mean(), abs=1e-12)
        recall = np.mean([(after[y == c] == c).mean() for c in range(4)])
        assert point["balanced_accuracy"] == pytest.approx(recall, abs=1e-12)
        if opened.any():
            assert point["gate_accuracy"] == pytest.approx((after == y)[opened].mean(), abs=1e-12)
        else:
            assert np.isnan(point["gate_accuracy"])
