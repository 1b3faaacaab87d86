"""The headline of the study on HAM10000: each row of the table, its figures, and how far rows with a bank are ahead.

    python -m benchmarks.headline POSTERIORS.npz ... --out docs/results/ham10000/folds/headline.json

Each file holds one seed's probabilities on the same test images (:mod:`benchmarks.posteriors`), and nothing else is
read. A figure is the mean over seeds; intervals are 95 %, and draw lesions and seeds. ``by_seed`` has each seed by
itself, with intervals that draw lesions.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.posteriors import ROWS
from benchmarks.sites import MELANOMA, REPLICATES, SHOWN, span
from tdumpra.artifacts import jsonable
from tdumpra.core.bootstrap import Draws, MetricSums, bootstrap_metrics, point_name
from tdumpra.core.groups import lesion_numbers
from tdumpra.core.metrics import sensitivity_at_specificity
from tdumpra.core.significance import sign_flip_test

Array = np.ndarray
SPECIFICITIES = tuple(np.round(np.arange(0.80, 0.951, 0.01), 2).tolist())
WITHOUT_BANK = (*ROWS[:6], "asked")  # with one view of each image
WITH_BANK = ROWS[6:]
BAR = ("accuracy", "balanced_accuracy", "melanoma_at_90")


class Tested(NamedTuple):
    """The test images, which all seeds share, and what the seeds were asked at."""

    y: Array
    lesion: Array
    fold: Array
    melanoma: int
    theta: float


Posteriors = dict[str, Array]  # of one seed, row by row


def read(files: Sequence[Path]) -> tuple[Tested, list[Posteriors], dict[str, float]]:
    """Return the test images, each seed's posteriors, and the shares of images that two rows ask about."""
    seeds: list[dict[str, Array]] = []
    for path in files:
        with np.load(path, allow_pickle=False) as file:
            seeds.append({name: file[name] for name in file.files})
    first = seeds[0]
    for path, each in zip(files, seeds, strict=True):
        if any(not np.array_equal(each[name], first[name]) for name in ("image", "lesion", "y", "fold", "theta")):
            raise SystemExit(f"{path} and {files[0]} differ in their test images, or in theta")
    test = Tested(
        first["y"].astype(np.int64), first["lesion"], first["fold"], first["classes"].tolist().index(MELANOMA),
        float(first["theta"]),
    )  # fmt: skip
    names = [name for name, column in first.items() if column.ndim == 2]
    posteriors = [{name: each[name].astype(np.float64) for name in names} for each in seeds]
    gates = [each["gate_theta"][test.fold] for each in seeds]
    asked = {
        "asked": float(np.mean([(p["asked"] != p["temperature"]).any(1) for p in posteriors])),
        "gate": float(np.mean([p["temperature"].max(1) < at for p, at in zip(posteriors, gates, strict=True)])),
    }
    return test, posteriors, asked


def replicates(p: Array, y: Array, draws: Draws, melanoma: int) -> dict[str, Array]:
    """Return each figure of a posterior: as it is, and then in each replicate."""
    weights = itertools.chain([np.ones((len(y), 1))], draws.weights())
    found = bootstrap_metrics(MetricSums.prepare(p, y, points={melanoma: (0.9,)}).metrics, weights)
    found["melanoma_at_90"] = found[point_name(melanoma, 0.9)]
    return {name: found[name] for name in SHOWN}


def document(test: Tested, seeds: Sequence[Posteriors]) -> dict[str, Any]:
    """Return the figures of all rows, and the differences of rows with a bank from those without."""
    y = test.y
    draws = Draws.make(lesion_numbers(test.lesion, len(y)), n_replicates=REPLICATES, seed=0)
    found = {name: [replicates(posteriors[name], y, draws, test.melanoma) for posteriors in seeds] for name in seeds[0]}
    rows = {name: {metric: span([each[metric] for each in found[name]]) for metric in SHOWN} for name in found}
    leads: dict[str, Any] = {}
    for name in (*WITH_BANK, "asked"):
        leads[name] = {}
        for rival in (each for each in WITHOUT_BANK if each != name):
            pairs = list(zip(found[name], found[rival], strict=True))
            ahead = {metric: [own[metric] - other[metric] for own, other in pairs] for metric in SHOWN}
            leads[name][rival] = {
                **{metric: span(parts) for metric, parts in ahead.items()},
                "by_seed": {metric: [span([part]) for part in ahead[metric]] for metric in BAR},
                "by_fold": [by_fold(p[name], p[rival], test) for p in seeds],
            }
    return {
        "images": len(y), "lesions": len(np.unique(test.lesion)), "folds": len(np.unique(test.fold)),
        "seeds": len(seeds),
        "rows": rows,
        "by_seed": {name: {metric: [span([each[metric]]) for each in of] for metric in SHOWN}
                    for name, of in found.items()},
        "best_without_bank": {metric: max(WITHOUT_BANK, key=lambda name: rows[name][metric][0]) for metric in BAR},
        "leads": leads,
        "gate": moved([p["temperature"] for p in seeds], [p["gate"] for p in seeds], test),
        "roc": {name: np.mean([roc(p[name], test) for p in seeds], axis=0).tolist() for name in seeds[0]},
        "specificities": SPECIFICITIES,
    }  # fmt: skip


def roc(p: Array, test: Tested) -> list[float]:
    """Return the sensitivity for melanoma at each specificity."""
    found = test.y == test.melanoma
    return [sensitivity_at_specificity(p[:, test.melanoma], found, at)[0] for at in SPECIFICITIES]


def by_fold(p: Array, other: Array, test: Tested) -> dict[str, list[float]]:
    """Return how far one row is ahead of another in each fold."""
    y = test.y
    right = [(each.argmax(1) == y).astype(float) for each in (p, other)]
    ahead = right[0] - right[1]
    inside = [test.fold == k for k in np.unique(test.fold)]
    return {
        "accuracy": [float(ahead[rows].mean()) for rows in inside],
        "balanced_accuracy": [float(np.mean([ahead[rows & (y == c)].mean() for c in np.unique(y)])) for rows in inside],
    }


def moved(before: Sequence[Array], after: Sequence[Array], test: Tested) -> dict[str, Any]:
    """Return what a gate fixed and broke on each seed, and the p-value of all seeds together, over lesions."""
    was, became = ([p.argmax(1) == test.y for p in each] for each in (before, after))
    gained = np.sum([new.astype(int) - old for old, new in zip(was, became, strict=True)], axis=0)
    by_lesion = np.bincount(lesion_numbers(test.lesion, len(test.y)), weights=gained).astype(np.int64)
    return {
        "fixed": [int((new & ~old).sum()) for old, new in zip(was, became, strict=True)],
        "broken": [int((old & ~new).sum()) for old, new in zip(was, became, strict=True)],
        "sign_flip_p": sign_flip_test(by_lesion[by_lesion != 0]),
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("posteriors", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    test, seeds, asked = read(arguments.posteriors)
    told = {"theta": test.theta, "asked": asked, **document(test, seeds)}
    arguments.out.write_text(json.dumps(jsonable(told), separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
