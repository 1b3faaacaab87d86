"""A run's folder: who may write to it, what it was made with, and where things lie in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdumpra.artifacts import read_json
from tdumpra.checks import SPLITS
from tdumpra.environment import write_environment
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.locks import exclusive
from tdumpra.networks.training_files import RunFolderError as RunFolderError
from tdumpra.networks.training_files import TrainingFiles
from tdumpra.runs.config import Config, read_config, write_config

_TRAINED_WITH = ("data", "augment", "network", "train")  # parts of the configuration that a checkpoint depends on
_MAY_CHANGE = {  # what has no bearing on weights and outputs
    *(
        f"train.{name}"
        for name in ("accelerator", "checkpoint_every", "checkpoint_minutes", "log_every", "tensorboard")
    ),
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
        """What tuning tried and chose."""
        return self.root / "gate.json"

    @property
    def evaluation(self) -> Path:
        """The figures."""
        return self.root / "evaluation.json"

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
            own = dataclasses.replace(config, seeds=(seed,))
            if self.config.exists():
                self._refuse_other_training(own)
            write_config(own, self.config)
            write_environment(self.root)
            yield

    def was_trained_with(self, config: Config, seed: int) -> bool:
        """Whether what is trained here is trained with these settings; it need not have come to its end."""
        return self._says(config, seed, _TRAINED_WITH)

    def was_embedded_with(self, config: Config, seed: int) -> bool:
        """Whether by its configuration the tables here are of these settings; the tables themselves know better."""
        return self._says(config, seed, (*_TRAINED_WITH, "embed"))

    @property
    def has_tables(self) -> bool:
        """Whether all tables are there, whatever they were made with."""
        return all(self.outputs(part).exists() for part in SPLITS)

    def _says(self, config: Config, seed: int, parts: tuple[str, ...]) -> bool:
        return self.config.exists() and not self._differences(dataclasses.replace(config, seeds=(seed,)), parts)

    def _refuse_other_training(self, config: Config) -> None:
        if not (self.checkpoint("last").exists() or self.outputs("train").exists()):
            return  # nothing was made with the older settings yet
        differing = self._differences(config)
        if differing:
            more = f" (and {len(differing) - 3} more)" if len(differing) > 3 else ""
            raise RunFolderError(
                f"{self.root} was made with other settings: {'; '.join(differing[:3])}{more}; take another name"
            )

    def _differences(self, config: Config, parts: tuple[str, ...] = _TRAINED_WITH) -> list[str]:
        before, now = _flat(read_config(self.config)), _flat(config)
        return [
            f"{key} was {before[key]!r} and is now {now[key]!r}"
            for key in now
            if key.split(".")[0] in (*parts, "seeds") and key not in _MAY_CHANGE and before[key] != now[key]
        ]


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
    except (ArtifactError, OSError):
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
        among = RunFolder(root / f"seed-{seeds[0]}")
        return {seeds[0]: among if among.config.exists() and not RunFolder(root).config.exists() else RunFolder(root)}
    return {seed: RunFolder(root / f"seed-{seed}") for seed in seeds}


def _flat(tree: Any) -> dict[str, Any]:
    def walk(table: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in table.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value

    return dict(walk(dataclasses.asdict(tree), ""))
