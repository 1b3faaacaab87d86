"""The stages after training, and the demo, as shares of stated limits: processor time of all processes together.

Processor time is what a quiet machine takes on the clock where one core works at a time; what else runs disturbs it
less than the clock. ``evaluate`` (1,000 replicates) and ``report`` work on saved outputs of 2,167 test rows; the
demo trains, too, from an environment that has been used before. Each process has one thread: on a busy machine those
that wait for another would be counted as if they worked.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Row, within

ROWS = {"train": 7000, "val": 750, "test": 2167}
CLASSES, WIDTH = 7, 64
STAGES_LIMIT, DEMO_LIMIT = 20.0, 45.0  # seconds, on two cores


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        np.savez(folder / "outputs.npz", **_outputs())
        (folder / "run.toml").write_text('name = "run"\noutputs = ["outputs.npz"]\n')
        _processor_time(folder, "tune", "run.toml")
        stages = sum(_processor_time(folder, stage, "run.toml") for stage in ("evaluate", "report"))
        demo = _processor_time(folder, "demo", "--out", "demo")
    rows = f"{ROWS['test']:,} test rows"
    return [
        within(f"evaluate and report, {rows}", stages, STAGES_LIMIT, unit="s of processor time", against="a limit"),
        within("demo, from nothing to a report", demo, DEMO_LIMIT, unit="s of processor time", against="a limit"),
    ]


def _processor_time(folder: Path, *command: str) -> float:
    """Run a command of tdumpra in ``folder``; return the seconds that it and its processes computed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = os.pathsep.join([str(Path(__file__).resolve().parent.parent / "src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-m", "tdumpra", *command],
        cwd=folder, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _outputs() -> dict[str, Any]:
    """Outputs of a classifier that is right three times in four, and embeddings that know a little more."""
    rng = np.random.default_rng(0)
    split = np.repeat(list(ROWS), list(ROWS.values()))
    n = len(split)
    y = rng.choice(CLASSES, n, p=[0.03, 0.05, 0.11, 0.02, 0.11, 0.66, 0.02])
    logits = 1.5 * np.eye(CLASSES)[y] + rng.normal(size=(n, CLASSES))
    z = rng.normal(size=(CLASSES, WIDTH))[y] + 2 * rng.normal(size=(n, WIDTH))
    lesion = np.char.add(split, rng.integers(3 * n // 4, size=n).astype(str))  # no lesion on two sides
    names = np.char.add("image", np.arange(n).astype(str))
    return {
        "logits": logits.astype(np.float32), "z": z.astype(np.float32), "y": y, "split": split, "group": lesion,
        "id": names,
    }  # fmt: skip
