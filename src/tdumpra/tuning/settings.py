"""Settings of the bank and of its tuning: the sections ``[bank]`` and ``[tune]`` of a configuration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tdumpra.checks import check_count, check_unit_interval
from tdumpra.core.metrics import Objective
from tdumpra.tuning.presets import Preset, PresetName, check_preset


@dataclass(frozen=True, slots=True, kw_only=True)
class BankConfig:
    """The prototype bank."""

    n_prototypes: int = 5
    n_classes: int | None = None  # say it where saved outputs have a class without a training row
    space: str = "teacher"  # "teacher", "student", or another run's folder: its encoder is the second opinion
    thumbnails: bool = True  # keep small pictures of the exemplars in the model
    record: bool = True  # keep names and outputs of all rows in the model: validate, adapt and bank need them
    seed: int = 0  # of the clustering

    def __post_init__(self) -> None:
        check_count(self.n_prototypes, "n_prototypes")
        check_count(self.seed, "seed", least=0)
        if self.n_classes is not None:
            check_count(self.n_classes, "n_classes", least=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneConfig:
    """How the gate is chosen on validation outputs."""

    preset: PresetName | Preset = "default"  # a table [tune.preset] is one of your own
    objective: Objective = "balanced_accuracy"
    costs: tuple[tuple[float, ...], ...] = ()  # truth × decision; needed for the objective "cost", else only reported
    adjust_prior: bool = False
    classifier: Literal["student", "teacher"] = "student"  # "teacher": both posteriors from one pass
    certify: bool = False  # keep the gate shut unless its benefit is proven on lesions that took no part in choosing it
    level: float = 0.05  # of that proof
    correction: Literal["fixed-sequence", "holm"] = "fixed-sequence"
    certify_classes: tuple[str, ...] = ()  # by name or number: a certificate bounds their loss of sensitivity, too
    class_harm: float = 0.05  # a larger loss must be ruled out for each of them
    folds: int = 0  # cross-fit over train and validation in so many folds; 0 tunes on validation alone
    pool_seeds: bool = False  # one choice for all seeds, on the validation rows of all: each scored by its own seed
    max_asked: float = 1.0  # largest share of validation rows that theta may leave to the second network
    tolerance: float = 0.0  # of the objective, given up for the theta that asks about the fewest rows
    training_rows: bool = False  # when cross-fitting, score training rows too: only if they were predicted out of fold

    def __post_init__(self) -> None:
        check_unit_interval(self.level, "level")
        check_cost_limits(self.max_asked, self.tolerance)
        check_unit_interval(self.class_harm, "class_harm")
        if self.certify_classes and not self.certify:
            raise ValueError("certify_classes is for certificates: set certify too")
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

    def searched(self) -> Preset:
        """Return the candidates that are searched."""
        return check_preset(self.preset)

    @property
    def preset_name(self) -> str:
        """Return the preset's name, for a sentence."""
        return self.preset if isinstance(self.preset, str) else "of your own"

    def certified_classes(self, class_names: Sequence[str] | None, n_classes: int) -> dict[str, int]:
        """Return the names and numbers of the classes that a certificate must spare."""
        names = class_names or [str(c) for c in range(n_classes)]
        known = {**{str(c): c for c in range(n_classes)}, **{name: c for c, name in enumerate(names)}}
        unknown = [name for name in self.certify_classes if name not in known]
        if unknown:
            raise ValueError(f"certify_classes names {unknown[0]!r}; there are {', '.join(names)}")
        return {names[known[name]]: known[name] for name in self.certify_classes}


def check_cost_limits(max_asked: float, tolerance: float) -> None:
    """Refuse a share of rows to ask about, or a part of the objective to give up for it, that means nothing."""
    check_unit_interval(max_asked, "max_asked")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance must be a number, 0 or more, not {tolerance!r}")
