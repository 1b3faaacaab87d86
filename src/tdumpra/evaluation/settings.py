"""Settings of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from tdumpra.checks import check_class_names, check_count, check_unit_interval

MOST_CLASSES = 50  # whose operating points are given unasked


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """How test outputs are scored."""

    bootstrap: int = 1000  # replicates over groups; 0 for none
    tuning_replicates: int = 0  # with the gate tuned again on redrawn validation groups; 0, or 2 / (1 − level) and more
    level: float = 0.95  # of the intervals
    seed: int = 0  # of the replicates
    class_names: tuple[str, ...] = ()  # numbers are shown where there are none
    sensitivity_classes: tuple[str, ...] = ()  # by name or number; left out: all, and of more than 50 none
    specificities: tuple[float, ...] = (0.8, 0.9, 0.95)  # at which the sensitivity for them is given
    subgroups: tuple[str, ...] = ()  # columns of the outputs, or of ``metadata``
    metadata: str | None = None  # a CSV table with a column ``id`` or ``image_id``
    ambiguous_below: float | None = None  # top-1 probability; the gate's own theta if left out
    baseline: str | None = None  # another run's folder: its classifier is what the gate is measured against
    refer_risk: float = 0.1  # errors that are tolerated among the cases that are not handed to a human

    def __post_init__(self) -> None:
        for name in ("bootstrap", "tuning_replicates"):
            check_count(getattr(self, name), name, least=0)
        for name in ("level", "refer_risk"):
            check_unit_interval(getattr(self, name), name)
        self._check_tuning_replicates()
        for value in self.specificities:
            check_unit_interval(value, "specificities")
        if self.ambiguous_below is not None:
            check_unit_interval(self.ambiguous_below, "ambiguous_below")
        if len(set(self.class_names)) != len(self.class_names):
            raise ValueError("class_names must differ from each other")

    def _check_tuning_replicates(self) -> None:
        """Refuse so few replicates that an interval's ends would be the outermost of them."""
        if not self.tuning_replicates:
            return
        if self.level == 1:
            raise ValueError("tuning_replicates gives no interval at a level of 1: choose a lower level")
        least = math.ceil(round(2 / (1 - self.level), 6))  # one replicate beyond each end
        if self.tuning_replicates < least:
            raise ValueError(
                f"tuning_replicates must be 0, or at least {least} for intervals at a level of {self.level:g}, not "
                f"{self.tuning_replicates}"
            )

    def names(self, n_classes: int) -> tuple[str, ...]:
        """Return a name for each class."""
        return check_class_names(self.class_names or tuple(map(str, range(n_classes))), n_classes)

    def chosen_classes(self, n_classes: int) -> tuple[int, ...]:
        """Return the classes whose sensitivity is asked for: of many, only those that are named."""
        names = self.names(n_classes)
        known = {**{str(c): c for c in range(n_classes)}, **{name: c for c, name in enumerate(names)}}
        unknown = [name for name in self.sensitivity_classes if name not in known]
        if unknown:
            raise ValueError(f"sensitivity_classes names {unknown[0]!r}; there are {', '.join(names)}")
        unasked = range(n_classes) if n_classes <= MOST_CLASSES else ()
        return tuple(known[name] for name in self.sensitivity_classes) or tuple(unasked)

    def check_subgroups(self, known: Collection[str]) -> None:
        """Refuse a subgroup that is not a column of the outputs."""
        unknown = [name for name in self.subgroups if name not in known]
        if unknown:
            have = f"there are {', '.join(known)}" if known else "the outputs carry no metadata columns"
            raise ValueError(f"subgroups names {unknown[0]!r}; {have}")
