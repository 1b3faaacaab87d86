"""Models with small random networks, made in milliseconds, for the tests of exported files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from tdumpra.core.gate import GateThresholds
from tdumpra.data.images.framing import EvalTransform, Framing
from tdumpra.export.export import Export, export_model
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.networks.build import build_network
from tdumpra.networks.model_file import Encoder, Model
from tdumpra.networks.settings import NetworkConfig

NAMES = ("amber", "blue", "cyan")
OPEN = GateThresholds(theta=0.9, beta=0.34, margin=0.0, delta=0.0, alpha=0.3)


def encoder(seed: int, *, size: int = 16, framing: Framing | None = None, views: int = 1, **network: Any) -> Encoder:
    config = NetworkConfig(
        **{"backbone": "tiny_networks:plain", "weights": "none", "image_size": size, "embedding": 8, **network}
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        built = build_network(config, len(NAMES)).network
    # untrained networks hardly tell images apart: larger weights do
    state = {name: 3 * value if value.is_floating_point() else value for name, value in built.state_dict().items()}
    transform = EvalTransform(framing=framing or Framing(height=size, width=size), size=size)
    return Encoder(network=config, transform=transform, state=state, views=views)


def pictures(n: int, seed: int = 0, size: tuple[int, int] = (16, 16)) -> np.ndarray:
    """Plain colours with a gradient: networks tell them apart."""
    rng = np.random.default_rng(seed)
    corners = rng.integers(0, 256, (n, 2, 2, 3)).astype(float)
    y, x = np.linspace(0, 1, size[0])[:, None, None], np.linspace(0, 1, size[1])[None, :, None]
    mix = (corners[:, 0, 0, None, None] * (1 - y) + corners[:, 1, 0, None, None] * y) * (1 - x)
    mix = mix + (corners[:, 0, 1, None, None] * (1 - y) + corners[:, 1, 1, None, None] * y) * x
    return mix.clip(0, 255).astype(np.uint8)


def small_model(
    *,
    two: bool = False,
    thumbnails: int = 24,
    framing: Framing | None = None,
    views: int = 1,
    backbone: str = "tiny_networks:plain",
    **decision: Any,
) -> Model:
    """A model whose gate opens for some pictures; with ``two``, of two networks."""
    classifier = encoder(1, framing=framing, views=views, backbone=backbone)
    matcher = encoder(2, framing=framing, views=views) if two else classifier
    if two:
        classifier, matcher = classifier.without("projection"), matcher.without("classifier")
    network = matcher.build(len(NAMES), torch.device("cpu"), trusted=[backbone])
    frame = matcher.transform.framing
    seen = torch.from_numpy(pictures(60, 5, (frame.height, frame.width)))
    with torch.inference_mode():
        z = network(matcher.transform(seen)).z.clone()
    y = torch.arange(60) % 3
    bank = PrototypeBank.fit(z, y, decision.pop("n_prototypes", 2), None, 3, ids=[f"image{i}" for i in range(60)])
    options = {"thresholds": OPEN, "kappa": 8.0, "temperature": 1.3, "prior": torch.tensor([0.5, 0.3, 0.2]), **decision}
    held = {f"image{i}": torch.from_numpy(each) for i, each in enumerate(pictures(thumbnails, 7, (20, 24)))}
    return Model(
        decision=Decision(bank=bank, **options), class_names=NAMES, classifier=classifier,
        retrieval=matcher if two else None, thumbnails=held, identity={"made_from": "the tests"},
    )  # fmt: skip


def write_pictures(folder: Path, n: int, seed: int = 3) -> list[Path]:
    """Files of pictures that are larger than any frame."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:03d}.png" for i in range(n)]
    for path, pixels in zip(paths, pictures(n, seed, (40, 50)), strict=True):
        Image.fromarray(pixels).save(path)
    return paths


class Made(NamedTuple):
    """A model file and its export."""

    model: Path
    exported: Path
    export: Export


_made: dict[bool, Made] = {}


def exported_once(folder: Path, *, two: bool) -> Made:
    """Export a small model to ONNX, once in a process; with ``two``, one of two networks."""
    if two not in _made:
        place = folder / ("two" if two else "one")
        place.mkdir()
        model = place / "model.safetensors"
        small_model(two=two).write(model)
        out = place / "model.onnx"
        _made[two] = Made(model, out, export_model(model, "onnx", out, trusted=["tiny_networks:plain"]))
    return _made[two]
