"""A run's folder: who may write to it, what it was made with, and where things lie in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tdumpra.artifacts import fingerprint, read_json
from tdumpra.checks import SPLITS
from tdumpra.environment import write_environment
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.locks import exclusive
from tdumpra.networks.checkpoint import RunFolderError as RunFolderError
from tdumpra.networks.checkpoint import TrainingFiles
from tdumpra.networks.settings import WITHOUT_EFFECT
from tdumpra.runs.config import Config, config_text, read_config
from tdumpra.writing import make_folder, sweep, write_bytes

_TRAINED_WITH = ("data", "augment", "network", "train")  # parts of the configuration that a checkpoint depends on
_MAY_CHANGE = {  # what has no bearing on weights and outputs
    *(f"train.{name}" for name in WITHOUT_EFFECT),
    *(f"data.{name}" for name in ("allow_missing", "cache", "pipeline", "workers")),
    "embed.batch_size",
}


@dataclass(frozen=True, slots=True)
class RunFolder(TrainingFiles):
    """Paths of one run (one seed)."""

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.root / "config.toml"

    @property
    def split(self) -> Path:
        """Which image stands where."""
        return self.root / "split.json"

    @property
    def bank(self) -> Path:
        """The prototype bank."""
        return self.root / "bank.safetensors"

    @property
    def model(self) -> Path:
        """Everything that prediction needs."""
        return self.root / "model.safetensors"

    @property
    def gate(self) -> Path:
        """The tuned gate: everything that tuning fitted, tried and chose."""
        return self.root / "gate.safetensors"

    @property
    def gate_document(self) -> Path:
        """The tuned gate, as a document for people."""
        return self.root / "gate.json"

    @property
    def evaluation(self) -> Path:
        """The figures."""
        return self.root / "evaluation.json"

    @property
    def compared(self) -> Path:
        """Replicates of the figures, which intervals over several seeds need."""
        return self.root / "compared.json"

    @property
    def refit(self) -> RefitFolder:
        """The folder of the second network, where ``train.refit`` asks for one."""
        return RefitFolder(self.root / "refit")

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the data that have a table."""
        return SPLITS

    def tables_digest(self) -> str:
        """Name the contents of the tables; says which stage to run if one is missing."""
        try:
            return fingerprint(*(file_digest(self.outputs(part)) for part in self.parts))
        except FileNotFoundError as error:
            raise ArtifactError(
                f"{error.filename} does not exist: run  tdumpra train  and  tdumpra embed  first"
            ) from error

    def outputs(self, part: str) -> Path:
        """The table of ``train``, ``val`` or ``test``."""
        return self.root / "outputs" / f"{part}.safetensors"

    @contextmanager
    def claim(self, config: Config, seed: int) -> Iterator[None]:
        """Hold the folder for one process; note what it is made with, or refuse if that was something else."""

        def refuse() -> None:
            raise RunFolderError(f"another process is working in {self.root}: wait for it, or choose another folder")

        try:
            for folder in (self.root, self.root / "checkpoints", self.root / "outputs"):
                folder.mkdir(parents=True, exist_ok=True)
            (self.root / ".lock").touch()
        except OSError as error:
            raise RunFolderError(f"cannot use the folder {self.root}: {error.strerror or error}") from error
        with exclusive(self.root / ".lock", on_wait=refuse, inherited=False):  # data workers only read
            sweep(self.root)  # here, since a stage with nothing to write removes nothing
            self.refuse_other_training(config, seed)
            self.note_settings(config, seed)
            yield

    def note_settings(self, config: Config, seed: int) -> None:
        """Write the resolved configuration, and what it runs on, unless that was done."""
        text = config_text(_of_seed(config, seed), self.root).encode()
        if not self.config.exists() or self.config.read_bytes() != text:
            make_folder(self.root)
            write_bytes(self.config, text)
            write_environment(self.root)

    def was_trained_with(self, config: Config, seed: int) -> bool:
        """Return whether the training here has these settings; it need not be finished."""
        return self._says(config, seed, _TRAINED_WITH)

    def was_embedded_with(self, config: Config, seed: int) -> bool:
        """Return whether the configuration here has these settings of training and embedding."""
        return self._says(config, seed, (*_TRAINED_WITH, "embed"))

    def is_of_network(self, config: Config) -> bool:
        """Return whether the configuration here has the same backbone at the same image size."""
        if not self.config.exists():
            return False
        kept = read_config(self.config).network
        return (kept.backbone, kept.image_size) == (config.network.backbone, config.network.image_size)

    @property
    def has_tables(self) -> bool:
        """Return whether all tables are there, whatever they were made with."""
        return all(self.outputs(part).exists() for part in self.parts)

    def _says(self, config: Config, seed: int, parts: tuple[str, ...]) -> bool:
        return self.config.exists() and not self._differences(_of_seed(config, seed), parts)

    def refuse_other_training(self, config: Config, seed: int) -> None:
        """Refuse a folder whose network was trained with other settings, or another seed."""
        made = self.checkpoint("last").exists() or self.outputs("train").exists()
        if not made or not self.config.exists():
            return
        differing = self._differences(_of_seed(config, seed))
        if differing:
            more = f" (and {len(differing) - 3} more)" if len(differing) > 3 else ""
            raise RunFolderError(
                f"{self.root} was made with other settings: {'; '.join(differing[:3])}{more}; take another name"
            )

    def _differences(self, config: Config, parts: tuple[str, ...] = _TRAINED_WITH) -> list[str]:
        kept = read_config(self.config)
        before, now = _flat(kept), _flat(config)
        return [
            f"{key} was {before[key]!r} and is now {now[key]!r}"
            for key in differences(kept, config)
            if key.split(".")[0] in (*parts, "seeds") and key not in _MAY_CHANGE
        ]


@dataclass(frozen=True, slots=True)
class RefitFolder(RunFolder):
    """Paths of a network that was trained on train and validation images, below those of the run.

    No validation images are left: there is no table of them, and no better checkpoint than the last.
    """

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the data that have a table; ``train`` holds the validation images too."""
        return ("train", "test")

    def checkpoint(self, name: str) -> Path:
        """Return the path of the last checkpoint, whichever is asked for."""
        return RunFolder.checkpoint(self, "last")


def _of_seed(config: Config, seed: int) -> Config:
    """Return the configuration of one seed; saved outputs say themselves which seeds they are."""
    return config if config.outputs else dataclasses.replace(config, seeds=(seed,))


def file_digest(path: Path) -> str:
    """Name a file's contents; it is read once, unless it becomes another file."""
    status = path.stat()
    return _digest(path, (status.st_mtime_ns, status.st_size, status.st_ino))


@lru_cache(maxsize=1024)
def _digest(path: Path, stamp: tuple[int, int, int]) -> str:
    return fingerprint(path)


def settings_of_outputs(config: Config) -> dict[str, Any]:
    """The settings that weights and outputs depend on."""
    return {
        key: value
        for key, value in _flat(config).items()
        if key.split(".")[0] in (*_TRAINED_WITH, "embed") and key not in _MAY_CHANGE
    }


def run_root(config: Config) -> Path:
    """The folder of a run, above those of its seeds."""
    return Path("runs") / config.name if config.folder is None else Path(config.folder)


def refuse_results_of_another(config: Config, folder: Path) -> None:
    """Several configurations may share one training; none may write over the results of another."""
    try:
        owner = read_json(folder / "evaluation.json", kind="evaluation", schema=1).get("name", config.name)
    except ArtifactError:
        return  # missing or damaged
    if owner != config.name:
        raise TdumpraError(
            f"{folder} holds the results of {owner!r}, which shares it with {config.name!r}: move them elsewhere "
            "first, or score the latter with  tdumpra evaluate CONFIG --out FOLDER  "
            f"(if the two are one, set name = {owner!r})"
        )


def run_folders(root: Path, seeds: tuple[int, ...]) -> dict[int, RunFolder]:
    """A run of one seed lives in its folder itself, several seeds each in a folder of their own below it.

    One seed of a run that had several is where it was.
    """
    if len(seeds) == 1:
        among = root / f"seed-{seeds[0]}"
        return {seeds[0]: RunFolder(among if _is_run(among) and not _is_run(root) else root)}
    if any(_holds_training(place) for place in (root, *fold_places(root).values())):
        raise RunFolderError(f"{root} holds a run of one seed: take another name or folder for several")
    return {seed: RunFolder(root / f"seed-{seed}") for seed in seeds}


class Member(NamedTuple):
    """One training of a run: of a seed, and of an outer fold where there are such."""

    config: Config  # of its fold
    seed: int
    folder: RunFolder


def members(config: Config, root: Path | None = None) -> list[Member]:
    """List the trainings of a run, each in a folder of its own: folds lie below their seed."""
    found: list[Member] = []
    for seed, folder in run_folders(run_root(config) if root is None else root, config.seeds).items():
        if config.data.outer_folds is not None and _holds_training(folder.root):
            raise RunFolderError(f"{folder.root} holds a run without folds: take another name or folder for folds")
        if config.data.outer_folds is None and any(map(_holds_training, fold_places(folder.root).values())):
            raise RunFolderError(f"{folder.root} holds a run of outer folds: take another name or folder")
        found += [Member(each, seed, RunFolder(fold_place(folder.root, each.data.fold))) for each in config.of_folds()]
    return found


def fold_place(root: Path, fold: int | None) -> Path:
    """Return the folder of a fold below that of its seed; without folds, the seed's own."""
    return root if fold is None else root / f"fold-{fold}"


def fold_places(root: Path) -> dict[int, Path]:
    """Return the folders of the folds of a seed that were begun."""
    found = (path.parent for path in root.glob("fold-*/config.toml"))
    return {int(path.name[5:]): path for path in sorted(found) if path.name[5:].isdigit()}


def _is_run(root: Path) -> bool:
    return RunFolder(root).config.exists() or bool(fold_places(root))


def _holds_training(root: Path) -> bool:
    return RunFolder(root).outputs("train").exists() or RunFolder(root).checkpoint("last").exists()


def differences(before: Config, now: Config) -> list[str]:
    """List the settings in which two configurations differ."""
    old, new = _flat(before), _flat(now)
    return [key for key in new if old[key] != new[key]]


def _flat(tree: Any) -> dict[str, Any]:
    def walk(table: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in table.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value

    return dict(walk(dataclasses.asdict(tree), ""))
