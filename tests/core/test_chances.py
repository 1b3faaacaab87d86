from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from tdumpra.core.chances import (
    PRIOR_CLASSIFIER,
    PRIOR_SIMILARITY,
    CalibratedGate,
    calibrated_gate_opens,
    chances,
    confidence_features,
    fit_chance,
)
from tdumpra.core.gate import gate_signals
from tdumpra.core.risk import gap_favours_similarity


def posteriors(seed: int, n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p_cls, p_sim = (2 * torch.randn(n, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    return p_cls.softmax(1), p_sim.softmax(1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_opens_row_by_row(seed):
    p_cls, p_sim = posteriors(seed)
    gate = CalibratedGate((0.3, 0.8, -0.2), (-0.1, -0.3, 0.9), 0.1)
    opened = calibrated_gate_opens(gate_signals(p_cls, p_sim), gate)
    for c, s, is_open in zip(p_cls.numpy(), p_sim.numpy(), opened.tolist(), strict=True):
        x = [1.0, math.log(c.max() / (1 - c.max())), math.log(s.max() / (1 - s.max()))]
        a_cls, a_sim = (
            1 / (1 + math.exp(-sum(w * v for w, v in zip(weights, x, strict=True))))
            for weights in (gate.classifier, gate.similarity)
        )
        assert is_open == (c.argmax() != s.argmax() and a_sim - a_cls > gate.margin)


def test_the_prior_is_proposition_a4():
    """With nothing fitted a path's confidence is its chance, and the margin stands for the two calibration errors."""
    p_cls, p_sim = posteriors(0, 400)
    signals = gate_signals(p_cls, p_sim)
    opened = calibrated_gate_opens(signals, CalibratedGate(PRIOR_CLASSIFIER, PRIOR_SIMILARITY, 0.15)).numpy()
    favours = gap_favours_similarity(signals.gamma_cls.numpy(), signals.gamma_sim.numpy(), 0.1, 0.05)
    differ = (signals.label_cls != signals.label_sim).numpy()
    assert (opened == (favours & differ)).all()
    assert opened.any()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("n", [1, 12, 200])
def test_the_fit_is_the_minimum(seed, n):
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
    right = rng.random(n) < 1 / (1 + np.exp(-x @ [0.2, 1.1, -0.4]))
    prior = np.array(PRIOR_SIMILARITY)

    def loss(w: np.ndarray) -> float:
        return float(np.log1p(np.exp(np.where(right, -1, 1) * (x @ w))).sum() + ((w - prior) ** 2).sum() / 2)

    expected = minimize(loss, prior, method="BFGS", options={"gtol": 1e-9}).x
    assert fit_chance(x, right, PRIOR_SIMILARITY) == pytest.approx(expected, abs=1e-5)


def test_against_scikit_learn():
    """A prior at zero is scikit-learn's ridge with C = 1 and the intercept as one more penalised column."""
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(300), rng.normal(size=(300, 2))])
    right = rng.random(300) < 1 / (1 + np.exp(-x @ [0.5, 1.0, -1.0]))
    peer = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-12, max_iter=10_000, solver="newton-cholesky")
    expected = peer.fit(x, right).coef_[0]
    assert fit_chance(x, right, (0.0, 0.0, 0.0)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("answer", [True, False])
def test_separable_rows_have_a_finite_fit(answer):
    x = np.column_stack([np.ones(50), np.full((50, 2), 14.0)])
    assert np.isfinite(fit_chance(x, np.full(50, answer), PRIOR_CLASSIFIER)).all()


def test_a_certain_path_has_finite_features():
    certain = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    features = confidence_features(gate_signals(certain, certain))
    assert torch.isfinite(features).all()
    assert features.dtype == torch.float64
    fitted = chances(gate_signals(certain, certain), PRIOR_CLASSIFIER, PRIOR_SIMILARITY)
    assert ((fitted.classifier > 0.99) & (fitted.similarity > 0.99)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"margin": -0.1}, "margin must lie between 0 and 1, not -0.1"),
        ({"margin": math.nan}, "margin must lie between 0 and 1"),
        ({"classifier": (0.0, math.inf, 0.0)}, "classifier must be three finite weights"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=message):
        CalibratedGate(**{"classifier": (0.0, 1.0, 0.0), "similarity": (0.0, 0.0, 1.0), "margin": 0.0, **changes})
