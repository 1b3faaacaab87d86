"""How time and memory grow with the rows: ``attach`` and ``DualPathClassifier`` on seeded arrays, in child processes.

python benchmarks/large_arrays.py [ROWS ...] [--classes 8] [--width 128] [--out FILE]

The inputs are written once to a temporary folder, and a child's memory is the most that it held at any time, less what
the inputs take in memory. Seconds are those of the processor, so that a busy machine does not change them much.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.common import Row, add_to, within

ROWS = (10_000, 100_000, 1_000_000, 5_000_000)
LIMIT = 1.5  # GiB above the inputs
SHARES = (0.6, 0.2, 0.2)  # of train, val and test
_COLUMNS = ("p", "z", "y", "split", "group")
_BLOCK = 100_000
_GIB = 2**30
_LOOK_EVERY = 0.05  # seconds


def run() -> list[Row]:
    """Measure up to a million rows: five million take a quarter of an hour, and 8 GiB of memory and disk."""
    rows = []
    for found in measure(ROWS[:3]):
        name = f"{found['what']}, {found['rows']:,} rows: memory above the inputs"
        rows.append(within(name, found["above_inputs_gib"], LIMIT, unit="GiB", against="1.5 GiB"))
    return rows


def measure(sizes: tuple[int, ...], *, n_classes: int = 8, width: int = 128) -> list[dict[str, Any]]:
    """Measure both ways in, one size after the other."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            path = Path(folder) / f"{n}.npz"
            write_inputs(path, n, n_classes=n_classes, width=width)
            held = path.stat().st_size  # nothing in it is compressed
            arrays = _unpacked(path, Path(folder) / f"{n}")
            children = {
                "attach": [
                    sys.executable,
                    "-m",
                    "tdumpra",
                    "attach",
                    str(path),
                    "--no-report",
                    "--out",
                    f"{folder}/{n}-out",
                ],
                "DualPathClassifier": [sys.executable, __file__, "--child", str(arrays)],
            }
            for what, command in children.items():
                found.append(
                    {"what": what, "rows": n, "classes": n_classes, "width": width, **_child(command, held, n)}
                )
                print(json.dumps(found[-1]), flush=True)
            path.unlink()
            for each in arrays.iterdir():
                each.unlink()
    return found


def write_inputs(path: Path, n: int, *, n_classes: int, width: int, seed: int = 0) -> None:
    """Write outputs of a classifier that retrieval can help, some rows at a time: a stored, not a packed, archive."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, n_classes + 1) ** 0.5
    centres = rng.normal(size=(n_classes, width)).astype(np.float32)
    y = rng.choice(n_classes, n, p=share / share.sum())
    group = np.sort(rng.integers(0, 3 * n // 4, n))
    split = np.searchsorted(np.cumsum(SHARES)[:2] * 3 * n / 4, group, side="right")  # no group in two splits
    columns = {
        "p": ((n, n_classes), lambda rows: _posterior(rng, y[rows], n_classes)),
        "z": (
            (n, width),
            lambda rows: centres[y[rows]] + 4 * rng.normal(size=(len(y[rows]), width)).astype(np.float32),
        ),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, (shape, make) in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for start in range(0, n, _BLOCK):
                    file.write(np.ascontiguousarray(make(slice(start, start + _BLOCK)), np.float32).tobytes())
        names = np.char.add("g", np.char.mod("%07d", group))
        others: dict[str, np.ndarray] = {"y": y.astype(np.int16), "split": split.astype(np.int8), "group": names}
        for name, array in others.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _posterior(rng: np.random.Generator, y: np.ndarray, n_classes: int) -> np.ndarray:
    logits = rng.normal(size=(len(y), n_classes))
    logits[np.arange(len(y)), y] += 2
    grown = np.exp(logits)
    rows: np.ndarray = grown / grown.sum(1, keepdims=True)
    return rows


def _unpacked(path: Path, folder: Path) -> Path:
    """Lay the arrays beside each other as files that can be mapped."""
    folder.mkdir()
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return folder


def classifier_child(folder: Path) -> None:
    """Fit, tune and predict with arrays that are mapped from files."""
    import tdumpra

    p, z, y, split, group = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in _COLUMNS)
    train, val = (slice(*np.searchsorted(split, [code, code + 1])) for code in range(2))
    model = tdumpra.DualPathClassifier().fit(z[train], y[train], group[train])
    model.tune(p[val], z[val], y[val], group[val])
    labels = model.predict(p, z)
    print(f"accuracy {(labels == y).mean():.4f}")


def _child(command: list[str], held: int, n: int) -> dict[str, Any]:
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        most, ended = 0, 0
        while not ended:
            most = max(most, _most_held(child.pid))
            time.sleep(_LOOK_EVERY)
            ended, status, used = os.wait4(child.pid, os.WNOHANG)  # what this child alone used
        if os.waitstatus_to_exitcode(status):
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed: {said.read()[-2000:]}")
    processor = used.ru_utime + used.ru_stime
    return {
        "inputs_gib": round(held / _GIB, 3),
        "above_inputs_gib": round((most - held) / _GIB, 3),
        "processor_s": round(processor, 1),
        "seconds": round(time.perf_counter() - start, 1),
        "microseconds_a_row": round(1e6 * processor / n, 1),
    }


def _most_held(process: int) -> int:
    """Return the most bytes that a process has held in memory; 0 for one that has ended.

    What the system tells when a child has ended is no less than the most that its parent held before.
    """
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return 1024 * int(found[1]) if found else 0


def main() -> None:
    """Measure the sizes that are asked for, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="*", type=int, default=ROWS)
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--out", type=Path, help="a JSON file; what it has of other sizes stays")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child is not None:
        classifier_child(asked.child)
        return
    found = measure(tuple(asked.rows), n_classes=asked.classes, width=asked.width)
    if asked.out is not None:
        add_to(asked.out, found, ("what", "rows", "classes", "width"))


if __name__ == "__main__":
    main()
