"""From files to final probabilities with two networks, the second of them lazy, where the share below theta varies.

Peers in the same run: decoding and framing alone in a plain pool of processes, the bare forward passes of the rows that
each network must see (on a CPU one on each core at a time), and the classifier alone from files. Thresholds are set so
that a known share of all images falls below theta; how many do so differs from batch to batch, as with real images.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.common import Row, best_times
from tdumpra.core.gate import GateThresholds
from tdumpra.data.images.decode import decode_file
from tdumpra.data.images.framing import EvalTransform, Framing
from tdumpra.data.images.workers import available_cores
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.networks.build import build_network
from tdumpra.networks.engine import usual_batch_size
from tdumpra.networks.model_file import Encoder, Model
from tdumpra.networks.passes import most_lanes, open_lanes
from tdumpra.networks.predict import Predictor
from tdumpra.runs.config import NetworkConfig

CLASSES, SHARES = 7, (0.22, 0.45)
FRAMING = Framing(height=192, width=256)
ON_GPU = torch.cuda.is_available()
FILES, DISTINCT, SIZE = (16384, 512, 224) if ON_GPU else (256, 128, 128)


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        paths = photographs(Path(folder))
        model = two_networks()
        predictor = Predictor(model)
        top = np.array([max(each.probabilities.values()) for each in predictor.predict(paths)])
        bare = [_forward_seconds(predictor, which) for which in ("classifier", "retrieval")]
        return [row for share in SHARES for row in _rows(model, paths, float(np.quantile(top, share)), *bare)]


def photographs(folder: Path) -> list[Path]:
    """Write JPEGs of a dermatoscope's usual size: smooth blotches under grain, no two alike."""
    rng = np.random.default_rng(0)
    for i in range(DISTINCT):
        blotches = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(
            (600, 450), Image.Resampling.BICUBIC
        )
        grain = rng.normal(0, 6, (450, 600, 3))
        pixels = np.clip(np.asarray(blotches) + grain, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:04}.jpg", quality=90)
    return [folder / f"{i % DISTINCT:04}.jpg" for i in rng.permutation(FILES)]


def two_networks() -> Model:
    encoders = []
    for name in ("tf_efficientnet_lite0", "tf_efficientnet_lite2"):
        torch.manual_seed(0)
        network = NetworkConfig(backbone=name, weights="none", image_size=SIZE, embedding=128)
        state = build_network(network, CLASSES).network.state_dict()
        encoders.append(Encoder(network=network, transform=EvalTransform(size=SIZE, framing=FRAMING), state=state))
    rng = np.random.default_rng(0)
    bank = PrototypeBank.fit(rng.normal(size=(200, 128)).astype(np.float32), np.arange(200) % CLASSES)
    prior = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
    decision = Decision(bank=bank, thresholds=GateThresholds.shut(), prior=prior)
    return Model(
        decision=decision, class_names=tuple("abcdefg"), classifier=encoders[0], retrieval=encoders[1], thumbnails={},
        identity={},
    )  # fmt: skip


def _rows(model: Model, paths: list[Path], theta: float, first: float, second: float) -> list[Row]:
    asking = replace(model.decision, thresholds=GateThresholds(theta, 0.0, 0.0, 0.0, 0.1))
    lazy, alone = Predictor(replace(model, decision=asking)), Predictor(model)

    def predicted(predictor: Predictor) -> None:
        assert sum(each.error is None for each in predictor.predict(paths)) == len(paths)

    predicted(lazy)  # to count the rows that it asks about
    share = lazy.rows_matched / lazy.rows_seen
    n_second = round(share * len(paths))
    bare = first * len(paths) + second * n_second
    with multiprocessing.get_context("fork").Pool(available_cores(), _one_thread) as pool:

        def decoded() -> None:
            assert sum(pool.imap(_decode, paths, chunksize=8)) == len(paths)

        ours, single, decoding = best_times(lambda: predicted(lazy), lambda: predicted(alone), decoded, repeats=3)
    limit, cost = 1.05 + share * second / first, ours / single
    slower = max(bare, decoding)
    name = f"{len(paths):,} files, {share:.0%} of rows below theta"
    return [
        Row(
            name=f"{name}, share of the slower of decoding and bare passes", ours=ours, peer=slower,
            ratio=slower / ours, goal="≥ 0.80 ×", met=slower / ours >= 0.8, unit="s",
            against=f"decoding {decoding:.2f} s, bare passes {bare:.2f} s",
        ),
        Row(
            name=f"{name}, cost of the second opinion", ours=ours, peer=single, ratio=cost, goal=f"≤ {limit:.2f} ×",
            met=cost <= limit, unit="s", against="the classifier alone, from the same files",
        ),
    ]  # fmt: skip


def _one_thread() -> None:
    torch.set_num_threads(1)


def _decode(path: Path) -> bool:
    """Decode and frame one file; its pixels stay in the process."""
    return FRAMING.apply(decode_file(path), None).shape == (FRAMING.height, FRAMING.width, 3)


def _forward_seconds(predictor: Predictor, which: str) -> float:
    """Return the seconds for each row of a network on full batches that are on the device already.

    On a CPU there is one on each core at a time, which is faster than all cores on one.
    """
    batch_size = usual_batch_size(predictor.device)
    engine = predictor._engine(batch_size, eager=False)
    chosen = getattr(engine, which)
    generator = torch.Generator().manual_seed(0)
    shape = (batch_size, FRAMING.height, FRAMING.width, 3)
    framed = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(engine.device)
    repeats = 30 if ON_GPU else 8 * most_lanes()

    def passes() -> None:
        for _ in range(repeats):
            engine._run(chosen, framed)
        torch.cuda.synchronize()

    def passes_in_lanes() -> None:
        for each in [lanes.submit(engine._run, chosen, framed) for _ in range(repeats)]:
            each.result()

    with open_lanes(most_lanes()) as lanes:
        (seconds,) = best_times(passes if ON_GPU else passes_in_lanes, repeats=3)
    return seconds / (repeats * batch_size)
