"""``score`` on many small images against prediction alone, the cost of an image as an archive grows, and Ray.

Scoring adds a list, fetching, Parquet parts and their checksums to prediction. Seconds are the processor's, of a
command and every process that it starts. ``TDUMPRA_IMAGES`` is the size of the large archive. The row of Ray needs the
extra ``ray``; it compares what one more image costs, since a cluster takes its time to start.

What is compared runs in turns, each first as often as the other, and the median counts: the first runs of a process are
slower by more than scoring adds, and so is whatever runs while the machine does something else.
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
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
PHOTOGRAPHS, TURNS = 512, 6
ON_RAY, PART, TURNS_ON_RAY = (512, 4_608), 256, 4  # a part for each of two workers, which start with it, and many


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        rows = [_against_prediction(Path(folder)), *_growth(Path(folder))]
        return [*rows, _on_ray(Path(folder))] if importlib.util.find_spec("ray") else rows


def _against_prediction(folder: Path) -> Row:
    """Photographs of the usual size through a real network: what scoring adds to prediction, once both are warm."""
    (folder / "photographs").mkdir()
    lazy_predict.photographs(folder / "photographs")
    files = [folder / "photographs" / f"{i % lazy_predict.DISTINCT:04}.jpg" for i in range(PHOTOGRAPHS)]
    table = _table(folder, PHOTOGRAPHS)
    predictor = Predictor(lazy_predict.two_networks(), device="cpu")

    def predicted(turn: int) -> float:
        start = _processor_seconds()
        assert all(each.error is None for each in predictor.predict(files))
        return _processor_seconds() - start

    def scored(turn: int) -> float:
        return _scored(predictor, table, folder / f"scored-{turn}")

    ours, bare = _in_turns(scored, predicted, turns=TURNS, warm_up=True)
    return _share(f"score, {PHOTOGRAPHS} photographs", ours, bare, 0.9, "prediction of the same files")


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
    model = folder / "two.safetensors"
    lazy_predict.two_networks().write(model)

    def one_more(engine: str, turn: int) -> float:
        few, many = (
            _command(
                model, _table(folder, n), folder / f"{engine}-{n}-{turn}",
                "--part-size", str(PART), "--engine", engine, "--device", "cpu",
            ).seconds
            for n in ON_RAY
        )  # fmt: skip
        return (many - few) / (ON_RAY[1] - ON_RAY[0])

    ours, local = _in_turns(partial(one_more, "ray"), partial(one_more, "local"), turns=TURNS_ON_RAY)
    return _share("score on Ray, one more photograph", ours, local, 0.8, "the local engine")


def _in_turns(
    ours: Callable[[int], float], peer: Callable[[int], float], *, turns: int, warm_up: bool = False
) -> tuple[float, float]:
    """Return the median of what each measures, the one first and then the other."""
    found: dict[Callable[[int], float], list[float]] = {ours: [], peer: []}
    for turn in range(-warm_up, turns):
        for measure in (ours, peer) if turn % 2 else (peer, ours):
            found[measure].append(measure(turn))
    return median(found[ours][warm_up:]), median(found[peer][warm_up:])


def _share(name: str, ours: float, peer: float, at_least: float, against: str) -> Row:
    return Row(
        name=name, ours=ours, peer=peer, ratio=peer / ours, goal=f"≥ {at_least:g} × its speed",
        met=peer / ours >= at_least, unit="s", against=against,
    )  # fmt: skip


def _table(folder: Path, n: int) -> Path:
    """Write a list of ``n`` photographs, each of them several times."""
    table = folder / f"{n}.csv"
    lines = [f"{i},photographs/{i % lazy_predict.DISTINCT:04}.jpg" for i in range(n)]
    table.write_text("id,image\n" + "\n".join(lines) + "\n")
    return table


class Spent(NamedTuple):
    """What a command took, with the processes that it started."""

    seconds: float  # of the processor
    memory: float  # GiB, of the command itself at its peak


def _command(model: Path, source: Path, out: Path, *options: str) -> Spent:
    """Run ``tdumpra score`` and watch it: workers of a cluster are nobody's children in the end.

    It has as many threads as it likes. With one, the local engine would run one pass at a time where two workers of Ray
    run two, and two passes on two cores that share a cache take more of the processor each.
    """
    words = ["score", model, source, "--out", out, *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "tdumpra", *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
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
        time.sleep(0.05)
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
