"""What is left at a site that the networks never saw: the figures behind docs/results/sites.md.

    python -m benchmarks.sites SITE=FILE.npz ... --out docs/results/sites.json

Several files of one SITE are seeds; what the file has of other sites is kept. Each holds outputs of networks trained
without the site: train and validation rows from home, test rows from there. Everything is chosen at home. For the
column "home", validation lesions are dealt into five folds, and each fold is judged by what the other four chose; for
"there", all of them choose. Intervals are 95 %, draw lesions and seeds again, and take home and there apart.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.common import add_to
from tdumpra.artifacts import jsonable
from tdumpra.core.bootstrap import (
    MetricSums,
    bootstrap_metrics,
    group_weights,
    over_drawn_seeds,
    percentile_interval,
    point_name,
)
from tdumpra.core.calibration import apply_temperature, fit_temperature
from tdumpra.core.groups import group_folds, lesion_numbers
from tdumpra.estimator import DualPathClassifier
from tdumpra.evaluation.gate_report import per_thousand

Array = np.ndarray
SHOWN = ("accuracy", "balanced_accuracy", "macro_f1", "ece", "nll", "melanoma_at_90")
FOLDS, REPLICATES, MELANOMA = 5, 1000, "mel"


class Rows(NamedTuple):
    """Rows of one split of a file."""

    p: Array
    z: Array
    y: Array
    group: Array
    p_second: Array | None

    def take(self, chosen: Array) -> Rows:
        """Return some of the rows."""
        second = None if self.p_second is None else self.p_second[chosen]
        return Rows(self.p[chosen], self.z[chosen], self.y[chosen], self.group[chosen], second)


class Judged(NamedTuple):
    """Posteriors of each row of the table on the same images, and where the gate opened."""

    rows: Rows
    posteriors: dict[str, Array]
    opened: Array


def read(path: Path) -> tuple[Rows, Rows, Rows, list[str]]:
    """Return a file's rows by split, and the names of its classes."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}

    def posterior(name: str) -> Array:
        p = np.asarray(arrays[name], np.float64)
        return np.asarray(p / p.sum(1, keepdims=True))

    z = arrays["zt" if "zt" in arrays else "z"].astype(np.float32)
    second = posterior("p_second") if "p_second" in arrays else None
    whole = Rows(posterior("p"), z, arrays["y"].astype(np.int64), arrays["group"], second)
    train, home, there = (whole.take(arrays["split"] == part) for part in range(3))
    return train, home, there, arrays["classes"].tolist()


def judged(train: Rows, chosen_on: Rows, rows: Rows, names: Sequence[str]) -> Judged:
    """Choose on some rows from home, and return what each row of the table says of others."""
    model = DualPathClassifier()
    model.fit(train.z, train.y, train.group, class_names=names)
    model.tune(chosen_on.p, chosen_on.z, chosen_on.y, chosen_on.group)
    decided = model.decision_.decide(torch.from_numpy(rows.p), torch.from_numpy(rows.z))
    cls, sim, gate = (p.double().numpy() for p in (decided.p_cls, decided.p_sim, decided.p))
    found = {"classifier": rows.p, "calibrated": cls, "retrieval": sim, "average": (cls + sim) / 2, "gate": gate}
    if rows.p_second is not None and chosen_on.p_second is not None:
        second = calibrated(chosen_on.p_second, chosen_on.y, rows.p_second)
        found |= {"second": second, "networks": (calibrated(chosen_on.p, chosen_on.y, rows.p) + second) / 2}
    return Judged(rows, found, decided.opened.numpy())


def calibrated(p_choice: Array, y: Array, p: Array) -> Array:
    temperature = fit_temperature(torch.from_numpy(p_choice).log(), torch.from_numpy(y))
    return apply_temperature(torch.from_numpy(p), temperature).numpy()


def out_of_fold(train: Rows, home: Rows, names: Sequence[str]) -> Judged:
    """Judge each fold of the rows from home by what the other folds chose."""
    fold = group_folds(home.group, home.y, FOLDS, seed=0)
    parts = [judged(train, home.take(fold != k), home.take(fold == k), names) for k in range(FOLDS)]
    order = np.concatenate([np.flatnonzero(fold == k) for k in range(FOLDS)])
    posteriors = {name: np.concatenate([part.posteriors[name] for part in parts]) for name in parts[0].posteriors}
    return Judged(home.take(order), posteriors, np.concatenate([part.opened for part in parts]))


def replicates(each: Judged, melanoma: int, seed: int) -> dict[str, dict[str, Array]]:
    """Return each figure of each row of the table: as it is, and then in each replicate."""
    rows = each.rows
    drawn = group_weights(lesion_numbers(rows.group, len(rows.y)), n_replicates=REPLICATES, seed=seed)
    weights, found = [np.ones((len(rows.y), 1)), *drawn], {}
    for name, p in each.posteriors.items():
        sums = MetricSums.prepare(p, rows.y, points={melanoma: (0.9,)})
        of_row = bootstrap_metrics(sums.metrics, weights)
        found[name] = {**of_row, "melanoma_at_90": of_row[point_name(melanoma, 0.9)]}
    return found


def span(by_seed: Sequence[Array]) -> list[float]:
    """Return the mean over seeds with its interval; of one seed, over lesions alone."""
    stacked = np.stack(by_seed)
    low, high = percentile_interval(over_drawn_seeds(stacked[:, 1:], seed=0), 0.95)
    return [float(stacked[:, 0].mean()), low, high]


def what_the_gate_did(places: Sequence[Judged], names: Sequence[str]) -> dict[str, Any]:
    """Return what the gate did to a thousand images of a place, mean over seeds, and its counts."""
    found, counts = [], {"images": 0, "opened": 0, "fixed": 0, "broken": 0}
    for each in places:
        before, after = (each.posteriors[name].argmax(1) for name in ("calibrated", "gate"))
        y = each.rows.y
        found.append(per_thousand(before, after, each.opened, y, {MELANOMA: names.index(MELANOMA)}))
        counts["images"] += len(y)
        counts["opened"] += int(each.opened.sum())
        counts["fixed"] += int(((after == y) & (before != y)).sum())
        counts["broken"] += int(((after != y) & (before == y)).sum())
    mean = {name: float(np.mean([each[name] for each in found])) for name in ("opened", "fixed", "broken")}
    moved = [each["by_class"][MELANOMA] for each in found]
    melanoma = {name: float(np.mean([each[name] for each in moved])) for name in moved[0]}
    return {"counts": counts, "per_1000": {**mean, "melanoma": melanoma}}


def at_these_shares(each: Judged, shares: Array) -> float:
    """Return the accuracy that the classifier would have if the classes were as common as ``shares`` says."""
    right = each.posteriors["classifier"].argmax(1) == each.rows.y
    recall = [right[each.rows.y == c].mean() if (each.rows.y == c).any() else 0.0 for c in range(len(shares))]
    return float(np.dot(recall, shares))


def site(files: Sequence[Path]) -> dict[str, Any]:
    """Return the figures of one site, over the seeds of its files."""
    places: dict[str, list[Judged]] = {"home": [], "there": []}
    for path in files:
        train, home, there, names = read(path)
        places["home"].append(out_of_fold(train, home, names))
        places["there"].append(judged(train, home, there, names))
    melanoma = names.index(MELANOMA)
    drawn = {
        place: [replicates(each, melanoma, number) for each in found]
        for number, (place, found) in enumerate(places.items())
    }
    rows: dict[str, Any] = {}
    for name in places["home"][0].posteriors:
        rows[name] = {
            place: {metric: span([of_seed[name][metric] for of_seed in found]) for metric in SHOWN}
            for place, found in drawn.items()
        }
        both = list(zip(drawn["home"], drawn["there"], strict=True))
        rows[name]["drop"] = {metric: span([t[name][metric] - h[name][metric] for h, t in both]) for metric in SHOWN}
        for place, found in drawn.items():
            ahead = {m: span([each[name][m] - each["calibrated"][m] for each in found]) for m in SHOWN}
            rows[name][place]["ahead"] = ahead
    shares = {place: np.bincount(found[0].rows.y, minlength=len(names)) for place, found in places.items()}
    of_there = shares["there"] / shares["there"].sum()
    return {
        "seeds": len(files),
        "images": {place: int(count.sum()) for place, count in shares.items()},
        "lesions": {place: len(np.unique(found[0].rows.group)) for place, found in places.items()},
        "shares": {place: dict(zip(names, count / count.sum(), strict=True)) for place, count in shares.items()},
        "home_at_their_shares": float(np.mean([at_these_shares(each, of_there) for each in places["home"]])),
        "rows": rows,
        "gate": {place: what_the_gate_did(found, names) for place, found in places.items()},
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="SITE=FILE")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # small classes: the page says so
    files: dict[str, list[Path]] = {}
    for each in arguments.files:
        name, _, path = each.partition("=")
        files.setdefault(name, []).append(Path(path))
    for name, paths in files.items():
        shown = " ".join(f"{name}={path.name}" for path in paths)
        told = {"site": name, "command": f"python -m benchmarks.sites {shown} --out {arguments.out}", **site(paths)}
        add_to(arguments.out, [jsonable(told)], ("site",))
    print(f"{arguments.out}: {', '.join(files)}", file=sys.stderr)


if __name__ == "__main__":
    main()
