"""A model as graphs for export: from framed pixels to the final decision, by the functions that predict here.

A model of one network is one graph. One of two networks is a pair, so that the second network stays lazy: the first
graph classifies and tells which rows the bank must be asked about, the second one takes these rows and decides. One
graph would run both networks on every image, and a conditional inside of it would choose for a whole batch at once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tdumpra.core.posterior import prototype_similarity
from tdumpra.core.rowwise import widen
from tdumpra.data.images.framing import EvalTransform
from tdumpra.method.decision import Decision
from tdumpra.networks.build import Encoding
from tdumpra.networks.model_file import Encoder, Model

Outputs = dict[str, Tensor]


class Encode(nn.Module):
    """A network with the preprocessing of framed images."""

    mean: Tensor
    std: Tensor
    rows: Tensor
    columns: Tensor

    def __init__(self, network: nn.Module, transform: EvalTransform) -> None:
        super().__init__()
        self.network = network
        for name, values in (("mean", transform.mean), ("std", transform.std)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1))
        framing = transform.framing
        self.resized = (framing.height, framing.width) != (transform.size, transform.size)
        if self.resized:  # a resize is linear; as two matrices it is the same in every runtime
            self.register_buffer("rows", _resize_matrix(framing.height, transform.size))
            self.register_buffer("columns", _resize_matrix(framing.width, transform.size))

    def forward(self, pixels: Tensor) -> Encoding:
        """Return logits and unit embeddings of framed images (n, h, w, 3)."""
        x = pixels.permute(0, 3, 1, 2).float()
        if self.resized:
            x = (self.rows @ x @ self.columns.T).clamp(0, 255)
        encoding: Encoding = self.network((x / 255 - self.mean) / self.std)
        return encoding


class OnePass(nn.Module):
    """A network whose own embeddings are matched, and the decision: one graph for everything."""

    def __init__(self, encode: Encode, decision: Decision) -> None:
        super().__init__()
        self.encode, self.decision = encode, decision

    def forward(self, pixels: Tensor) -> Outputs:
        """Decide framed images."""
        encoding = self.encode(pixels)
        return {**decide(self.decision, encoding.logits, encoding.z), "logits": encoding.logits.float()}


class FirstPass(nn.Module):
    """The classifier of two networks: its posterior, and the rows for which the second network is needed."""

    def __init__(self, encode: Encode, decision: Decision) -> None:
        super().__init__()
        self.encode, self.decision = encode, decision

    def forward(self, pixels: Tensor) -> Outputs:
        """Classify framed images."""
        logits = self.encode(pixels).logits.float()
        p = self.decision.classifier(logits.double().softmax(1))
        top, label = p.max(1)
        asked = top < self.decision.thresholds.theta
        return {"p": p, "label": label, "asked": asked, "finite": _finite(logits), "logits": logits}


class SecondPass(nn.Module):
    """The network that matches prototypes, and the decision about rows that the first graph classified."""

    def __init__(self, encode: Encode, decision: Decision) -> None:
        super().__init__()
        self.encode, self.decision = encode, decision

    def forward(self, pixels: Tensor, logits: Tensor) -> Outputs:
        """Decide framed images with the logits of the first graph."""
        return decide(self.decision, logits, self.encode(pixels).z)


def graphs_of(model: Model, classifier: nn.Module, retrieval: nn.Module | None) -> tuple[nn.Module, ...]:
    """Return the one or two graphs of a model whose networks are built."""
    first = Encode(classifier, model.classifier.transform)
    if retrieval is None or model.retrieval is None:
        return (OnePass(first, model.decision).eval(),)
    second = Encode(retrieval, model.retrieval.transform)
    return FirstPass(first, model.decision).eval(), SecondPass(second, model.decision).eval()


def decide(decision: Decision, logits: Tensor, z: Tensor) -> Outputs:
    """Return everything that a decision has to say of rows of logits and unit embeddings."""
    z = widen(z)
    cosines = prototype_similarity(z, decision.bank.prototypes.to(z))
    cosines = cosines / torch.linalg.vector_norm(z, dim=1)[:, None, None]
    decided = decision.decide_posteriors(logits.double().softmax(1), decision.retrieval(cosines))
    return {
        "p": decided.p,
        "label": decided.p.argmax(1),
        "opened": decided.opened,
        "finite": _finite(logits) & _finite(z),
        **decided.signals._asdict(),
        "p_cls": decided.p_cls,
        "p_sim": decided.p_sim,
        "similarity": cosines,
        "embedding": z,
    }


def blank(encoder: Encoder, n: int) -> Tensor:
    """Return framed images without a picture."""
    framing = encoder.transform.framing
    return torch.zeros(n, framing.height, framing.width, 3, dtype=torch.uint8)


def _finite(x: Tensor) -> Tensor:
    return x.isfinite().all(1)


def _resize_matrix(before: int, after: int) -> Tensor:
    """Return the matrix (after, before) of an antialiased bicubic resize along one side."""
    basis = torch.eye(before)[None, None]
    resized = torch.nn.functional.interpolate(basis, (after, before), mode="bicubic", antialias=True)
    return resized[0, 0].contiguous()
