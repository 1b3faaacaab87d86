"""The whole state of a training run in one sealed file, so that a resumed run is the uninterrupted one to the bit.

Everything random in the data is a function of (seed, epoch, position), so a position is all that the data need. What
else is random, dropout and stochastic depth, follows the generators saved here. No pickle: tensors and JSON.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tdumpra.artifacts import read_artifact, write_artifact
from tdumpra.core.ema import EmaTeacher
from tdumpra.errors import ArtifactError

KIND, SCHEMA = "checkpoint", 1


@dataclass(slots=True)
class Progress:
    """Where training stands: the next batch to take, and the best validation so far."""

    epoch: int = 0
    batch: int = 0  # of the epoch, the next one
    step: int = 0  # optimiser steps taken
    best_loss: float | None = None
    epochs_since_best: int = 0
    finished: bool = False


def save_checkpoint(
    path: Path,
    *,
    network: nn.Module,
    teacher: EmaTeacher,
    optimizer: Optimizer,
    scaler: dict[str, Any],
    progress: Progress,
    generators: list[dict[str, Tensor]],
    identity: dict[str, Any],
) -> None:
    """Write the state; ``identity`` says what it belongs to, ``generators`` holds one entry per process."""
    tensors = {
        **_prefixed("student", network.state_dict()),
        **_prefixed("teacher", teacher.state_dict()),
        **_optimizer_tensors(optimizer),
    }
    for rank, states in enumerate(generators):
        tensors |= _prefixed(f"generator.{rank}", states)
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    meta = {
        "progress": asdict(progress),
        "scaler": scaler,
        "groups": groups,
        "identity": identity,
        "python": _python_generator(),
    }
    write_artifact(path, kind=KIND, schema=SCHEMA, tensors=tensors, meta=meta)


def load_checkpoint(
    path: Path,
    *,
    network: nn.Module,
    teacher: EmaTeacher,
    optimizer: Optimizer,
    identity: Mapping[str, str],
    rank: int,
) -> tuple[Progress, dict[str, Any], dict[str, Tensor]]:
    """Put a saved state back; returns the progress, the scaler's state and this process's generators.

    A state that belongs to other data is refused: images that are tested now may have been trained on then.
    """
    artifact = read_artifact(path, kind=KIND, schema=SCHEMA)
    refuse_other_identity(path, artifact.meta["identity"], identity)
    try:
        network.load_state_dict(_unprefixed("student", artifact.tensors))
        teacher.load_state_dict(_unprefixed("teacher", artifact.tensors))
        _restore_optimizer(optimizer, artifact.tensors, artifact.meta["groups"])
        generators = _unprefixed(f"generator.{rank}", artifact.tensors)
        _set_python_generator(artifact.meta["python"])
        return Progress(**artifact.meta["progress"]), artifact.meta["scaler"], generators
    except (KeyError, RuntimeError, TypeError) as error:
        raise ArtifactError(f"{path} does not belong to this network: {str(error).splitlines()[0]}") from error


def refuse_other_identity(path: Path, found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """What a checkpoint was trained with must be what the configuration names now."""
    differing = [key for key in expected if found.get(key, expected[key]) != expected[key]]
    if differing:
        told = {"data", "split", "images"} & set(differing)
        changed = " (images, labels or their split have changed)" if told else ""
        raise ArtifactError(
            f"{path} was trained with other {' and '.join(differing)} than this configuration names{changed}: train "
            "into another folder with --out, or remove this one"
        )


class Networks(NamedTuple):
    """The weights of a checkpoint, the teacher's without its step, and what they belong to."""

    student: dict[str, Tensor]
    teacher: dict[str, Tensor]
    identity: dict[str, str]


def read_networks(path: Path) -> Networks:
    """What embedding and prediction need of a checkpoint."""
    artifact = read_artifact(path, kind=KIND, schema=SCHEMA)
    student = _unprefixed("student", artifact.tensors)
    teacher = _unprefixed("teacher.module", artifact.tensors)
    return Networks(student, teacher, artifact.meta["identity"])


def is_finished(path: Path) -> bool:
    """Whether training has reached its end in this checkpoint, if it exists."""
    return path.exists() and bool(read_artifact(path, kind=KIND, schema=SCHEMA).meta["progress"]["finished"])


def generator_states() -> dict[str, Tensor]:
    """The generators that training draws from on this process."""
    states = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_generator_states(states: dict[str, Tensor]) -> None:
    """The inverse of :func:`generator_states`; a state for a device that is not here is left out."""
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())


def _python_generator() -> dict[str, Any]:
    """Python's and NumPy's generators: training draws from neither, but a user's own module might."""
    version, state, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002  # the global one is meant
    return {
        "random": [version, list(state), gauss],
        "numpy": [name, np.asarray(keys).tolist(), position, has_gauss, cached],
    }


def _set_python_generator(saved: dict[str, Any]) -> None:
    version, state, gauss = saved["random"]
    random.setstate((version, tuple(state), gauss))
    name, keys, position, has_gauss, cached = saved["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))  # noqa: NPY002


def _optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{index}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for index, values in state.items()
        for name, value in values.items()
    }


def _restore_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor], groups: list[dict[str, Any]]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in _unprefixed("optimizer", tensors).items():
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


def _prefixed(prefix: str, tensors: dict[str, Any]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _unprefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}
