"""Trainings behind an experiment: the run's own, or those below it that its variants need."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from tdumpra.artifacts import fingerprint, jsonable
from tdumpra.errors import ArtifactError
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder, file_digest, fold_place, run_root, settings_of_outputs
from tdumpra.runs.tables import OutputsTable, how_made
from tdumpra.writing import make_folder, write_bytes


def place(config: Config, seed: int) -> Path:
    """Find the folder of a training: the run's own if its tables are of these settings, else one below it.

    Variants of one configuration so share what they have in common, and nothing is trained twice. An experiment reads
    the run's own folder and never writes to it.
    """
    for own in _own_folders(config, seed):
        if is_made(own, config, seed):
            return own.root
    below = run_root(config) / "trainings"
    there = (path for path in sorted(below.glob("*")) if RunFolder(path).was_embedded_with(config, seed))
    settings = json.dumps(jsonable(settings_of_outputs(config)), sort_keys=True)
    return next(there, below / fingerprint(settings, str(seed)))


def _own_folders(config: Config, seed: int) -> tuple[RunFolder, RunFolder]:
    """Return where the run itself keeps a seed: in its folder, if it had but one, or in one below."""
    root, fold = run_root(config), config.data.fold
    return RunFolder(fold_place(root, fold)), RunFolder(fold_place(root / f"seed-{seed}", fold))


def lend_checkpoints(config: Config, folder: RunFolder, seed: int) -> None:
    """Copy the run's own checkpoints, if they are of these settings: training goes on from them, or only embeds."""
    own = next((each for each in _own_folders(config, seed) if each.was_trained_with(config, seed)), None)
    if own is None or folder.checkpoint("last").exists():
        return
    for name in ("best", "last"):
        if own.checkpoint(name).exists():
            make_folder(folder.checkpoint(name).parent)
            write_bytes(folder.checkpoint(name), own.checkpoint(name).read_bytes())


def is_made(folder: RunFolder, config: Config, seed: int) -> bool:
    """Return whether the tables are there, of a training with these settings that came to its end."""
    if not folder.has_tables or not folder.was_trained_with(config, seed):
        return False
    table = folder.outputs("train")
    try:
        return _made(table, file_digest(table)) == how_made(config.embed, finished=True)
    except (ArtifactError, FileNotFoundError):
        return False


@lru_cache(maxsize=1024)
def _made(path: Path, digest: str) -> dict[str, Any]:
    return dict(OutputsTable.read(path).made)


def seconds_to_train(config: Config, folder: RunFolder, seed: int) -> float | None:
    """Estimate how long an experiment would train; 0 where nothing needs training, ``None`` where nobody knows.

    The estimate comes from trainings of the same backbone at the same image size below the same run: their last step,
    and how many views they took in a second.
    """
    if is_made(folder, config, seed):
        return 0.0
    known = []
    for path in sorted(run_root(config).rglob("metrics.jsonl")):
        other = RunFolder(path.parent)
        rows = [row for row in other.read_metrics() if "images_per_second" in row]
        if rows and other.is_of_network(config):
            views = 2 * config.train.batch_size * rows[-1]["step"]
            known.append(views / max(1e-9, median(row["images_per_second"] for row in rows)))
    return max(known, default=None)
