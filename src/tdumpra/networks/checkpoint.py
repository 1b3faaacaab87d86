"""The files of a training run: a log, and checkpoints from which training resumes bit for bit.

A checkpoint is one sealed file of tensors and JSON, without pickle. Everything random in the data is a function of
(seed, epoch, position), so the data need nothing but a position. Dropout and stochastic depth follow the generators
saved here.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tdumpra.artifacts import Artifact, fingerprint, jsonable, prefixed, read_artifact, unprefixed, write_artifact
from tdumpra.checks import check_count
from tdumpra.core.ema import EmaTeacher
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.foreign import reading, refuse_endless
from tdumpra.limits import refuse_above
from tdumpra.networks.settings import WITHOUT_EFFECT, TrainConfig
from tdumpra.values import check_table, check_text
from tdumpra.writing import write_bytes

if TYPE_CHECKING:
    from lightning_fabric import Fabric  # takes a second to import, and most commands train nothing

KIND, SCHEMA = "checkpoint", 1
_LOGGED = ("loss", "cross_entropy", "contrastive", "images_per_second")  # in a line of the log on a step
_VALIDATED = ("accuracy", "balanced_accuracy")  # of each network, in a line on a validation; may be null


class RunFolderError(TdumpraError):
    """A run folder is in use, cannot be written to, or belongs to another configuration."""


@dataclass(frozen=True, slots=True)
class TrainingFiles:
    """The paths of one training run, and its log."""

    root: Path

    def checkpoint(self, name: str) -> Path:
        """Return the path of a checkpoint, ``last`` or ``best``."""
        return self.root / "checkpoints" / f"{name}.safetensors"

    @property
    def metrics(self) -> Path:
        """The log: one JSON object per line."""
        return self.root / "metrics.jsonl"

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add a line to the log."""
        try:
            with open(self.metrics, "a", encoding="utf-8", opener=_open_itself) as file:
                file.write(json.dumps(jsonable(row)) + "\n")
        except OSError as error:
            raise RunFolderError(f"cannot write {self.metrics}: {error.strerror or error}") from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the rows of the log. A line that a crash cut short, or that was damaged, is left out."""
        refuse_endless(self.metrics, ArtifactError)
        if not self.metrics.exists():
            return []
        if reason := refuse_above("artifact_bytes", self.metrics.stat().st_size, "bytes"):
            raise ArtifactError(f"{self.metrics}: {reason}")
        rows = (_log_row(line) for line in self.metrics.read_bytes().splitlines())
        return [row for row in rows if row is not None]

    def rewind_metrics(self, step: int, epoch: int) -> None:
        """Drop rows after ``step``, and validations after ``epoch``, from which training resumes."""
        rows = [
            row
            for row in self.read_metrics()
            if row["step"] <= step and ("validation" not in row or row["epoch"] <= epoch)
        ]
        if rows or self.metrics.exists():
            write_bytes(self.metrics, "".join(json.dumps(row) + "\n" for row in rows).encode())


def _open_itself(path: str, flags: int) -> int:
    """Open a file and no link: in a folder that a stranger made, it may lead to any file of the user's."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _log_row(line: bytes) -> dict[str, Any] | None:
    """Return a line of the log if it says what its kind of line says."""
    try:
        row: dict[str, Any] = json.loads(line)
        for name in ("step", "epoch"):
            check_count(row[name], name, least=0)
        figures = [row[name] for name in _LOGGED if "loss" in row]
        figures += [scores[name] or 0.0 for scores in row.get("validation", {}).values() for name in _VALIDATED]
        figures += [each for each in row.values() if isinstance(each, int | float)]
        is_sound = all(math.isfinite(each) for each in figures)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
        return None  # no JSON, or of something else
    return row if is_sound else None


@dataclass(slots=True)
class Progress:
    """The next batch to take, and the best validation so far."""

    epoch: int = 0
    batch: int = 0  # of the epoch, the next one
    step: int = 0  # optimiser steps taken
    best_loss: float | None = None
    epochs_since_best: int = 0
    finished: bool = False

    def is_best(self, loss: float) -> bool:
        """Note the validation loss of an epoch; return whether it is the best so far."""
        better = self.best_loss is None or loss < self.best_loss
        self.best_loss = loss if better else self.best_loss
        self.epochs_since_best = 0 if better else self.epochs_since_best + 1
        return better


@dataclass(slots=True, eq=False)
class Checkpointer:
    """Save and restore the whole state of training."""

    network: nn.Module
    teacher: EmaTeacher
    optimizer: Optimizer
    identity: dict[str, str]
    folder: TrainingFiles
    fabric: Fabric
    minutes: float = math.inf  # between saves within an epoch
    saved_at: float = field(default_factory=time.monotonic)

    def is_due(self) -> bool:
        """Return whether it is time to save again."""
        due = time.monotonic() - self.saved_at > 60 * self.minutes
        # one clock decides for all processes: otherwise those that save would wait for ever for those that do not
        return due if self.fabric.world_size == 1 else bool(self.fabric.broadcast(due))

    def save(self, progress: Progress, name: str = "last") -> None:
        """Write a checkpoint, with the generators of all processes."""
        fabric = self.fabric
        generators = {key: value[None] for key, value in generator_states().items()}
        if fabric.world_size > 1:
            generators = {key: cast(Tensor, fabric.all_gather(value[0])).cpu() for key, value in generators.items()}
        if fabric.is_global_zero:
            tensors = {
                **prefixed("student", self.network.state_dict()),
                **prefixed("teacher", self.teacher.state_dict()),
                **_optimizer_tensors(self.optimizer),
                **{f"generator.{r}.{key}": each for key, value in generators.items() for r, each in enumerate(value)},
            }
            groups = self.optimizer.param_groups
            meta = {
                "progress": asdict(progress),
                "scaler": dict(fabric.strategy.precision.state_dict()),
                "groups": [{key: value for key, value in group.items() if key != "params"} for group in groups],
                "identity": self.identity,
                "python": python_generators(),
            }
            write_artifact(self.folder.checkpoint(name), kind=KIND, schema=SCHEMA, tensors=tensors, meta=meta)
        fabric.barrier()
        self.saved_at = time.monotonic()

    def restore(self) -> Progress:
        """Restore the last checkpoint, if there is one; return where training stands.

        A checkpoint of other data, another seed or other settings is refused: it may have been trained on test images.
        """
        path = self.folder.checkpoint("last")
        if not path.exists():
            return Progress()
        tensors, meta = _read(path)
        refuse_other_identity(path, meta["identity"], self.identity)
        try:
            self.network.load_state_dict(unprefixed("student", tensors))
            self.teacher.load_state_dict(unprefixed("teacher", tensors))
            _restore_optimizer(self.optimizer, tensors, meta["groups"])
            set_generators(unprefixed(f"generator.{self.fabric.global_rank}", tensors), meta["python"])
            if meta["scaler"]:
                self.fabric.strategy.precision.load_state_dict(meta["scaler"])
            return Progress(**meta["progress"])
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ArtifactError(f"{path} does not belong to this network: {str(error).splitlines()[0]}") from error


def training_identity(config: TrainConfig, seed: int, epochs: int | None = None) -> dict[str, str]:
    """Return what ties a checkpoint to its seed, its settings and, where it ends early, its number of epochs."""
    settings = {name: value for name, value in asdict(config).items() if name not in WITHOUT_EFFECT}
    settings["compile"] = config.compile is True  # "auto" rounds otherwise than an eager training, as another GPU does
    settings["train_on_val"] = False  # a setting of before: checkpoints from then have it in their name
    cut = {} if epochs is None else {"epochs": str(epochs)}
    return {"seed": str(seed), "training settings": fingerprint(json.dumps(settings, sort_keys=True)), **cut}


def refuse_other_identity(path: Path, found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Refuse a checkpoint that was trained with anything else than ``expected``."""
    differing = [key for key in expected if found.get(key, expected[key]) != expected[key]]
    if differing:
        told = {"data", "split", "images"} & set(differing)
        changed = " (images, labels or their split have changed)" if told else ""
        raise ArtifactError(
            f"{path} was trained with other {' and '.join(differing)} than this configuration names{changed}: train "
            "into another folder with --out, or remove this one"
        )


class Networks(NamedTuple):
    """The weights of a checkpoint, and the data and settings that they belong to."""

    student: dict[str, Tensor]
    teacher: dict[str, Tensor]
    identity: dict[str, str]


def read_networks(path: Path) -> Networks:
    """Read the weights of a checkpoint, for embedding and prediction."""
    artifact = _read(path)
    student = unprefixed("student", artifact.tensors)
    teacher = unprefixed("teacher.module", artifact.tensors)
    return Networks(student, teacher, artifact.meta["identity"])


def is_finished(path: Path, identity: Mapping[str, str] | None = None) -> bool:
    """Return whether there is a checkpoint of finished training; refuse one that does not have this ``identity``."""
    if not path.exists():
        return False
    meta = _read(path).meta
    refuse_other_identity(path, meta["identity"], identity or {})
    return bool(meta["progress"]["finished"])


def epochs_behind(path: Path) -> int:
    """Return after how many epochs a checkpoint was written."""
    return int(_read(path).meta["progress"]["epoch"])


def _read(path: Path) -> Artifact:
    """Read a checkpoint that says what it was trained with, and how far."""
    artifact = read_artifact(path, kind=KIND, schema=SCHEMA)
    with reading(path, f"tdumpra {KIND}", ArtifactError):
        for name, value in check_table(artifact.meta["identity"], "identity").items():
            check_text(value, f"identity.{name}")
        progress = check_table(artifact.meta["progress"], "progress")
        check_count(progress["epoch"], "progress.epoch", least=0)
        if not isinstance(progress["finished"], bool):
            raise TypeError(f"progress.finished must be true or false, not {progress['finished']!r}")
    return artifact


def generator_states() -> dict[str, Tensor]:
    """Return the states of the generators from which training draws in this process."""
    states = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def python_generators() -> dict[str, Any]:
    """Return the states of Python's and NumPy's generators: training draws from neither, but a user's module might."""
    version, state, gauss = random.getstate()
    name, keys, *rest = np.random.get_state()  # noqa: NPY002  # the global one is meant
    return {"random": [version, list(state), gauss], "numpy": [name, np.asarray(keys).tolist(), *rest]}


def set_generators(states: dict[str, Tensor], python: dict[str, Any]) -> None:
    """Restore all generators; a state of a GPU is left out where there is none."""
    version, state, gauss = python["random"]
    random.setstate((version, tuple(state), gauss))
    name, keys, *rest = python["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())


def _optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{index}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for index, values in state.items()
        for name, value in values.items()
    }


def _restore_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor], groups: list[dict[str, Any]]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in unprefixed("optimizer", tensors).items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    params = [group["params"] for group in optimizer.state_dict()["param_groups"]]
    restored = [{**group, "params": numbers} for group, numbers in zip(groups, params, strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": restored})
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                # files know no memory layout, and fused kernels walk parameter and state side by side
                values[name] = torch.empty_like(parameter).copy_(value)
