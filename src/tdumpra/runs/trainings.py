"""The trainings behind an experiment: the run's own, or those below it that its variants need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from tdumpra.artifacts import fingerprint, jsonable, make_folder, write_bytes
from tdumpra.errors import ArtifactError
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder, run_folders, run_root, settings_of_outputs
from tdumpra.runs.tables import OutputsTable, how_made


def place(config: Config, seed: int) -> Path:
    """The run's own folder, if its tables are of these settings; else one below it that is, or that is to be made.

    Variants of one configuration so share what they have in common, and nothing is trained twice. An experiment reads
    the run's own folder and never writes to it.
    """
    own = run_folders(run_root(config), config.seeds)[seed]
    if is_made(own, config, seed):
        return own.root
    below = run_root(config) / "trainings"
    there = (path for path in sorted(below.glob("*")) if RunFolder(path).was_embedded_with(config, seed))
    settings = json.dumps(jsonable(settings_of_outputs(config)), sort_keys=True)
    return next(there, below / fingerprint(settings, str(seed)))


def lend_checkpoints(config: Config, folder: RunFolder, seed: int) -> None:
    """A training of the run itself is not repeated: it goes on, or is embedded anew, from a copy."""
    own = run_folders(run_root(config), config.seeds)[seed]
    if not own.was_trained_with(config, seed) or folder.checkpoint("last").exists():
        return
    for name in ("best", "last"):
        if own.checkpoint(name).exists():
            make_folder(folder.checkpoint(name).parent)
            write_bytes(folder.checkpoint(name), own.checkpoint(name).read_bytes())


def is_made(folder: RunFolder, config: Config, seed: int) -> bool:
    """Whether the tables are there, of a training with these settings that came to its end."""
    if not folder.has_tables or not folder.was_trained_with(config, seed):
        return False
    try:
        made = _made(folder.outputs("train"), _stamp(folder.outputs("train")))
    except (ArtifactError, OSError):
        return False
    return made == how_made(config.embed, finished=True) if made else folder.was_embedded_with(config, seed)


_Stamp = tuple[int, int, int]  # of a file: unless it is another one, it holds what it held


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def digest(path: Path) -> str:
    """A name for a file's contents; read once, unless it becomes another file."""
    return _digest(path, _stamp(path))


@lru_cache(maxsize=1024)
def _digest(path: Path, stamp: _Stamp) -> str:
    return fingerprint(path.read_bytes())


@lru_cache(maxsize=1024)
def _made(path: Path, stamp: _Stamp) -> Mapping[str, Any]:
    return OutputsTable.read(path).made


def seconds_to_train(config: Config, seed: int) -> float | None:
    """How long an experiment would train; 0 where nothing needs training, ``None`` where nobody knows.

    What is known comes from trainings below the same run: their last step, and how many views they took in a second.
    """
    if is_made(RunFolder(place(config, seed)), config, seed):
        return 0.0
    known = []
    for path in sorted(run_root(config).rglob("metrics.jsonl")):
        rows = [row for row in RunFolder(path.parent).read_metrics() if "images_per_second" in row]
        if rows:
            views = 2 * config.train.batch_size * rows[-1]["step"]
            known.append(views / max(1e-9, median(row["images_per_second"] for row in rows)))
    return max(known, default=None)
