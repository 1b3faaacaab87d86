"""Accuracy over cost, where a first network asks a second one below a confidence: the figures of the cost curve.

    python -m benchmarks.cost OUTPUTS.npz ... [--theta 0.75] --out docs/results/cost.json

Each file holds the outputs of one outer fold of a seed: ``p``, ``p_second``, ``y``, ``split``, ``group``; what the file
has of other seeds is kept. Both networks get a temperature on the file's validation rows. Where the first one's top
probability is below theta, the mean of both counts, else the first alone. Theta is chosen on the validation rows of all
files: the smallest that keeps accuracy, balanced accuracy and macro-F1 within 0.2 points of asking always. With
``--theta`` it was chosen before, on another seed, and what these rows would choose is told beside it.

What a share of asked images costs, over the first network alone, is read from ``files-to-probabilities.json`` where it
is shown: on a CPU the time from files to probabilities; on a GPU that of the networks' passes, for many cores decode
beside it and the second network hides behind them. Straight lines between the measured shares are continued beyond the
last; the first network alone on a GPU is where the line through them meets no share at all.
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

from benchmarks.common import add_to, seed_of
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


def curve(rows: Rows) -> dict[str, list[float]]:
    """Return the figures at each theta."""
    found: dict[str, list[float]] = {"asked": [rows.asked(theta) for theta in THETA], **{name: [] for name in SHOWN}}
    for theta in THETA:
        figures = classification_metrics(rows.at(theta), rows.y)
        for name in SHOWN:
            found[name].append(float(figures[name]))
    return found


def chosen(validation: dict[str, list[float]]) -> int:
    """Return the place of the smallest theta that is as good as asking always, on validation rows."""
    enough = [all(validation[name][i] >= validation[name][-1] - TOLERANCE for name in SHOWN) for i in range(len(THETA))]
    return enough.index(True)


def differences(rows: Rows, theta: float, other: float) -> dict[str, list[float]]:
    """Return how far asking below ``theta`` is ahead of asking below ``other``, with intervals over lesions."""
    drawn = group_weights(lesion_numbers(rows.group, len(rows.y)), n_replicates=REPLICATES, seed=0)
    weights = [np.ones((len(rows.y), 1)), *drawn]
    one, two = (
        bootstrap_metrics(MetricSums.prepare(rows.at(each), rows.y).metrics, weights) for each in (theta, other)
    )
    return {name: span([one[name] - two[name]]) for name in SHOWN}


def measured(machine: str) -> list[tuple[float, float]]:
    """Return shares of images that were asked about, and how many times the first network's time they took."""
    rows = json.loads((RESULTS / machine / "files-to-probabilities.json").read_text(encoding="utf-8"))["rows"]
    shares = [int(re.findall(r"(\d+)% of rows", row["name"])[0]) / 100 for row in rows]
    if machine == "cpu":
        of_files = [(share, row["ratio"]) for share, row in zip(shares, rows, strict=True) if "cost of" in row["name"]]
        return [(0.0, 1.0), *of_files]
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


def study(files: Sequence[Path], theta: float | None) -> dict[str, Any]:
    """Return everything that the page shows of one seed; without ``theta``, its validation rows choose."""
    validation, test = (joined(parts) for parts in zip(*map(read, files), strict=True))
    curves = {"validation": curve(validation), "test": curve(test)}
    own = chosen(curves["validation"])
    place = own if theta is None else THETA.index(theta)
    return {
        "images": {"validation": len(validation.y), "test": len(test.y)},
        "theta": THETA,
        "curves": curves,
        "chosen": place,
        "validation_chooses": own,
        "to_always": differences(test, THETA[place], THETA[-1]),
        "to_never": differences(test, THETA[place], THETA[0]),
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--theta", type=float, choices=THETA, metavar="THETA", help="chosen before, on another seed")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    given = "" if arguments.theta is None else f" --theta {arguments.theta:g}"
    shown = " ".join(path.name for path in arguments.files)
    command = f"python -m benchmarks.cost {shown}{given} --out {arguments.out}"
    found = {"seed": seed_of(arguments.files), "command": command, **study(arguments.files, arguments.theta)}
    add_to(arguments.out, [jsonable(found)], ("seed",))


if __name__ == "__main__":
    main()
