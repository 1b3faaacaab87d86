"""Every row of the headline table on every test image of one seed: its probabilities, in half precision.

    python -m benchmarks.posteriors CONFIG OUT VIEWS.npz ... --theta 0.75 --out POSTERIORS.npz

CONFIG names the saved outputs of a seed's outer folds, OUT the folder of their evaluation (``tdumpra evaluate CONFIG
--out OUT``), VIEWS the other views of each fold, in the same order (:mod:`benchmarks.other_views`). Below ``--theta``
the row ``asked`` asks the second network. :mod:`benchmarks.headline` makes the table of the files of all seeds, and
:mod:`benchmarks.recount` counts it again. Half precision keeps each label: where rounding would tie two classes, the
first choice is raised by one step. ``gate_theta`` is the gate's own threshold in each fold.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from scipy.special import softmax

from benchmarks.saved_outputs import write
from benchmarks.sites import calibrated
from tdumpra.evaluation.case import Case
from tdumpra.evaluation.comparators import COMPARATORS
from tdumpra.evaluation.replicates import one_by_one
from tdumpra.runs.config import read_config
from tdumpra.runs.documents import case_of
from tdumpra.runs.outputs import all_outputs
from tdumpra.runs.table_stages import tune_step

Array = np.ndarray
ROWS = (
    "temperature", "logit_adjusted", "second_temperature", "second_adjusted", "ensemble", "ensemble_adjusted",
    "similarity", "average", "average_adjusted", "ungated", "calibrated_gate", "gate",
)  # fmt: skip


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


def halved(p: Array) -> Array:
    """Return probabilities in half precision with the same first choices."""
    half, label = p.astype(np.float16), p.argmax(1)
    rows = np.flatnonzero(half.argmax(1) != label)
    half[rows, label[rows]] = np.nextafter(half[rows].max(1), np.float16(2))
    return half


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("views", nargs="+", type=Path)
    parser.add_argument("--theta", type=float, required=True, help="chosen on validation (benchmarks.cost)")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    cases = cases_of(arguments.config, arguments.folder)
    tests = [case.test for case in cases]
    y, group, ids = (np.concatenate([np.asarray(getattr(t, name)) for t in tests]) for name in ("y", "groups", "ids"))
    found = {each.name: each.test for each in one_by_one(cases, {name: COMPARATORS[name] for name in ROWS})}
    ask = found["temperature"].max(1) < arguments.theta
    found["asked"] = np.where(ask[:, None], found["ensemble"], found["temperature"])
    pairs = zip(cases, arguments.views, strict=True)
    found["eight"] = np.concatenate([eight_views(case, path) for case, path in pairs])
    with np.load(all_outputs(read_config(arguments.config), arguments.folder)[0].origin, allow_pickle=False) as file:
        classes = file["classes"]
    image, lesion = (np.char.rpartition(each, "_")[:, 2].astype(np.int32) for each in (ids, group))
    kept: dict[str, Array] = {
        "image": image, "lesion": lesion, "y": y.astype(np.uint8), "classes": classes,
        "fold": np.repeat(np.arange(len(tests)), [len(each) for each in tests]).astype(np.uint8),
        "theta": np.array(arguments.theta),
        "gate_theta": np.array([case.decision.thresholds.theta for case in cases]),
    }  # fmt: skip
    write(arguments.out, {**kept, **{name: halved(p) for name, p in found.items()}})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
