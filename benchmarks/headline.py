"""The headline of the study on HAM10000: each row of the table, its figures, and how far rows with a bank are ahead.

    python -m benchmarks.headline CONFIG OUT VIEWS.npz ... --theta 0.7 --folder docs/results/ham10000/folds

CONFIG names the saved outputs of outer folds, OUT the folder of their evaluation (``tdumpra evaluate CONFIG --out
OUT``), VIEWS the other views of each fold, in the same order (:mod:`benchmarks.other_views`). Two files are written to
``--folder``: ``headline.json`` with figures and differences, and ``posteriors.npz`` with every row's probabilities on
every test image in half precision, from which :mod:`benchmarks.recount` makes the table again. Half precision keeps
each label: where rounding would tie two classes, the first choice is raised by one step. Intervals are 95 % and draw
lesions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax

from benchmarks.saved_outputs import write
from benchmarks.sites import REPLICATES, SHOWN, calibrated
from tdumpra.artifacts import jsonable
from tdumpra.core.bootstrap import MetricSums, bootstrap_metrics, group_weights, percentile_interval, point_name
from tdumpra.core.groups import lesion_numbers
from tdumpra.core.metrics import sensitivity_at_specificity
from tdumpra.evaluation.case import Case
from tdumpra.evaluation.comparators import COMPARATORS
from tdumpra.evaluation.replicates import one_by_one
from tdumpra.runs.config import read_config
from tdumpra.runs.documents import case_of
from tdumpra.runs.outputs import all_outputs
from tdumpra.runs.table_stages import tune_step

Array = np.ndarray
MELANOMA, SPECIFICITIES = "mel", tuple(np.round(np.arange(0.80, 0.951, 0.01), 2).tolist())
ROWS = (
    "temperature", "logit_adjusted", "second_temperature", "second_adjusted", "ensemble", "ensemble_adjusted",
    "similarity", "average", "average_adjusted", "ungated", "calibrated_gate", "gate",
)  # fmt: skip
WITHOUT_BANK = (*ROWS[:6], "asked")  # with one view of each image
WITH_BANK = ROWS[6:]


def cases_of(config_file: Path, out: Path) -> list[Case]:
    """Return what the evaluation of a configuration scored, fold by fold."""
    found = []
    for outputs in all_outputs(read_config(config_file), out):
        fitted = tune_step(outputs).result()
        found.append(case_of(outputs.load(), [], fitted, outputs.config))
    return found


def eight_views(case: Case, path: Path) -> Array:
    """Return the classifier's posterior over eight views of the test images, calibrated on validation."""
    validation, test = case.validation, case.test
    if validation is None or validation.ids is None or test.ids is None:
        raise SystemExit(f"{path}: the outputs of its fold name no images")
    with np.load(path, allow_pickle=False) as file:
        p, ids = softmax(file["eight_classifier_logits"].astype(np.float64), axis=1), file["id"]
    place = {name: i for i, name in enumerate(ids[len(ids) - len(p) :].tolist())}
    of_validation, of_test = (p[[place[name] for name in each.tolist()]] for each in (validation.ids, test.ids))
    return calibrated(of_validation, validation.y.numpy(), of_test)


def replicates(p: Array, y: Array, weights: Sequence[Array], melanoma: int) -> dict[str, Array]:
    """Return each figure of a posterior: as it is, and then in each replicate."""
    found = bootstrap_metrics(MetricSums.prepare(p, y, points={melanoma: (0.9,)}).metrics, weights)
    found["melanoma_at_90"] = found[point_name(melanoma, 0.9)]
    return {name: found[name] for name in SHOWN}


def span(drawn: Array) -> list[float]:
    """Return a figure with its interval."""
    return [float(drawn[0]), *percentile_interval(drawn[1:], 0.95)]


def halved(p: Array) -> Array:
    """Return probabilities in half precision with the same first choices."""
    half, label = p.astype(np.float16), p.argmax(1)
    rows = np.flatnonzero(half.argmax(1) != label)
    half[rows, label[rows]] = np.nextafter(half[rows].max(1), np.float16(2))
    return half


def document(
    posteriors: Mapping[str, Array], y: Array, group: Array, fold: Array, asked: Mapping[str, float], melanoma: int
) -> dict[str, Any]:
    """Return the figures of all rows, and the differences of rows with a bank from those without."""
    drawn = group_weights(lesion_numbers(group, len(y)), n_replicates=REPLICATES, seed=0)
    weights = [np.ones((len(y), 1)), *drawn]
    found = {name: replicates(p, y, weights, melanoma) for name, p in posteriors.items()}
    best = {metric: max(WITHOUT_BANK, key=lambda name: found[name][metric][0]) for metric in BAR}
    leads: dict[str, Any] = {}
    for name in (*WITH_BANK, "asked"):
        leads[name] = {}
        for rival in WITHOUT_BANK:
            if rival != name:
                ahead = {metric: span(found[name][metric] - found[rival][metric]) for metric in SHOWN}
                leads[name][rival] = {**ahead, "by_fold": by_fold(posteriors[name], posteriors[rival], y, fold)}
    return {
        "images": len(y), "lesions": len(np.unique(group)), "folds": len(np.unique(fold)), "asked": dict(asked),
        "rows": {name: {metric: span(each[metric]) for metric in SHOWN} for name, each in found.items()},
        "best_without_bank": best,
        "leads": leads,
        "roc": {name: [sensitivity_at_specificity(p[:, melanoma], y == melanoma, at)[0] for at in SPECIFICITIES]
                for name, p in posteriors.items()},
        "specificities": SPECIFICITIES,
    }  # fmt: skip


BAR = ("accuracy", "balanced_accuracy", "melanoma_at_90")


def by_fold(p: Array, other: Array, y: Array, fold: Array) -> dict[str, list[float]]:
    """Return how far one row is ahead of another in each fold."""
    right = [(each.argmax(1) == y).astype(float) for each in (p, other)]
    ahead = right[0] - right[1]
    inside = [fold == k for k in np.unique(fold)]
    return {
        "accuracy": [float(ahead[rows].mean()) for rows in inside],
        "balanced_accuracy": [float(np.mean([ahead[rows & (y == c)].mean() for c in np.unique(y)])) for rows in inside],
    }


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("views", nargs="+", type=Path)
    parser.add_argument(
        "--theta", type=float, required=True, help="asks the second network below, chosen on validation"
    )
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    cases = cases_of(arguments.config, arguments.out)
    tests = [case.test for case in cases]
    y, group, ids = (np.concatenate([np.asarray(getattr(t, name)) for t in tests]) for name in ("y", "groups", "ids"))
    fold = np.repeat(np.arange(len(tests)), [len(each) for each in tests])
    chosen = {name: COMPARATORS[name] for name in ROWS}
    posteriors = {each.name: each.test for each in one_by_one(cases, chosen)}
    ask = posteriors["temperature"].max(1) < arguments.theta
    posteriors["asked"] = np.where(ask[:, None], posteriors["ensemble"], posteriors["temperature"])
    pairs = zip(cases, arguments.views, strict=True)
    posteriors["eight"] = np.concatenate([eight_views(case, path) for case, path in pairs])
    theta = np.concatenate([np.full(len(c.test), c.decision.thresholds.theta) for c in cases])
    asked = {"asked": float(ask.mean()), "gate": float((posteriors["temperature"].max(1) < theta).mean())}
    with np.load(all_outputs(read_config(arguments.config), arguments.out)[0].origin, allow_pickle=False) as file:
        names = file["classes"].tolist()
    found = document(posteriors, y, group, fold, asked, names.index(MELANOMA))
    told = {"theta": arguments.theta, **found}
    path = arguments.folder / "headline.json"
    path.write_text(json.dumps(jsonable(told), separators=(",", ":")) + "\n", encoding="utf-8")
    numbers: dict[str, Array] = {name: np.char.rpartition(each, "_")[:, 2].astype(np.int32)
               for name, each in (("image", ids), ("lesion", group))}  # fmt: skip
    kept: dict[str, Array] = {
        **numbers,
        "y": y.astype(np.uint8),
        "fold": fold.astype(np.uint8),
        "classes": np.array(names),
    }
    write(arguments.folder / "posteriors.npz", {**kept, **{name: halved(p) for name, p in posteriors.items()}})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
