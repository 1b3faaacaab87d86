"""Small problems with a known answer, as arrays, as files and as outputs."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from tdumpra import DualPathClassifier
from tdumpra.core.gate import GateThresholds
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import TestOutputs, TrainOutputs, ValidationOutputs
from tdumpra.runs.config import OutputFile
from tdumpra.tuning.presets import Preset
from tdumpra.tuning.settings import BankConfig

Array = np.ndarray
THRESHOLDS = GateThresholds(theta=0.6, beta=0.5, margin=0.2, delta=0.05, alpha=0.1)
BANK = BankConfig(n_prototypes=2)
SMALL = Preset(
    kappa=(5.0, 20.0),
    theta=(0.5, 0.7, 0.9),
    beta=(0.3,),
    margin=(0.0, 0.2),
    delta=(0.02,),
    alpha=(0.3, 0.7),
    fused_exponent=(0.0, 0.4),
)


class Split(NamedTuple):
    """One split's arrays as a user would hold them."""

    p: Array
    z: Array
    y: Array
    groups: Array
    ids: Array


class Problem(NamedTuple):
    """Three splits of one task."""

    train: Split
    val: Split
    test: Split


def make_problem(seed: int = 0, *, n_classes: int = 4, width: int = 8, dtype: Any = np.float32) -> Problem:
    """A wavering classifier beside embeddings that know more: there is something for a gate to win.

    Classes are unequal (class 0 the largest, as with nevi), and two rows in three share a group with another.
    """
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_classes, width))
    share = 1 / np.arange(1, n_classes + 1)

    def split(name: str, n: int) -> Split:
        y = np.concatenate([np.arange(n_classes), rng.choice(n_classes, n - n_classes, p=share / share.sum())])
        z = centres[y] + 1.0 * rng.normal(size=(n, width))
        logits = 1.2 * np.eye(n_classes)[y] + rng.normal(size=(n, n_classes)) + np.log(share)
        groups = np.array([f"{name}-{i // 3 * 3 if i % 3 else i}" for i in range(n)])
        ids = np.array([f"{name}-image-{i}" for i in range(n)])
        return Split(softmax(logits, axis=1).astype(dtype), z.astype(dtype), y, groups, ids)

    return Problem(split("train", 240), split("val", 200), split("test", 160))


def splits_of(seed: int, **test: Any) -> SplitOutputs:
    """Return a problem as what the stages after embedding take; ``test`` is more about its test rows."""
    problem = make_problem(seed, dtype=np.float64)
    train, val, scored = problem
    return SplitOutputs(
        train=TrainOutputs.check(train.z, train.y, train.groups, ids=train.ids),
        validation=ValidationOutputs.check(val.p, val.z, val.y, val.groups, ids=val.ids),
        test=TestOutputs.check(scored.p, scored.z, scored.y, scored.groups, ids=scored.ids, **test),
        n_classes=4,
        fingerprint=f"seed {seed}",
        class_names=("a", "b", "c", "d"),
    )


def with_own_lesions(splits: SplitOutputs, seed: int) -> SplitOutputs:
    """Return the outputs with validation lesions that no other seed has."""
    groups = splits.validation.groups
    assert groups is not None
    own = np.array([f"{seed}-{name}" for name in groups])
    return splits._replace(validation=replace(splits.validation, groups=own))


def fit_and_tune(problem: Problem, **params: Any) -> DualPathClassifier:
    """The whole way in, with groups and ids."""
    train, val = problem.train, problem.val
    classifier = DualPathClassifier(**{"n_prototypes": 3, **params})
    classifier.fit(train.z, train.y, train.groups, ids=train.ids)
    return classifier.tune(val.p, val.z, val.y, val.groups)


def save_problem(path: Path, seed: int = 0, *, leave_out: tuple[str, ...] = (), **changes: Any) -> Path:
    """A problem as a file of outputs, some arrays left out or replaced."""
    arrays = {**seed_arrays(seed), **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if name not in leave_out})
    return path


def seed_arrays(seed: int = 0, *, n_classes: int = 4) -> dict[str, Array]:
    """What a file of outputs holds: seeds see the same rows, and each has a model of its own."""
    problem = make_problem(0, n_classes=n_classes)
    columns = [np.concatenate(column) for column in zip(*problem, strict=True)]
    arrays = dict(zip(("p", "z", "y", "group", "id"), columns, strict=True))
    arrays["split"] = np.repeat([0, 1, 2], [len(part.y) for part in problem])
    if seed:
        rng = np.random.default_rng(seed)
        other = random_posterior(rng, len(arrays["y"]), n_classes).astype(arrays["p"].dtype)
        arrays["p"] = (3 * arrays["p"] + other) / 4
        arrays["z"] = arrays["z"] + rng.normal(scale=0.3, size=arrays["z"].shape).astype(arrays["z"].dtype)
    return arrays


def without_training_rows(path: Path, label: int, **changes: Any) -> Path:
    """A problem as a file of outputs in which one class has no training row."""
    arrays = dict(np.load(save_problem(path)))
    kept = (arrays["split"] != 0) | (arrays["y"] != label)
    np.savez(path, allow_pickle=False, **{name: array[kept] for name, array in arrays.items()}, **changes)
    return path


def random_posterior(rng: np.random.Generator, n: int, n_classes: int, sharpness: float = 1.5) -> Array:
    """Rows of probabilities, some flat and some decisive, in float64."""
    p: Array = softmax(sharpness * rng.normal(size=(n, n_classes)), axis=1)
    return p


def likeliest_temperature(log_p: Array, y: Array) -> float:
    """By scipy, between the bounds that tuning keeps to."""

    def loss(log_temperature: float) -> float:
        return float(-log_softmax(log_p / math.exp(log_temperature), axis=1)[np.arange(len(y)), y].mean())

    return math.exp(minimize_scalar(loss, bounds=(math.log(0.05), math.log(20)), options={"xatol": 1e-9}).x)


def unit(x: Array) -> Array:
    """Rows of length one, in float64."""
    x = np.asarray(x, np.float64)
    rows: Array = x / np.sqrt((x * x).sum(-1, keepdims=True))
    return rows


def alter_byte(path: Path, position: int) -> None:
    """Flip the lowest bit of one byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def equal_tensors(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Same names, types, and every bit the same."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


def output_files(*paths: str | Path) -> tuple[OutputFile, ...]:
    """Entries of ``outputs`` for files called ``BACKBONE[_TRAINING][_seedN]``."""
    found = []
    for path in paths:
        name = re.fullmatch(r"(?P<backbone>.+?)(_(?P<training>ce|joint)\d*)?(_seed(?P<seed>\d+))?", Path(path).stem)
        assert name is not None
        seed = None if name["seed"] is None else int(name["seed"])
        training: Any = name["training"]
        found.append(OutputFile(file=str(path), training=training, seed=seed, backbone=name["backbone"]))
    return tuple(found)
