"""The decision as a graph of ONNX is the decision."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from exported_models import pictures, small_model
from torch import Tensor, nn

from tdumpra.core.chances import CalibratedGate
from tdumpra.core.gate import GateThresholds
from tdumpra.data.images.framing import EvalTransform, Framing
from tdumpra.export.graph import Encode, decide
from tdumpra.export.onnx_file import to_onnx
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.networks.texture_network import texture_network

C, D = 4, 6
OPEN = GateThresholds(theta=0.95, beta=0.2, margin=0.0, delta=0.0, alpha=0.3)

DECISIONS = {
    "linear": {"temperature": 1.0, "thresholds": GateThresholds(0.95, 0.3, 0.02, 0.01, 0.4, entropy=0.4)},
    "log-linear": {"rule": "log-linear", "prior_exponent": 0.4, "fused_exponent": 0.7, "first_choices_only": True,
                   "temperature": 1.7},
    "calibrated": {
        "calibrated": CalibratedGate((0.1, 0.6, 0.1), (0.3, 0.2, 0.9), 0.02), "temperature": 0.4, "kappa": 60.0,
        "class_bias": (0.2, -0.1, 0.3, 0.0),
    },
}  # fmt: skip


class Alone(nn.Module):
    """A decision without networks."""

    def __init__(self, decision: Decision) -> None:
        super().__init__()
        self.decision = decision

    def forward(self, logits: Tensor, z: Tensor) -> dict[str, Tensor]:
        return decide(self.decision, logits, z)


def decision(**options) -> Decision:
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(80, D, generator=generator)
    labels = torch.arange(80) % (C - 1)  # the last class has no prototype, and the first has fewer than the others
    groups = [f"g{i}" if labels[i] else f"h{i % 6}" for i in range(80)]
    with pytest.warns(UserWarning, match="n_prototypes"):
        bank = PrototypeBank.fit(z, labels, 7, groups, C)
    prior = torch.tensor([0.5, 0.25, 0.15, 0.1])
    return Decision(bank=bank, prior=prior, **{"thresholds": OPEN, **options})


def rows(n: int = 600) -> tuple[Tensor, Tensor]:
    """Logits of all kinds: near ties, certainty, and in between."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(n, C, generator=generator) * torch.rand(n, 1, generator=generator) * 4
    logits[0] = 0.0
    logits[1] = torch.tensor([90.0, -90.0, 0.0, 1.0])
    logits[2:40] = logits[2:40].round()  # ties of two classes
    z = torch.nn.functional.normalize(torch.randn(n, D, generator=generator), dim=1)
    return logits, z


@pytest.mark.parametrize("name", DECISIONS)
def test_every_rule_and_clause(name):
    fitted = decision(**DECISIONS[name])
    logits, z = rows()
    expected = fitted.decide(logits.double().softmax(1), z)
    assert 0.05 < expected.opened.double().mean() < 0.95
    assert (expected.p.argmax(1) != expected.signals.label_cls).any()
    proto = to_onnx(Alone(fitted), {"logits": logits[:2], "z": z[:2]}).proto
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    names = [each.name for each in session.get_outputs()]
    for part in (slice(0, 1), slice(0, 600), slice(7, 24)):  # of any size
        got = dict(zip(names, session.run(None, {"logits": logits[part].numpy(), "z": z[part].numpy()}), strict=True))
        assert np.array_equal(got["opened"], expected.opened[part].numpy())
        assert np.array_equal(got["label"], expected.p[part].argmax(1).numpy())
        for signal, values in expected.signals._asdict().items():
            np.testing.assert_allclose(got[signal], values[part].numpy(), atol=2e-6, err_msg=signal)
        np.testing.assert_allclose(got["p"], expected.p[part].numpy(), atol=2e-6)
        similarity = fitted.bank.similarity(z[part])[:, fitted.bank.mask]
        np.testing.assert_allclose(got["similarity"][:, fitted.bank.mask.numpy()], similarity.numpy(), atol=1e-6)
        shut = ~got["opened"]
        assert np.array_equal(got["p"][shut], got["p_cls"][shut])  # to the bit


@pytest.mark.parametrize("views", [1, 2])
def test_a_frame_of_another_size_is_resized_as_before(views):
    """Two matrices give what the antialiased resize gives."""
    model = small_model(framing=Framing(height=20, width=28), views=views)
    network = model.classifier.build(3, torch.device("cpu"))
    transform = model.classifier.transform
    framed = torch.from_numpy(pictures(12, 3, (20, 28)))
    with torch.inference_mode():
        expected = network(transform(framed))
        found = Encode(network, transform)(framed)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(found.z, expected.z, atol=1e-5, rtol=1e-5)


def test_a_frame_of_the_right_size_is_not_touched():
    model = small_model()
    transform = EvalTransform(framing=Framing(height=16, width=16), size=16)
    assert not Encode(model.classifier.build(3, torch.device("cpu")), transform).resized


@pytest.mark.slow
def test_the_network_of_the_demo_can_be_exported():
    """It measures distances by an operation that the exporter does not know by itself."""

    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = texture_network(num_classes=0)

        def forward(self, pixels: Tensor) -> dict[str, Tensor]:
            return {"features": self.network(pixels)}

    graph, x = Alone().eval(), torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    session = onnxruntime.InferenceSession(to_onnx(graph, {"pixels": x[:2]}).proto.SerializeToString())
    with torch.inference_mode():
        expected = graph(x)["features"].numpy()
    np.testing.assert_allclose(session.run(None, {"pixels": x.numpy()})[0], expected, atol=1e-5)
