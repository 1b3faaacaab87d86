"""One run's settings: a tree of frozen dataclasses, read from TOML. Each stage is given its own part.

Defaults are the project's; ``docs/paper-notes.md`` says where they differ from the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from tdumpra.checks import check_count
from tdumpra.data.batches.augment import AugmentConfig
from tdumpra.data.settings import DataConfig as DataConfig
from tdumpra.evaluation.settings import EvaluateConfig as EvaluateConfig
from tdumpra.networks.settings import EmbedConfig as EmbedConfig
from tdumpra.networks.settings import NetworkConfig as NetworkConfig
from tdumpra.networks.settings import TrainConfig as TrainConfig
from tdumpra.toml import ConfigError, read_tree
from tdumpra.tuning.settings import BankConfig as BankConfig
from tdumpra.tuning.settings import TuneConfig as TuneConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """What a sweep moves besides the settings that cost nothing to move."""

    contrastive_weights: tuple[float, ...] = ()  # values of lambda, each of which needs a training for each seed

    def __post_init__(self) -> None:
        if not all(weight >= 0 for weight in self.contrastive_weights):
            raise ValueError(f"contrastive_weights must be 0 or more, not {list(self.contrastive_weights)}")
        if len(set(self.contrastive_weights)) != len(self.contrastive_weights):
            raise ValueError(f"contrastive_weights must differ from each other, not {list(self.contrastive_weights)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything about a run."""

    name: str = "run"
    folder: str | None = None  # where the run lives; runs/NAME if left out
    seeds: tuple[int, ...] = (0,)
    outputs: tuple[str, ...] = ()  # saved outputs of models trained elsewhere: nothing is trained then
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    bank: BankConfig = field(default_factory=BankConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)

    def __post_init__(self) -> None:
        if self.folder is None:
            _check_name(self.name)
        elif not self.folder.strip():
            raise ValueError("folder is where the run lives: leave it out for runs/NAME, it cannot be empty")
        check_count(self.evaluate.seed, "evaluate.seed", least=0)
        if not self.seeds:
            raise ValueError("seeds must name at least one seed")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must differ from each other, not {list(self.seeds)}")
        for seed in self.seeds:
            check_count(seed, "a seed", least=0)
        if self.embed.checkpoint == "best" and self.train.train_on_val:
            raise ValueError('embed.checkpoint = "best" needs validation images, and train.train_on_val leaves none')


def read_config(path: str | Path) -> Config:
    """Read a run's TOML file; a run without a name is called after its file."""
    config = read_tree(path, Config, name=Path(path).stem)
    return config if config.outputs else _with_crops_for_network(config, path)  # of saved outputs nothing is cropped


def _check_name(name: str) -> None:
    if not name or name != name.strip() or name in (".", "..") or set(name) & set("/\\:"):
        raise ValueError(
            "name is a folder below runs/, so not empty or dots, and without slashes, colons or outer blanks, "
            f"not {name!r}"
        )


def _with_crops_for_network(config: Config, path: str | Path) -> Config:
    """Crops are as large as the network's images; what is set may only say the same."""
    size = config.network.image_size
    if config.augment.size not in (size, AugmentConfig().size):
        raise ConfigError(
            f"{path}: augment.size is network.image_size, {size}: leave it out (not {config.augment.size})"
        )
    return replace(config, augment=replace(config.augment, size=size))
