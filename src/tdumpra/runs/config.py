"""One run's settings: a tree of frozen dataclasses, read from TOML. Each stage is given its own part.

Defaults are the project's; with ``recipe = "paper"`` they are the paper's, each with its source in
``docs/paper-notes.md``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from tdumpra.checks import check_count
from tdumpra.data.batches.augment import AugmentConfig
from tdumpra.data.settings import DataConfig as DataConfig
from tdumpra.data.sources import SOURCE_KINDS
from tdumpra.evaluation.settings import EvaluateConfig as EvaluateConfig
from tdumpra.networks.settings import EmbedConfig as EmbedConfig
from tdumpra.networks.settings import NetworkConfig as NetworkConfig
from tdumpra.networks.settings import TrainConfig as TrainConfig
from tdumpra.toml import ConfigError, Plain, read_toml, read_tree, to_toml
from tdumpra.tuning.settings import BankConfig as BankConfig
from tdumpra.tuning.settings import TuneConfig as TuneConfig

Training = Literal["ce", "joint"]
Recipe = Literal["paper"]  # each is a file of the folder recipes
_PATHS = {  # settings that name files; relative ones count from the configuration file that they stand in
    "data": ("source", "test_source", "split_file", "duplicates"),
    "network": ("weights",),
    "evaluate": ("metadata",),
}
_SEARCHED = ("augment", "network", "train", "embed", "bank", "tune")  # sections whose settings may be searched
_NO_FILES = ("none", "timm", "lite")  # words for weights that are not a path


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """A file of outputs that a model elsewhere gave, and what is known of that model.

    In the list ``outputs``, ``"FILE"`` stands for such a table, and ``"ce=FILE"`` or ``"joint=FILE"`` also name the
    training.
    """

    file: str  # .npz, .csv or .parquet, as ``tdumpra attach`` reads it
    training: Training | None = None  # with cross-entropy alone, or with the joint objective; taken as joint if unknown
    seed: int | None = None  # its place among the files of its model (and fold), if left out
    fold: int | None = None  # which outer fold of its seed it tests: the folds of a seed are scored together
    backbone: str | None = None  # the configuration's name, if left out

    def __post_init__(self) -> None:
        for value, name in ((self.seed, "seed"), (self.fold, "fold")):
            if value is not None:
                check_count(value, name, least=0)
        if self.backbone is not None:
            _check_name(self.backbone, "backbone")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """Settings of a sweep that need trainings of their own."""

    contrastive_weights: tuple[float, ...] = ()  # values of lambda, each of which needs a training for each seed

    def __post_init__(self) -> None:
        if not all(weight >= 0 for weight in self.contrastive_weights):
            raise ValueError(f"contrastive_weights must be 0 or more, not {list(self.contrastive_weights)}")
        if len(set(self.contrastive_weights)) != len(self.contrastive_weights):
            raise ValueError(f"contrastive_weights must differ from each other, not {list(self.contrastive_weights)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRange:
    """A setting that is searched: between two numbers, or among choices."""

    key: str  # the setting, as in train.learning_rate
    low: int | float | None = None
    high: int | float | None = None
    log: bool = False  # draw orders of magnitude alike
    choices: tuple[str | int | float | bool, ...] = ()

    def __post_init__(self) -> None:
        section, dot, name = self.key.partition(".")
        if section not in _SEARCHED or not dot or not name:
            raise ValueError(f"key must be a setting of {', '.join(_SEARCHED)}, not {self.key!r}")
        between = self.low is not None and self.high is not None
        if between == bool(self.choices):
            raise ValueError(f"{self.key} needs low and high, or choices")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"{self.key} needs low below high, not {self.low} and {self.high}")
        if self.log and not (self.low is not None and self.low > 0):
            raise ValueError(f"{self.key}: orders of magnitude (log) need low above 0")

    @property
    def ends(self) -> tuple[str | int | float | bool, ...]:
        """Return the values that must be possible if all are: both ends, or every choice."""
        return self.choices or tuple(each for each in (self.low, self.high) if each is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """What ``tdumpra search`` tries."""

    ranges: tuple[SearchRange, ...] = ()
    trials: int = 40
    seed: int = 0  # of the draws
    prune: bool = True  # end a training early that is below the median of the others

    def __post_init__(self) -> None:
        check_count(self.trials, "trials")
        check_count(self.seed, "seed", least=0)
        keys = [each.key for each in self.ranges]
        if len(set(keys)) != len(keys):
            raise ValueError(f"ranges must name each setting once, not {keys}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything about a run."""

    name: str = "run"
    recipe: Recipe | None = None  # values for all that this file leaves out: `"paper"` for the paper's own setting
    folder: str | None = None  # the run's folder, relative to the working folder; runs/NAME if left out
    seeds: tuple[int, ...] = (0,)
    outputs: tuple[OutputFile, ...] = ()  # saved outputs of models trained elsewhere: nothing is trained then
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    bank: BankConfig = field(default_factory=BankConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        if self.folder is None or len(self.outputs) > 1:  # several outputs have folders called after them
            _check_name(self.name, "name")
        if self.folder is not None and not self.folder.strip():
            raise ValueError("folder is where the run lives: leave it out for runs/NAME, it cannot be empty")
        check_count(self.evaluate.seed, "evaluate.seed", least=0)
        if not self.seeds:
            raise ValueError("seeds must name at least one seed")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must differ from each other, not {list(self.seeds)}")
        for seed in self.seeds:
            check_count(seed, "a seed", least=0)
        if self.train.refit:
            self._refuse_refit()

    def _refuse_refit(self) -> None:
        """Refuse a second training where there is no first one, or where what is tuned cannot be carried over."""
        if self.outputs:
            raise ValueError("train.refit trains a second network, and outputs are saved ones: leave one out")
        if self.network.as_it_is:
            raise ValueError("train.refit trains a network again, and this one is taken as it is: leave one out")
        if self.tune.folds:
            raise ValueError("train.refit puts validation rows into the bank, and so does tune.folds: leave one out")
        if self.tune.certify:
            raise ValueError(
                "tune.certify proves a gate for one network, and train.refit puts another into use: leave one out"
            )
        if self.evaluate.tuning_replicates:
            raise ValueError(
                "evaluate.tuning_replicates tunes a gate again and scores it with the same network, and train.refit "
                "scores with another: leave one out"
            )

    def of_folds(self) -> tuple[Config, ...]:
        """Return the configuration of each outer fold that is to be run; itself where there are none."""
        data = self.data
        if data.outer_folds is None or data.fold is not None:
            return (self,)
        return tuple(replace(self, data=replace(data, fold=fold)) for fold in range(data.outer_folds))


def read_config(
    path: str | Path | None, *, changes: Sequence[str] = (), seeds: tuple[int, ...] | None = None
) -> Config:
    """Read a run's TOML file; a run without a name is called after its file.

    Where the file names a ``recipe``, what it leaves out has the recipe's values, and the project's defaults after
    these.

    Relative paths of files count from the configuration file that names them, those in ``changes`` from the working
    folder. Folders that runs write to or read from (``folder``, ``data.cache``, ``bank.space``,
    ``evaluate.baseline``) always count from the working folder, as ``runs/NAME`` does.

    Args:
        path: the TOML file; without one, ``changes`` say everything.
        changes: ``KEY=VALUE`` each, in place of what the file says.
        seeds: in place of the file's.
    """
    if seeds is not None:
        changes = (*changes, f"seeds={list(seeds)}")
    defaults = {} if path is None else {"name": Path(path).stem}
    return read_tree(path, Config, changes=changes, adapt=_from_file, below=_recipe, **defaults)


def _recipe(content: Plain) -> Plain:
    """Return the values of the recipe that ``content`` names; an unknown name is refused where all keys are."""
    name = content.get("recipe")
    return read_toml(Path(__file__).parent / "recipes" / f"{name}.toml") if name in get_args(Recipe) else {}


def config_text(config: Config, folder: Path) -> str:
    """Return the whole configuration as TOML that means the same when it is read from a file in ``folder``."""
    return to_toml(_with_paths(asdict(config), lambda place: os.path.relpath(place, folder)))


def _from_file(content: Plain, folder: Path) -> Plain:
    """Return a file's values with paths that count from the working folder, and each of its outputs as a table."""
    if isinstance(outputs := content.get("outputs"), list):
        content = {**content, "outputs": [_output_table(entry) for entry in outputs]}
    if isinstance(train := content.get("train"), dict) and "train_on_val" in train:
        content = {**content, "train": _without_train_on_val(train)}
    return _with_paths(content, lambda place: os.path.relpath(folder / place))


def _without_train_on_val(train: Plain) -> Plain:
    """Refuse a setting of before; folders of earlier runs say that it was off, which changes nothing."""
    if train["train_on_val"] is not False:
        raise ConfigError(
            "train.train_on_val is gone, since it tuned on images that the network was trained on: train.refit = true "
            "tunes first, and then trains on train and validation images"
        )
    return {name: value for name, value in train.items() if name != "train_on_val"}


def _output_table(entry: Any) -> Any:
    """Return ``"FILE"``, ``"ce=FILE"`` or ``"joint=FILE"`` as the table that it stands for."""
    if not isinstance(entry, str):
        return entry
    training, equals, file = entry.partition("=")
    return {"file": file, "training": training} if equals and training in ("ce", "joint") else {"file": entry}


def _with_paths(content: Plain, change: Callable[[str], str]) -> Plain:
    """Return plain values with ``change`` made to every relative path of a file."""

    def changed(table: Any, names: Sequence[str]) -> Any:
        if not isinstance(table, dict):
            return table
        return {key: _moved(value, change) if key in names else value for key, value in table.items()}

    moved = {section: changed(content[section], names) for section, names in _PATHS.items() if section in content}
    if isinstance(outputs := content.get("outputs"), list | tuple):
        moved["outputs"] = [changed(each, ("file",)) for each in outputs]
    return {**content, **moved}


def _moved(value: Any, change: Callable[[str], str]) -> Any:
    if not isinstance(value, str) or value in _NO_FILES:
        return value
    kind, colon, place = value.partition(":")
    if not colon or kind not in SOURCE_KINDS:
        kind, colon, place = "", "", value
    absolute = Path(place).is_absolute() or place.startswith("~")
    return value if not place or kind == "synthetic" or absolute else f"{kind}{colon}{change(place)}"


def _check_name(name: str, key: str) -> None:
    """Refuse a name that cannot be that of a folder."""
    if not name or name != name.strip() or name in (".", "..") or set(name) & set("/\\:"):
        raise ValueError(
            f"{key} is the name of a folder, so not empty or dots, and without slashes, colons or outer blanks, not "
            f"{name!r}"
        )
