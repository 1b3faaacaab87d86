"""Where the outputs behind an experiment come from: files that were saved, or a training.

An experiment asks for "the outputs of this configuration and this seed" and does not care how they are made. Of saved
files the configuration says which model, training and seed they belong to.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from tdumpra.artifacts import fingerprint
from tdumpra.checks import SPLITS
from tdumpra.errors import InputFileError, TdumpraError
from tdumpra.method.output_files import SplitOutputs, read_outputs
from tdumpra.method.outputs import ScoredOutputs
from tdumpra.runs import trainings
from tdumpra.runs.config import Config, OutputFile, Training, read_config
from tdumpra.runs.folder import RunFolder, run_folders, run_root
from tdumpra.runs.tables import how_made, tables_fingerprint

Rows = TypeVar("Rows", bound=ScoredOutputs)


class SavedRun(NamedTuple):
    """One file of outputs and the model that it is of, or the folder of a run with its tables."""

    path: Path
    backbone: str
    training: Training | None  # None where nobody said
    seed: int
    is_file: bool = True  # else a run's folder

    @property
    def model(self) -> str:
        """The name without the seed: runs that share it are seeds of one model."""
        return f"{self.backbone}_{self.training}" if self.training else self.backbone


def saved_runs(config: Config) -> tuple[SavedRun, ...]:
    """The files of ``config.outputs``, told apart, or else the folders of the run's own seeds.

    Two files may not be the same seed of the same model.
    """
    if not config.outputs:
        folders = run_folders(run_root(config), config.seeds)
        return tuple(
            SavedRun(folder.root, config.name, _training(config), seed, False) for seed, folder in folders.items()
        )
    runs: list[SavedRun] = []
    for entry in config.outputs:
        run = SavedRun(Path(entry.file), entry.backbone or config.name, entry.training, entry.seed or 0)
        if entry.seed is None:
            run = run._replace(seed=sum(other.model == run.model for other in runs))
        runs.append(run)
    seen: dict[tuple[str, int], SavedRun] = {}
    for run in runs:
        other = seen.setdefault((run.model, run.seed), run)
        if other is not run:
            raise TdumpraError(
                f"outputs {other.path} and {run.path} are both seed {run.seed} of {run.model}: say in [[outputs]] "
                "which seed, training or backbone each is of"
            )
    return tuple(runs)


def read_run(path: Path) -> Config:
    """Read a run's configuration, as :func:`~tdumpra.runs.config.read_config` does."""
    return read_config(path)


def found_from_anywhere(entry: OutputFile) -> OutputFile:
    """Return an entry of ``outputs`` as it is: the run's folder keeps its path as one that resolves from there."""
    return entry


def runs_for(config: Config) -> tuple[SavedRun, ...]:
    """The saved runs that were trained as ``config`` says: with the contrastive loss, or without."""
    wanted, runs = _training(config), saved_runs(config)
    told = [run for run in runs if run.training == wanted]
    return tuple(told) or tuple(run for run in runs if run.training is None and wanted == "joint")


def unknown_of_files(config: Config) -> list[str]:
    """What saved outputs do not say of themselves, a sentence for each; none where a run has its own tables."""
    if not config.outputs:
        return []
    notes = ["The protocol of saved outputs is not known: their split is taken as it is."]
    runs = saved_runs(config)
    if untold := ", ".join(run.path.name for run in runs if run.training is None):
        notes.append(f"The configuration does not say how these were trained: taken as joint ({untold}).")
    if without := ", ".join(run.path.name for run in runs if not _has_teacher_space(run, config)):
        notes.append(f"Without zt in a file, the rows with a teacher (EMA) are the student's ({without}).")
    return notes


def _has_teacher_space(run: SavedRun, config: Config) -> bool:
    of_spaces = (replace(config, bank=replace(config.bank, space=space)) for space in ("student", "teacher"))
    try:
        student, teacher = (read_saved(run, each).train.z for each in of_spaces)
    except InputFileError:  # zt alone, or a file that is gone since it was scored
        return True
    return not torch.equal(student, teacher)


def seeds_for(config: Config) -> tuple[int, ...]:
    """The seeds whose outputs can be had; none where files were given and none of them belongs."""
    return tuple(run.seed for run in runs_for(config)) if config.outputs else config.seeds


def outputs_for(config: Config, seed: int) -> SplitOutputs:
    """The outputs of this configuration and seed: saved, embedded by this run, or trained now for the experiment."""
    if not config.outputs:
        folder = RunFolder(trainings.place(config, seed))
        if not trainings.is_made(folder, config, seed):
            from tdumpra.runs.stages import train_and_embed  # networks are loaded only where something is trained

            trainings.lend_checkpoints(config, folder, seed)
            train_and_embed(config, folder, seed)
        return _of_folder(folder, config, seed)
    run = next((run for run in runs_for(config) if run.seed == seed), None)
    if run is None:
        loss = "without" if config.train.contrastive_weight == 0 else "with"
        raise TdumpraError(f"no saved outputs were trained {loss} the contrastive loss and seed {seed}")
    return read_saved(run, config)


def identity(config: Config, seed: int) -> str:
    """A name for the outputs of this configuration and seed: by their contents, or where they are to be made, by place.

    What was computed from them is found again only as long as they are the same.
    """
    if not config.outputs:
        place = trainings.place(config, seed)
        if not trainings.is_made(RunFolder(place), config, seed):
            return f"{place.name} to be made"
        return run_identity(SavedRun(place, config.name, None, seed, False))
    run = next((run for run in runs_for(config) if run.seed == seed), None)
    return "" if run is None else run_identity(run)


def run_identity(run: SavedRun) -> str:
    """A name for a file's contents, or for the tables in a folder."""
    try:
        paths = [run.path] if run.is_file else [RunFolder(run.path).outputs(part) for part in SPLITS]
        return fingerprint(*(trainings.digest(path) for path in paths))
    except FileNotFoundError as error:
        stage = "" if run.is_file else ": run  tdumpra train  and  tdumpra embed  first"
        raise InputFileError(f"{error.filename} does not exist{stage}") from error
    except OSError as error:
        raise InputFileError(f"{run.path} cannot be read: {error.strerror or error}") from error


def outputs_identity(run: SavedRun, config: Config) -> dict[str, Any]:
    """What is asked of a run's outputs: its tables, by the settings that they should have been made with."""
    asked = {} if run.is_file else {"embed": how_made(config.embed, finished=True)}
    return {"outputs": run_identity(run), **asked}


def space_identity(config: Config, seed: int) -> dict[str, str]:
    """A name for the tables of the run in whose space the bank lives; nothing where that is this run."""
    if config.outputs or config.bank.space in ("teacher", "student"):
        return {}
    return {"bank.space": tables_fingerprint(config.bank.space, seed)}


def pool_identity(config: Config) -> dict[str, list[str]]:
    """Names for the outputs of all seeds, where one choice is made on them together; nothing where it is not."""
    if not config.tune.pool_seeds:
        return {}
    return {"pooled": [identity(config, seed) for seed in seeds_for(config)]}


def pooled_runs_identity(config: Config) -> dict[str, list[str]]:
    """The same for runs whose outputs are there."""
    return {"pooled": [run_identity(run) for run in saved_runs(config)]} if config.tune.pool_seeds else {}


def baseline_identity(config: Config, seed: int) -> dict[str, str]:
    """A name for the tables of the run that this one is measured against, where one was named."""
    place = config.evaluate.baseline
    return {} if place is None else {"evaluate.baseline": tables_fingerprint(place, seed, "evaluate.baseline")}


def read_saved(run: SavedRun, config: Config) -> SplitOutputs:
    """One run's outputs; the last few files are kept, as the rows of an experiment share them."""
    if not run.is_file:
        return _of_folder(RunFolder(run.path), config, run.seed)
    return _read(run.path, config.bank.space, config.tune.classifier, config.bank.n_classes)


def other_seeds(config: Config, run: SavedRun) -> list[SplitOutputs]:
    """The outputs of the model's other seeds, where one choice is made for all; else none."""
    if not config.tune.pool_seeds:
        return []
    runs = [other for other in saved_runs(config) if other.model == run.model and other.seed != run.seed]
    return [read_saved(other, config) for other in runs]


def other_seeds_for(config: Config, seed: int) -> list[SplitOutputs]:
    """The same for an experiment's variant, which may still have to be trained."""
    if not config.tune.pool_seeds:
        return []
    return [outputs_for(config, other) for other in seeds_for(config) if other != seed]


def _of_folder(folder: RunFolder, config: Config, seed: int) -> SplitOutputs:
    from tdumpra.runs.table_stages import folder_outputs

    return folder_outputs(config, folder, seed)


def _training(config: Config) -> Training:
    return "ce" if config.train.contrastive_weight == 0 else "joint"


@lru_cache(maxsize=4)
def _read(path: Path, space: str, classifier: str, n_classes: int | None) -> SplitOutputs:
    splits = read_outputs(path, space=space)
    try:
        if n_classes is None:
            advice = f"give it some, or set bank.n_classes = {splits.n_classes} if that is meant"
            splits.train.refuse_missing_class(splits.n_classes, splits.class_names, advice)
        elif n_classes != splits.n_classes:
            raise ValueError(f"it tells {splits.n_classes} classes apart, and bank.n_classes is {n_classes}")
    except ValueError as error:
        raise InputFileError(f"{path}: {error}") from error
    return splits if classifier == "student" else _by_teacher(splits, path)


def _by_teacher(splits: SplitOutputs, path: Path) -> SplitOutputs:
    """Both posteriors from the teacher; of training rows only the student's is known, and is not taken for it."""
    return splits._replace(
        train=replace(splits.train, p=None),
        validation=_teachers(splits.validation, path),
        test=_teachers(splits.test, path),
        fingerprint=fingerprint(splits.fingerprint, "teacher"),
    )


def _teachers(rows: Rows, path: Path) -> Rows:
    if rows.p_teacher is None:
        raise InputFileError(
            f'{path} has no pt, the teacher\'s probabilities, and tune.classifier = "teacher" asks for them: put them '
            'into the file, or take "student"'
        )
    return replace(rows, p=rows.p_teacher)


def training_seconds(config: Config, seed: int) -> float | None:
    """How long :func:`outputs_for` would train; 0 where nothing needs training, ``None`` where nobody knows."""
    return 0.0 if config.outputs else trainings.seconds_to_train(config, seed)
