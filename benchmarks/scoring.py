"""``score`` on many small images against prediction alone, the cost of an image as an archive grows, and Ray.

Scoring adds a list, fetching, Parquet parts and their checksums to prediction. Seconds are the processor's, of a
command and every process that it starts. ``TDUMPRA_IMAGES`` is the size of the large archive. The row of Ray needs the
extra ``ray``; it compares what one more image costs, since a cluster takes its time to start.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

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

SIZES = (2_000, int(os.environ.get("TDUMPRA_IMAGES", "200000")))
SIDE, SHARD = 64, 1_000
ON_RAY, PART = (512, 2_560), 256  # photographs: a part for each of two workers, which start with it, and many


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        rows = [_against_prediction(Path(folder)), *_growth(Path(folder))]
        return [*rows, _on_ray(Path(folder))] if importlib.util.find_spec("ray") else rows


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


def _growth(folder: Path) -> list[Row]:
    """The cost of a small image in a small and in a large archive, and the memory of the command."""
    model, spent = folder / "small.safetensors", []
    small_network().write(model)
    for n in SIZES:
        _write_archive(folder / f"archive-{n}", n)
        spent.append(_command(model, folder / f"archive-{n}", folder / f"scores-{n}"))
    few, many = spent
    start = _command(model, folder / f"archive-{SIZES[0]}", folder / f"scores-{SIZES[0]}")  # which is complete already
    costs = [(each.seconds - start.seconds) / n for each, n in zip(spent, SIZES, strict=True)]
    name, of = f"score, an image of {SIZES[-1]:,} small ones", f"of {SIZES[0]:,}"
    return [
        within(name, costs[-1], 1.1 * costs[0], unit="s", against=f"1.1 times one {of}"),
        within(f"{name}: memory", many.memory, 1.25 * few.memory, unit="GiB", against=f"1.25 times that {of}"),
    ]


def _on_ray(folder: Path) -> Row:
    """Photographs of the usual size: one more of them on a Ray cluster of two workers, and on this machine."""
    model, costs = folder / "two.safetensors", []
    lazy_predict.two_networks().write(model)
    for engine in ("local", "ray"):
        spent = []
        for n in ON_RAY:
            table = folder / f"{n}.csv"
            lines = [f"{i},photographs/{i % lazy_predict.DISTINCT:04}.jpg" for i in range(n)]
            table.write_text("id,image\n" + "\n".join(lines) + "\n")
            options = ("--part-size", str(PART), "--engine", engine, "--device", "cpu")
            spent.append(_command(model, table, folder / f"{engine}-{n}", *options).seconds)
        costs.append((spent[1] - spent[0]) / (ON_RAY[1] - ON_RAY[0]))
    share = costs[0] / costs[1]
    return Row(
        name="score on Ray, one more photograph", ours=costs[1], peer=costs[0], ratio=share, goal="≥ 0.8 × its speed",
        met=share >= 0.8, unit="s", against="the local engine",
    )  # fmt: skip


class Spent(NamedTuple):
    """What a command took, with the processes that it started."""

    seconds: float  # of the processor
    memory: float  # GiB, of the command itself at its peak


def _command(model: Path, source: Path, out: Path, *options: str) -> Spent:
    """Run ``tdumpra score`` and watch it: workers of a cluster are nobody's children in the end."""
    words = ["score", model, source, "--out", out, *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "tdumpra", *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    family, peak = {process.pid: 0}, 0
    ticks = os.sysconf("SC_CLK_TCK")
    while process.poll() is None:
        for place in Path("/proc").iterdir():
            if place.name.isdecimal():
                try:
                    fields = (place / "stat").read_text().rpartition(")")[2].split()
                    if int(place.name) in family or int(fields[1]) in family:
                        family[int(place.name)] = sum(map(int, fields[11:13]))
                except OSError:  # it has ended
                    continue
        with contextlib.suppress(OSError, StopIteration):
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peak = max(peak, int(next(line for line in status if line.startswith("VmHWM")).split()[1]))
        time.sleep(0.02)
    assert process.returncode == 0, words
    return Spent(sum(family.values()) / ticks, peak / 2**20)


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
