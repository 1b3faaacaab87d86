"""Accuracy over cost, where a first network asks a second one below a confidence: the figures of the cost curve.

    python -m benchmarks.cost OUTPUTS.npz ... --out docs/results/cost.json

Each file holds the outputs of one seed, or of one outer fold of a seed, as ``NAME-seed-S.npz`` or ``NAMEseedS.npz``:
``p``, ``p_second``, ``y``, ``split``, ``group``. Both networks get a temperature on the file's validation rows. Where
the first one's top probability is below theta, the mean of both counts, else the first alone. Theta is chosen on the
validation rows of all files: the smallest that keeps accuracy, balanced accuracy and macro-F1 within 0.2 points of
asking always. What a share of asked images costs, over the first network alone, is read from
``files-to-probabilities.json``: on a CPU the time from files to probabilities; on a GPU that of the networks' passes,
for many cores decode beside it and the second network hides behind them. Straight lines between the measured shares are
continued beyond the last.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.sites import REPLICATES, Array, calibrated, span
from tdumpra.artifacts import jsonable
from tdumpra.core.bootstrap import MetricSums, bootstrap_metrics, group_weights
from tdumpra.core.groups import lesion_numbers
from tdumpra.core.metrics import classification_metrics

THETA = (*(round(0.05 * step, 2) for step in range(20)), 1.01)  # the last asks always
SHOWN, TOLERANCE = ("accuracy", "balanced_accuracy", "macro_f1"), 0.002
RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


class Rows(NamedTuple):
    """Calibrated posteriors of both networks on some rows, and what they are judged by."""

    p: Array
    p_second: Array
    y: Array
    group: Array

    def at(self, theta: float) -> Array:
        """Return the posterior where the second network is asked below ``theta``."""
        asked = self.p.max(1) < theta
        return np.where(asked[:, None], (self.p + self.p_second) / 2, self.p)

    def asked(self, theta: float) -> float:
        """Return the share of rows below ``theta``."""
        return float((self.p.max(1) < theta).mean())


def read(path: Path) -> tuple[Rows, Rows]:
    """Return the validation and the test rows of a file."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in ("p", "p_second", "y", "split", "group")}
    p, second = (arrays[name].astype(np.float64) for name in ("p", "p_second"))
    y, split = arrays["y"].astype(np.int64), arrays["split"]
    choice = split == 1
    both = [
        calibrated(each[choice] / each[choice].sum(1, keepdims=True), y[choice], each / each.sum(1, keepdims=True))
        for each in (p, second)
    ]
    columns = (*both, y, arrays["group"])
    validation, test = (Rows(*(column[split == part] for column in columns)) for part in (1, 2))
    return validation, test


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several files as one."""
    return Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def curve(by_seed: Sequence[Rows]) -> dict[str, list[float]]:
    """Return the figures at each theta, mean over seeds."""
    found: dict[str, list[float]] = {"asked": [], **{name: [] for name in SHOWN}}
    for theta in THETA:
        figures = [classification_metrics(rows.at(theta), rows.y) for rows in by_seed]
        found["asked"].append(float(np.mean([rows.asked(theta) for rows in by_seed])))
        for name in SHOWN:
            found[name].append(float(np.mean([each[name] for each in figures])))
    return found


def chosen(validation: dict[str, list[float]]) -> int:
    """Return the place of the smallest theta that is as good as asking always, on validation rows."""
    enough = [all(validation[name][i] >= validation[name][-1] - TOLERANCE for name in SHOWN) for i in range(len(THETA))]
    return enough.index(True)


def differences(by_seed: Sequence[Rows], theta: float, other: float) -> dict[str, list[float]]:
    """Return how far asking below ``theta`` is ahead of asking below ``other``, with intervals."""
    found: dict[str, list[Array]] = {name: [] for name in SHOWN}
    for rows in by_seed:
        drawn = group_weights(lesion_numbers(rows.group, len(rows.y)), n_replicates=REPLICATES, seed=0)
        weights = [np.ones((len(rows.y), 1)), *drawn]
        one, two = (
            bootstrap_metrics(MetricSums.prepare(rows.at(each), rows.y).metrics, weights) for each in (theta, other)
        )
        for name in SHOWN:
            found[name].append(one[name] - two[name])
    return {name: span(parts) for name, parts in found.items()}


def measured(machine: str) -> list[tuple[float, float]]:
    """Return shares of images that were asked about, and how many times the first network's time they took."""
    rows = json.loads((RESULTS / machine / "files-to-probabilities.json").read_text(encoding="utf-8"))["rows"]
    shares = [int(re.findall(r"(\d+)% of rows", row["name"])[0]) / 100 for row in rows]
    from_files = [(share, row["ratio"]) for share, row in zip(shares, rows, strict=True) if "cost of" in row["name"]]
    if machine == "cpu":
        return [(0.0, 1.0), *from_files]
    seconds = [re.findall(r"bare passes ([\d.]+) s", row["against"]) for row in rows]
    (x0, y0), (x1, y1) = [(share, float(said[0])) for share, said in zip(shares, seconds, strict=True) if said]
    alone = y0 - x0 * (y1 - y0) / (x1 - x0)  # what is left of a straight line where nobody is asked
    return [(0.0, 1.0), (x0, y0 / alone), (x1, y1 / alone)]


def times(machine: str, share: float) -> float:
    """Return the cost of a share of asked images, in the first network's time."""
    points = measured(machine)
    (x0, y0), (x1, y1) = next(
        (pair for pair in itertools.pairwise(points) if share <= pair[1][0]), (points[-2], points[-1])
    )
    return y0 + (share - x0) * (y1 - y0) / (x1 - x0)


def study(files: Sequence[Path]) -> dict[str, Any]:
    """Return everything that the page shows."""
    seeds: dict[str, list[tuple[Rows, Rows]]] = {}
    for path in files:
        named = re.search(r"seed-?(\d+)", path.stem)
        if named is None:
            raise SystemExit(f"{path.name} does not name its seed")
        seeds.setdefault(named[1], []).append(read(path))
    validation, test = ([joined([pair[part] for pair in pairs]) for pairs in seeds.values()] for part in (0, 1))
    curves = {"validation": curve(validation), "test": curve(test)}
    place = chosen(curves["validation"])
    for found in curves.values():
        found |= {machine: [times(machine, share) for share in found["asked"]] for machine in ("h200", "cpu")}
    return {
        "seeds": len(seeds),
        "images": {"validation": sum(len(rows.y) for rows in validation), "test": sum(len(rows.y) for rows in test)},
        "theta": THETA,
        "curves": curves,
        "chosen": place,
        "to_always": differences(test, THETA[place], THETA[-1]),
        "to_never": differences(test, THETA[place], THETA[0]),
        "measured": {machine: measured(machine) for machine in ("h200", "cpu")},
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    shown = " ".join(path.name for path in arguments.files)
    document = {"command": f"python -m benchmarks.cost {shown} --out {arguments.out}", **study(arguments.files)}
    arguments.out.write_text(json.dumps(jsonable(document), separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
