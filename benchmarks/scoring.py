"""``score`` on many small images against prediction alone, and the cost of an image as an archive grows.

Scoring adds a list, fetching, Parquet parts and their checksums to prediction. Seconds are the processor's, of this
process and its workers.
"""

from __future__ import annotations

import io
import resource
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks import lazy_predict
from benchmarks.common import Row, within
from tdumpra.core.gate import GateThresholds
from tdumpra.data.images.framing import EvalTransform, Framing
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.networks.build import build_network
from tdumpra.networks.model_file import Encoder, Model
from tdumpra.networks.predict import Predictor
from tdumpra.networks.settings import NetworkConfig
from tdumpra.scoring.folder import Plan, ScoreFolder
from tdumpra.scoring.listing import list_source
from tdumpra.scoring.score import score_parts

SIZES = (2_000, 200_000)
SIDE, SHARD = 64, 1_000


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [_against_prediction(Path(folder)), _growth(Path(folder))]


def _against_prediction(folder: Path) -> Row:
    """Photographs of the usual size through a real network: what scoring adds to prediction."""
    (folder / "photographs").mkdir()
    files = sorted(set(lazy_predict.photographs(folder / "photographs")))
    predictor = Predictor(lazy_predict.two_networks(), device="cpu")
    ours, bare = [], []
    for i in range(3):
        start = _processor_seconds()
        assert all(each.error is None for each in predictor.predict(files))
        bare.append(_processor_seconds() - start)
        ours.append(_scored(predictor, folder / "photographs", folder / f"scored-{i}"))
    share = min(bare) / min(ours)
    return Row(
        name=f"score, {len(files)} photographs", ours=min(ours), peer=min(bare), ratio=share, goal="≥ 0.9 × its speed",
        met=share >= 0.9, unit="s", against="prediction of the same files",
    )  # fmt: skip


def _growth(folder: Path) -> Row:
    """The cost of a small image in a small and in a large archive."""
    predictor, costs = Predictor(small_network(), device="cpu"), []
    for n in SIZES:
        _write_archive(folder / f"archive-{n}", n)
        costs.append(_scored(predictor, folder / f"archive-{n}", folder / f"scores-{n}") / n)
    name = f"score, an image of {SIZES[-1]:,} small ones"
    return within(name, costs[-1], 1.1 * costs[0], unit="s", against=f"1.1 times one of {SIZES[0]:,}")


def small_network() -> Model:
    torch.manual_seed(0)
    network = NetworkConfig(backbone="mobilenetv3_small_050", weights="none", image_size=SIDE, embedding=64)
    state = build_network(network, lazy_predict.CLASSES).network.state_dict()
    framing = Framing(height=SIDE, width=SIDE)
    encoder = Encoder(network=network, transform=EvalTransform(size=SIDE, framing=framing), state=state)
    rng = np.random.default_rng(0)
    bank = PrototypeBank.fit(rng.normal(size=(200, 64)).astype(np.float32), np.arange(200) % lazy_predict.CLASSES)
    prior = torch.full((lazy_predict.CLASSES,), 1 / lazy_predict.CLASSES, dtype=torch.float64)
    decision = Decision(bank=bank, thresholds=GateThresholds(0.9, 0.0, 0.0, 0.0, 0.1), prior=prior)
    names = tuple("abcdefg")
    return Model(decision=decision, class_names=names, classifier=encoder, retrieval=None, thumbnails={}, identity={})


def _picture(number: int) -> bytes:
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    buffer = io.BytesIO()
    coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def _write_archive(folder: Path, n: int) -> None:
    folder.mkdir()
    pictures = [_picture(i) for i in range(500)]
    for start in range(0, n, SHARD):
        with tarfile.open(folder / f"{start:07d}.tar", "w") as shard:
            for i in range(start, min(start + SHARD, n)):
                info = tarfile.TarInfo(f"{i:07d}.jpg")
                info.size = len(pictures[i % len(pictures)])
                shard.addfile(info, io.BytesIO(pictures[i % len(pictures)]))


def _scored(predictor: Predictor, archive: Path, out: Path) -> float:
    plan = Plan(
        model="", class_names=predictor.model.class_names, source=str(archive), engine="torch", mode="lazy",
        embeddings=False, part_size=2048,
    )  # fmt: skip
    start = _processor_seconds()
    folder = ScoreFolder.join(out, plan, lambda: list_source(str(archive)))
    score_parts(predictor, folder, folder.parts())
    checked = folder.check()
    assert checked.complete
    assert not checked.broken
    return _processor_seconds() - start


def _processor_seconds() -> float:
    time.sleep(0.1)  # workers that ended are counted once they were waited for
    of_children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + of_children.ru_utime + of_children.ru_stime
