"""``tdumpra validate`` against ``tdumpra predict`` on the same photographs: processor time of the two commands.

Both start, load an EfficientNet-Lite0 with random weights, decode, resize and predict; ``validate`` then scores with
1,000 replicates, and compares with the model's record. Whole commands, with their worker processes, so that nothing
that a user waits for is left out.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.common import Row, within
from benchmarks.cpu_serving import CLASSES, WIDTH, _model
from tdumpra.method.record import BankRecipe, Record
from tdumpra.method.rows import KeptRows

IMAGES, SIDE = int(os.environ.get("IMAGES", "2000")), (450, 600)  # as HAM10000's
LIMIT = 1.15  # of what prediction costs


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        model, images = _write_model(Path(folder)), _write_photographs(Path(folder) / "images")
        ours, theirs = (
            min(_seconds(command, model, place) for _ in range(2))
            for command, place in (("validate", f"folder:{images}"), ("predict", str(images)))
        )
    name = f"validate, {IMAGES:,} photographs, Lite0"
    return [within(name, ours, LIMIT * theirs, unit="s", against=f"{LIMIT} × predict on the same photographs")]


def _rows(n: int, place: str) -> KeptRows:
    rng = np.random.default_rng(len(place))
    names = np.array([f"{place} {i}" for i in range(n)])
    return KeptRows(
        ids=names, groups=names, y=np.arange(n) % CLASSES, p=rng.dirichlet(np.ones(CLASSES), n).astype(np.float32),
        z=rng.normal(size=(n, WIDTH)).astype(np.float32), colours=rng.random((n, 6)).astype(np.float32),
    )  # fmt: skip


def _write_model(folder: Path) -> Path:
    model = _model(("tf_efficientnet_lite0",))
    record = Record.keep(_rows(7000, "train"), _rows(800, "validation"), BankRecipe(5, 0, 0.999))
    bank = record.rebuild_bank(model.class_names)
    replace(model, record=record, decision=replace(model.decision, bank=bank)).write(folder / "model.safetensors")
    return folder / "model.safetensors"


def _write_photographs(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    for i in range(IMAGES):
        place = folder / "abcdefg"[i % CLASSES] / f"{i}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (8, 10, 3), dtype=np.uint8))
        coarse.resize(SIDE[::-1], Image.Resampling.BICUBIC).save(place, quality=90)
    return folder


def _seconds(command: str, model: Path, images: str) -> float:
    """Return the processor time of a command and of the processes that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "tdumpra", command, str(model), images, "--json", "--device", "cpu"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    print(run())
