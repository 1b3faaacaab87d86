"""Hostile images: each costs no more than the limits, and none ends a command."""

from __future__ import annotations

import csv
import functools
import io
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hostile_images import write_hostile
from PIL import Image
from tests.campaigns.record import Tally, attempts

from tdumpra.data.images.decode import decode_file
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.workers import Died, in_order
from tdumpra.errors import BrokenImageError
from tdumpra.limits import MIB

SECONDS, MEMORY = 2, 256 * MIB
RESERVED = 16 * MIB  # addresses that a worker has from the start without using them: the limit cannot see their use
LIMITS = f"image_seconds={SECONDS}, image_memory={MEMORY - RESERVED}"
FRAMING = Framing(height=32, width=32)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of processes are Linux's")


class Cost(NamedTuple):
    """What became of an image, in its worker process."""

    refused: str
    seconds: float
    memory: int  # bytes above what the process has from the start


def resident(name: str) -> int:
    """Return a figure of this process's memory in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


@functools.cache
def base(process: int) -> tuple[int, int]:
    """Return what a worker has before its first image: memory in all, and pages of libraries, which all share."""
    return resident("VmRSS"), resident("RssFile")


def look(path: Path) -> Cost:
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    (before, shared), started = base(os.getpid()), time.process_time()
    refused = ""
    try:
        FRAMING.apply(decode_file(path))
    except BrokenImageError as error:
        refused = str(error)
        assert refused
        assert "\n" not in refused
    memory = resident("VmHWM") - before - (resident("RssFile") - shared)
    return Cost(refused, time.process_time() - started, memory)


@attempts(40, 1000)
def test_an_image_costs_no_more_than_the_limits(tmp_path, monkeypatch, attempts):
    monkeypatch.setenv("TDUMPRA_LIMITS", LIMITS)
    paths = list(write_hostile(tmp_path / "in", attempts, seed=8))
    tally, costs = Tally("images", "decoded in a worker"), list[Cost]()
    for path, found in zip(paths, in_order(look, paths, limited=True), strict=True):
        if isinstance(found, Died):
            tally.note("refused")
            told = "time" if "2 s" in found.reason else "memory" if "memory" in found.reason else "other"
            tally.figures[f"ended for {told}"] = tally.figures.get(f"ended for {told}", 0) + 1
            continue
        dear = found.seconds > SECONDS or found.memory > MEMORY
        tally.note("silently wrong" if dear else "refused" if found.refused else "read", f"{path.name}: {found}")
        costs.append(found)
    tally.figures["most seconds"] = round(max(each.seconds for each in costs), 2)
    tally.figures["most MiB"] = round(max(each.memory for each in costs) / MIB)
    tally.finish()


@attempts(40, 1000)
def test_no_image_ends_a_command(tdumpra, world, tmp_path, monkeypatch, attempts):
    """A sound image stands before and behind each hostile one, and all of them are predicted alike."""
    monkeypatch.setenv("TDUMPRA_LIMITS", LIMITS)
    folder = tmp_path / "in"
    sound = Image.fromarray(np.full((40, 40, 3), 77, np.uint8))
    hostile = list(write_hostile(folder, attempts, seed=9))
    for path in hostile:
        sound.save(path.with_name(f"{path.stem}-good.png"))
    done = tdumpra("predict", world.images, folder, "--csv")
    assert done.code == 0, done.err
    rows = {Path(row["path"]).name: row for row in csv.DictReader(io.StringIO(done.out))}
    good = [row for name, row in rows.items() if name.endswith("-good.png")]
    tally = Tally("images", "tdumpra predict")
    alike = len(good) == attempts and len({row["label"] for row in good}) == 1 and not any(row["error"] for row in good)
    for path in hostile:
        refused = rows[path.name]["error"]
        tally.note(("refused" if refused else "read") if alike else "silently wrong", path.name)
    tally.finish()
