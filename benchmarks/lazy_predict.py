"""The dual path with a lazy second network against the classifier alone: cost 1 + the share of rows below theta.

Thresholds are set so that a known share of the images falls below theta; everything else is as in a real model.
"""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.common import Row, best_times
from tdumpra.core.gate import GateThresholds
from tdumpra.data.images.framing import EvalTransform
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.networks.build import build_network
from tdumpra.networks.model_file import Encoder, Model
from tdumpra.networks.predict import Predictor
from tdumpra.runs.config import NetworkConfig

CLASSES, SHARES = 7, (0.1, 0.3)


def run() -> list[Row]:
    on_gpu = torch.cuda.is_available()
    n, size = (512, 224) if on_gpu else (64, 96)
    network = NetworkConfig(backbone="resnet50", weights="none", image_size=size, embedding=64)
    torch.manual_seed(0)
    encoders = [
        Encoder(
            network=network,
            transform=EvalTransform(size=size),
            state=build_network(network, CLASSES).network.state_dict(),
        )
        for _ in range(2)
    ]
    rng = np.random.default_rng(0)
    bank = PrototypeBank.fit(rng.normal(size=(200, 64)).astype(np.float32), np.arange(200) % CLASSES)
    pixels = torch.randn(n, 3, size, size, device="cuda" if on_gpu else "cpu")
    return [_row(encoders, bank, pixels, share) for share in SHARES]


def _row(encoders: list[Encoder], bank: PrototypeBank, pixels: torch.Tensor, share: float) -> Row:
    prior = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)

    def predictor(theta: float) -> Predictor:
        thresholds = GateThresholds(theta, 0.0, 0.0, 0.0, 0.1)
        decision = Decision(bank=bank, thresholds=thresholds, prior=prior)
        model = Model(
            decision=decision, class_names=tuple("abcdefg"), classifier=encoders[0], retrieval=encoders[1],
            thumbnails={}, identity={},
        )  # fmt: skip
        return Predictor(model)

    probe = predictor(0.0)
    top = probe.decide(pixels).p.amax(1)
    lazy = predictor(float(top.quantile(share)))
    below = float((top < lazy.model.decision.thresholds.theta).double().mean())

    def dual() -> None:
        lazy.decide(pixels)

    def alone() -> None:
        with torch.inference_mode():
            lazy._run(lazy._classifier, lazy.model.classifier, pixels).logits.double().softmax(1).cpu()

    mine, other = best_times(dual, alone, repeats=5)
    cost, limit = mine / other, 1.03 + below
    return Row(
        name=f"lazy dual path, {below:.0%} of rows below theta", ours=mine, peer=other, ratio=cost,
        goal=f"≤ {limit:.2f} ×", met=cost <= limit, unit="s", against="the classifier alone",
    )  # fmt: skip
