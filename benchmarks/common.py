"""What the benchmarks share: a row of results, interleaved timing, and peak memory.

Ours and the peer are timed in turns within one process, and the best of each counts: a busy machine slows both.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict


class Row(TypedDict):
    """One comparison. ``ratio`` is how many times better ours is, or the share of a limit that it uses."""

    name: str
    ours: float
    peer: float
    ratio: float
    goal: str
    met: bool
    unit: str
    against: str


def best_times(
    *functions: Callable[[], Any], repeats: int = 5, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The shortest time of each function, after one warm-up each, in turns."""
    for function in functions:
        function()
    best = [float("inf")] * len(functions)
    for _ in range(repeats):
        for i, function in enumerate(functions):
            start = clock()
            function()
            best[i] = min(best[i], clock() - start)
    return best


def faster(name: str, ours: float, peer: float, *, at_least: float, against: str) -> Row:
    """A row that says how many times faster ours is than the peer."""
    ratio = peer / ours
    return Row(
        name=name, ours=ours, peer=peer, ratio=ratio, goal=f"≥ {at_least:g} ×", met=ratio >= at_least, unit="s",
        against=against,
    )  # fmt: skip


def within(name: str, used: float, limit: float, *, unit: str, against: str) -> Row:
    """A row that says how much of a limit is used."""
    return Row(
        name=name, ours=used, peer=limit, ratio=used / limit, goal="≤ 1 of it", met=used <= limit, unit=unit,
        against=against,
    )  # fmt: skip


def peak_memory(function: Callable[[], Any]) -> float:
    """GiB that ``function`` needs at its peak above what the process holds already (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status("VmRSS")
    result = function()
    peak = _status("VmHWM")
    del result
    return (peak - before) / 2**20


def add_to(path: Path, found: list[dict[str, Any]], keys: tuple[str, ...]) -> None:
    """Write what was found to a JSON file, in place of what is there of the same name under the same keys."""
    stored: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    joined: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in (*stored, *found):
        joined.setdefault(tuple(each[key] for key in keys), {}).update(each)
    path.write_text(json.dumps(list(joined.values()), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def seed_of(files: Sequence[Path]) -> int:
    """Return the seed that the names of all files end with: ``NAME-seed-S.npz`` or ``NAMEseedS.npz``."""
    found = {path.name: re.search(r"seed-?(\d+)$", path.stem) for path in files}
    seeds = {None if named is None else int(named[1]) for named in found.values()}
    if len(seeds) > 1 or None in seeds:
        raise SystemExit(f"{', '.join(found)}: files of one seed, which their names end with, are taken together")
    return int(seeds.pop() or 0)


def _status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])  # KiB
