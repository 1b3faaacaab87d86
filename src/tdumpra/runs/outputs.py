"""Where outputs come from: a file that was saved elsewhere, or the tables of a training.

Whatever comes after embedding takes :class:`SavedOutputs` or :class:`TrainedOutputs` and does not care which: ``load``
gives the three splits, ``identity`` a name for their contents, ``place`` the folder of all that is made from them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from tdumpra.artifacts import fingerprint
from tdumpra.errors import InputFileError, TdumpraError
from tdumpra.foreign import cannot_read
from tdumpra.method.output_files import SplitOutputs, read_outputs
from tdumpra.method.outputs import ScoredOutputs
from tdumpra.runs import trainings
from tdumpra.runs.config import Config, Training
from tdumpra.runs.folder import RunFolder, file_digest, fold_place, members, run_root
from tdumpra.runs.tables import folder_outputs, how_made, run_with_tables, tables_fingerprint

Rows = TypeVar("Rows", bound=ScoredOutputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs(ABC):
    """The outputs of one model and seed, and how everything after them is configured."""

    config: Config
    seed: int
    place: Path  # the folder of the bank, the gate and the evaluation
    backbone: str
    training: Training | None  # None where nobody said
    fold: int | None = None  # which outer fold they test, where there are several
    others: tuple[Outputs, ...] = ()  # the model's other seeds, where one gate is chosen for all

    @property
    def model(self) -> str:
        """Return the name without the seed: outputs that share it are seeds of one model."""
        return f"{self.backbone}_{self.training}" if self.training else self.backbone

    @property
    def name(self) -> str:
        """Return a name for a person."""
        return self.seed_name if self.fold is None else f"{self.seed_name}, fold {self.fold}"

    @property
    def seed_name(self) -> str:
        """Return the name without the fold: outputs that share it are scored together."""
        return f"{self.model}, seed {self.seed}"

    @property
    def label(self) -> str:
        """Return a name for files and tables."""
        return f"{self.model}_seed{self.seed}" + ("" if self.fold is None else f"_fold{self.fold}")

    @property
    @abstractmethod
    def origin(self) -> Path:
        """Return the file or folder that they are read from."""

    @abstractmethod
    def load(self) -> SplitOutputs:
        """Read the three splits."""

    @abstractmethod
    def own_identity(self) -> dict[str, Any]:
        """Name the contents that :meth:`load` would read."""

    def identity(self) -> dict[str, Any]:
        """Name everything that a gate may be chosen on: these outputs, and those that are pooled with them."""
        pooled = {"pooled": [other.own_identity() for other in self.others]} if self.others else {}
        return {**self.own_identity(), **pooled}

    def seconds_to_make(self) -> float | None:
        """Estimate how long :meth:`load` would train first; ``None`` where nobody knows."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedOutputs(Outputs):
    """Outputs in a file."""

    file: Path

    @property
    def origin(self) -> Path:
        """Return the file."""
        return self.file

    def load(self) -> SplitOutputs:
        """Read the file; the last few are kept in memory, as the rows of an experiment share them."""
        bank = self.config.bank
        return _read(self.file, self._digest(), bank.space, self.config.tune.classifier, bank.n_classes)

    def own_identity(self) -> dict[str, Any]:
        """Name the file's contents."""
        return {"outputs": self._digest()}

    def _digest(self) -> str:
        try:
            return file_digest(self.file)
        except FileNotFoundError as error:
            raise InputFileError(f"{self.file} does not exist") from error
        except OSError as error:
            raise cannot_read(self.file, error) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedOutputs(Outputs):
    """Outputs in the tables of a training, which may still have to be made."""

    folder: RunFolder
    may_train: bool = False  # an experiment's variant: train it if nobody has
    on_validated: Callable[[int, Mapping[str, float]], None] | None = None  # watches that training

    @property
    def origin(self) -> Path:
        """Return the folder of the training."""
        return self.folder.root

    def load(self) -> SplitOutputs:
        """Read the tables; for an experiment, train and embed first where that was not done."""
        if self.may_train and not trainings.is_made(self.folder, self.config, self.seed):
            from tdumpra.runs.pixel_stages import train_and_embed  # networks are loaded only where something is trained

            trainings.lend_checkpoints(self.config, self.folder, self.seed)
            train_and_embed(self.config, self.folder, self.seed, self.on_validated)
        return folder_outputs(self.config, self.folder, self.seed).searched()

    def own_identity(self) -> dict[str, Any]:
        """Name the tables' contents, or the place where they are to be made."""
        space = self.config.bank.space
        other = {}
        if space not in ("teacher", "student"):
            other["bank.space"] = tables_fingerprint(run_with_tables(space, self.seed, fold=self.fold))
        if self.may_train and not trainings.is_made(self.folder, self.config, self.seed):
            return {"outputs": f"{self.folder.root.name} to be made", **other}
        self.folder.refuse_other_training(self.config, self.seed)
        asked = how_made(self.config.embed, finished=True)
        return {"outputs": self.folder.tables_digest(), "embed": asked, **other}

    def seconds_to_make(self) -> float | None:
        """Estimate how long training would take."""
        return trainings.seconds_to_train(self.config, self.folder, self.seed) if self.may_train else 0.0


def all_outputs(config: Config, out: Path | None = None) -> tuple[Outputs, ...]:
    """List the outputs behind a configuration: the files that it names, or the tables of its own seeds.

    ``out`` is a folder for results, in place of the run's own.
    """
    out = None if out == run_root(config) else out
    root = run_root(config) if out is None else out
    found: list[Outputs] = []
    if config.outputs:
        found += _saved(config, root)
    else:
        for of_fold, seed, folder in members(config):
            fold, place = of_fold.data.fold, folder.root
            if out is not None:
                place = fold_place(out if len(config.seeds) == 1 else out / f"seed-{seed}", fold)
            found.append(
                TrainedOutputs(
                    config=of_fold, seed=seed, place=place, backbone=config.name, training=None, folder=folder,
                    fold=fold,
                )
            )  # fmt: skip
    return _pooled(config, found)


def folds_of_seeds(outputs: Sequence[Outputs]) -> list[tuple[Outputs, ...]]:
    """Put together what is scored together: the outer folds of each seed; without folds, each output alone."""
    found: dict[str, list[Outputs]] = {}
    for each in outputs:
        found.setdefault(each.seed_name, []).append(each)
    return [tuple(folds) for folds in found.values()]


def place_of(folds: Sequence[Outputs]) -> Path:
    """Return the folder of the evaluation of outputs that are scored together: above those of the folds."""
    return folds[0].place if len(folds) == 1 else folds[0].place.parent


def variant_outputs(config: Config) -> tuple[Outputs, ...]:
    """List the outputs of an experiment's variant: files that were trained like it, or trainings that may be made."""
    found: list[Outputs] = []
    wanted = _training(config)
    if config.outputs:
        found += [each for each in _saved(config, run_root(config)) if (each.training or "joint") == wanted]
    else:
        for seed in config.seeds:
            folder = RunFolder(trainings.place(config, seed))
            found.append(
                TrainedOutputs(
                    config=config, seed=seed, place=folder.root, backbone=config.name, training=wanted, folder=folder,
                    may_train=True, fold=config.data.fold,
                )
            )  # fmt: skip
    return _pooled(config, found)


def _saved(config: Config, root: Path) -> list[SavedOutputs]:
    seen: dict[tuple[str, int, int | None], SavedOutputs] = {}
    for entry in config.outputs:
        outputs = SavedOutputs(
            config=config, seed=entry.seed or 0, place=root, backbone=entry.backbone or config.name,
            training=entry.training, file=Path(entry.file), fold=entry.fold,
        )  # fmt: skip
        if entry.seed is None:  # its place among the files of its model, and of its fold
            before = sum((each.model, each.fold) == (outputs.model, outputs.fold) for each in seen.values())
            outputs = replace(outputs, seed=before)
        if (outputs.model, outputs.file.resolve()) in {(each.model, each.file.resolve()) for each in seen.values()}:
            raise TdumpraError(f"outputs names {outputs.file} twice for {outputs.model}: one file is one seed or fold")
        other = seen.setdefault((outputs.model, outputs.seed, outputs.fold), outputs)
        if other is not outputs:
            raise TdumpraError(
                f"outputs {other.file} and {outputs.file} are both of {outputs.name}: give one of them another seed, "
                "fold, training or backbone in its table [[outputs]]"
            )
    seeds = dict.fromkeys(each.seed_name for each in seen.values())
    for name in seeds:
        if len({each.fold is None for each in seen.values() if each.seed_name == name}) > 1:
            raise TdumpraError(f"some outputs of {name} name their fold and others do not: say it in each, or in none")

    def place(each: SavedOutputs) -> Path:
        return fold_place(root if len(seeds) == 1 else root / f"{each.model}_seed{each.seed}", each.fold)

    return [replace(each, place=place(each)) for each in seen.values()]


def _pooled(config: Config, found: Sequence[Outputs]) -> tuple[Outputs, ...]:
    """Tell the seeds of a model of each other, where one gate is chosen for all."""
    if not config.tune.pool_seeds:
        return tuple(found)
    return tuple(
        replace(
            each,
            others=tuple(o for o in found if (o.model, o.fold) == (each.model, each.fold) and o is not each),
        )
        for each in found
    )


def _training(config: Config) -> Training:
    return "ce" if config.train.contrastive_weight == 0 else "joint"


def unknown_of_files(config: Config) -> list[str]:
    """Say what saved outputs do not tell of themselves, a sentence for each."""
    if not config.outputs:
        return []
    notes = ["The protocol of saved outputs is not known: their split is taken as it is."]
    saved = _saved(config, run_root(config))
    if untold := ", ".join(each.file.name for each in saved if each.training is None):
        notes.append(f"Nothing says how these files were trained; they are taken as joint: {untold}.")
    if without := ", ".join(each.file.name for each in saved if not _has_teacher_space(each)):
        notes.append(f"Without zt in a file, the rows with a teacher (EMA) are the student's ({without}).")
    return notes


def _has_teacher_space(outputs: SavedOutputs) -> bool:
    config = outputs.config
    of_spaces = (
        replace(outputs, config=replace(config, bank=replace(config.bank, space=space)))
        for space in ("student", "teacher")
    )
    try:
        student, teacher = (each.load().train.z for each in of_spaces)
    except InputFileError:  # zt alone, or a file that is gone since it was scored
        return True
    return not torch.equal(student, teacher)


@lru_cache(maxsize=4)
def _read(path: Path, digest: str, space: str, classifier: str, n_classes: int | None) -> SplitOutputs:
    splits = read_outputs(path, space=space).searched()
    try:
        if n_classes is None:
            n = splits.n_classes
            advice = f"give it some, or say that it is meant: bank.n_classes = {n}, for attach --n-classes {n}"
            splits.train.refuse_missing_class(splits.n_classes, splits.class_names, advice)
        elif n_classes != splits.n_classes:
            raise ValueError(f"it tells {splits.n_classes} classes apart, and bank.n_classes is {n_classes}")
    except ValueError as error:
        raise InputFileError(f"{path}: {error}") from error
    return splits if classifier == "student" else _by_teacher(splits, path)


def _by_teacher(splits: SplitOutputs, path: Path) -> SplitOutputs:
    """Take both posteriors from the teacher; of training rows only the student's is known, and is left out."""
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
