"""Final decisions on a CPU: PyTorch eager, ONNX Runtime and OpenVINO, from framed pixels, one thread each.

Models of one network (EfficientNet-Lite0, ResNet-101) and one of two (Lite0 and Lite2, with a fixed share of rows below
theta, so that the second network is lazy in each engine). Every call gets other images than the one before, and so
other numbers of rows below theta, the same for each engine. The engines take turns within one process, and processor
time is measured, so that other load weighs little. OpenVINO is asked for float32.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.common import Row, best_times, faster
from tdumpra.core.gate import GateThresholds
from tdumpra.data.images.framing import EvalTransform, Framing
from tdumpra.data.images.new import Framed
from tdumpra.export.export import export_model
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.networks.build import build_network
from tdumpra.networks.engine import Engine
from tdumpra.networks.model_file import Encoder, Model
from tdumpra.networks.passes import NetworkPass
from tdumpra.networks.settings import NetworkConfig
from tdumpra.runtime import ExportedPredictor

CLASSES, SIZE, WIDTH = 7, 224, 128
BATCHES, REPEATS = (1, 32), 3
IMAGES = 96  # which the calls go through: one after the other, or a third of them at a time
SHARE = 0.25  # of them below theta, with two networks
CALLS = {1: 12, 32: 3}  # of one turn, for each batch size
MODELS = {
    "Lite0": ("tf_efficientnet_lite0",),
    "ResNet-101": ("resnet101",),
    "Lite0 + Lite2": ("tf_efficientnet_lite0", "tf_efficientnet_lite2"),
}
CPU = torch.device("cpu")


def run() -> list[Row]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return [row for name in MODELS for row in _rows(name, Path(folder))]
    finally:
        torch.set_num_threads(before)


def _rows(name: str, folder: Path) -> list[Row]:
    pixels = _pictures(IMAGES)
    model = _asking(_model(MODELS[name]), pixels)
    path = folder / "model.safetensors"
    model.write(path)
    few = [folder / f"{i}.png" for i in range(4)]  # the export compares itself on these
    for picture, each in zip(few, pixels, strict=False):
        Image.fromarray(each).save(picture)
    exported = export_model(path, "onnx", folder / "model.onnx", images=few).files[0]
    eager = _eager(model)
    engines: dict[str, Callable[[np.ndarray], object]] = {
        "ONNX Runtime": ExportedPredictor.load(exported, engine="onnx", threads=1).decide,
        "OpenVINO": ExportedPredictor.load(exported, engine="openvino", threads=1).decide,
    }
    rows = []
    for n in BATCHES:
        parts = [pixels[start : start + n] for start in range(0, IMAGES, IMAGES // CALLS[n])]
        functions = [partial(_each, decide, parts) for decide in (eager, *engines.values())]
        theirs, *ours = best_times(*functions, repeats=REPEATS, clock=time.process_time)
        seen = n * len(parts)
        rows += [
            faster(f"{engine}, {name}, batch {n}", seconds / seen, theirs / seen, at_least=1.0, against="PyTorch eager")
            for engine, seconds in zip(engines, ours, strict=True)
        ]
    return rows


def _each(decide: Callable[[np.ndarray], object], parts: list[np.ndarray]) -> None:
    for part in parts:
        decide(part)


def _pictures(n: int) -> np.ndarray:
    coarse = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (n, 3, 6, 6)).astype(np.float32))
    smooth = torch.nn.functional.interpolate(coarse, (SIZE, SIZE), mode="bicubic").clamp(0, 255)
    return smooth.permute(0, 2, 3, 1).to(torch.uint8).contiguous().numpy()


def _model(backbones: tuple[str, ...]) -> Model:
    encoders = []
    for backbone in backbones:
        torch.manual_seed(0)
        config = NetworkConfig(backbone=backbone, weights="none", image_size=SIZE, embedding=WIDTH)
        state = build_network(config, CLASSES).network.state_dict()
        transform = EvalTransform(size=SIZE, framing=Framing(height=SIZE, width=SIZE))
        encoders.append(Encoder(network=config, transform=transform, state=state))
    rng = np.random.default_rng(0)
    bank = PrototypeBank.fit(rng.normal(size=(200, WIDTH)).astype(np.float32), np.arange(200) % CLASSES)
    decision = Decision(bank=bank, thresholds=GateThresholds.shut(), prior=torch.full((CLASSES,), 1 / CLASSES))
    return Model(
        decision=decision, class_names=tuple("abcdefg"), classifier=encoders[0],
        retrieval=encoders[1] if len(encoders) == 2 else None, thumbnails={}, identity={},
    )  # fmt: skip


def _asking(model: Model, pixels: np.ndarray) -> Model:
    """Set theta so that a known share of the pictures lies below it."""
    framed, n = [Framed(each, each, None) for each in pixels], max(BATCHES)
    batches = list(_engine(model).decide(framed[i : i + n] for i in range(0, len(framed), n)))
    theta = float(torch.cat([batch.p.amax(1) for batch in batches]).quantile(SHARE))
    return replace(model, decision=replace(model.decision, thresholds=GateThresholds(theta, 0.0, 0.0, 0.0, 0.1)))


def _engine(model: Model) -> Engine:
    classifier, retrieval = model.build(CPU)
    second = None
    if retrieval is not None and model.retrieval is not None:
        second = NetworkPass(retrieval, model.retrieval.transform, "float32")
    first = NetworkPass(classifier, model.classifier.transform, "float32")
    return Engine(model.decision, first, second, device=CPU, batch_size=max(BATCHES), eager=False)


def _eager(model: Model) -> Callable[[np.ndarray], object]:
    engine = _engine(model)
    return lambda pixels: list(engine.decide([[Framed(each, each, None) for each in pixels]]))
