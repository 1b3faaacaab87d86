"""Peak memory of ``tdumpra predict`` on many files, against its peak on a tenth of them.

``--csv`` and ``--json`` print each prediction and forget it, so that memory must not grow with their number. Each
measurement is a process of its own; ``PREDICT_MEMORY_FILES`` asks for another number of files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks import scoring
from benchmarks.common import Row, within

FILES, DISTINCT, SIDE = int(os.environ.get("PREDICT_MEMORY_FILES", "20000")), 200, 96
GROWTH = 1.1
# Runs the command and says what the process itself held at most, in KiB; its workers are processes of their own. (What
# getrusage tells goes on from the process that started it.)
CHILD = """
import sys
from tdumpra.cli.main import main
try:
    main()
finally:
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    print(line.split()[1], file=sys.stderr)
"""


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model.safetensors"
        scoring.small_network().write(model)
        many, few = _photographs(folder / "many", FILES), _photographs(folder / "few", FILES // 10)
        return [_row(model, many, few, form) for form in ("--csv", "--json")]


def _photographs(folder: Path, count: int) -> Path:
    """Write small JPEGs; links stand for those beyond the distinct ones."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        if i >= DISTINCT:
            (folder / f"{i:06}.jpg").hardlink_to(folder / f"{i % DISTINCT:06}.jpg")
            continue
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / f"{i:06}.jpg")
    return folder


def _row(model: Path, many: Path, few: Path, form: str) -> Row:
    large, small = (_peak(model, folder, form) for folder in (many, few))
    name = f"predict {form}, peak memory on {FILES:,} files"
    return within(name, large, GROWTH * small, unit="MiB", against=f"{GROWTH:g} times that on {FILES // 10:,}")


def _peak(model: Path, folder: Path, form: str) -> float:
    command = [sys.executable, "-c", CHILD, "predict", str(model), str(folder), form]
    done = subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return int(done.stderr.split()[-1]) / 1024
