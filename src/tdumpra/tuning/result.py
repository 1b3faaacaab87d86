"""The result of tuning: the fitted decision, what won, and everything that was tried."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from tdumpra.artifacts import Artifact, prefixed, unprefixed
from tdumpra.core.chances import CalibratedGate
from tdumpra.core.gate import FusionRule, GateThresholds
from tdumpra.core.metrics import Objective
from tdumpra.method.decision import Decision
from tdumpra.toml import from_plain
from tdumpra.tuning.goal import LOSSES, objective_name, shown_value
from tdumpra.tuning.notes import Note

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the search and its score on the validation data; ``thresholds`` is ``None`` for the shut gate."""

    kappa: float
    tau: float
    rule: FusionRule
    thresholds: GateThresholds | None
    objective: float
    accuracy: float
    opened: int
    calibrated: CalibratedGate | None = None  # with thresholds that ask for no more than the preset's bounds
    fused_exponent: float = 0.0
    asked: float = 0.0  # share of the rows on which the classifier's confidence lies below theta

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def apply_to(self, decision: Decision) -> Decision:
        """Return ``decision`` with this gate in place of its own."""
        return replace(
            decision,
            kappa=self.kappa,
            tau=self.tau,
            rule=self.rule,
            thresholds=self.thresholds or GateThresholds.shut(),
            calibrated=self.calibrated,
            fused_exponent=self.fused_exponent,
        )

    @property
    def gate(self) -> str:
        """Return the kind of gate, in words."""
        if self.thresholds is None:
            return "the shut gate"
        return "the calibrated gate" if self.calibrated else "the five clauses"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Curve:
    """Objective, accuracy and openings of every combination.

    Axes of the five clauses: kappa, rule, alpha, fused_exponent, theta, beta, margin, delta. Of the calibrated gate:
    kappa, rule, alpha, fused_exponent, theta, advantage. Where several tau are searched, kappa is listed once for each.
    """

    axes: dict[str, tuple[float | str, ...]]
    tau: tuple[float, ...]  # for each kappa
    similarity_nll: tuple[float, ...]  # of retrieval alone, for each kappa
    objective: Array
    accuracy: Array
    opened: Array
    asked: tuple[float, ...] = ()  # for each theta, the share of rows on which the classifier's confidence lies below

    def __repr__(self) -> str:
        axes = " × ".join(f"{len(values)} {name}" for name, values in self.axes.items())
        return f"Curve({self.objective.size:,} settings: {axes})"

    def to_artifact(self, name: str) -> Artifact:
        """Return tensors under ``name``, and the axes."""
        tensors = {array: torch.from_numpy(getattr(self, array)) for array in _CURVE_ARRAYS}
        return Artifact(
            prefixed(name, tensors),
            {"axes": self.axes, "tau": self.tau, "similarity_nll": self.similarity_nll, "asked": self.asked},
        )

    @classmethod
    def from_artifact(cls, name: str, artifact: Artifact) -> Curve:
        """Read what :meth:`to_artifact` returned."""
        tensors, meta = unprefixed(name, artifact.tensors), artifact.meta
        return cls(
            axes={axis: tuple(values) for axis, values in meta["axes"].items()},
            tau=tuple(meta["tau"]),
            similarity_nll=tuple(meta["similarity_nll"]),
            asked=tuple(meta.get("asked", ())),  # older files do not know it
            **{array: tensors[array].numpy() for array in _CURVE_ARRAYS},
        )


def shut_setting(curve: Curve, base: Setting) -> Setting:
    """Return the shut gate, with the concentration under which retrieval alone is most likely."""
    likeliest = int(np.argmin(curve.similarity_nll))
    return replace(base, kappa=float(curve.axes["kappa"][likeliest]), tau=curve.tau[likeliest])


_CURVE_ARRAYS = ("objective", "accuracy", "opened")
_PLAIN = ("objective", "n_rows", "n_disagreements", "n_tried")  # of a tuning, as they go into a file
_SHUT_BY = {  # by the kind of a note
    "too few disagreements": "the paths disagree on too few of them to judge a gate",
    "not survived": "what the best of them gained did not survive on rows that had no say in the choice",
}
_BETTER = {False: ("raises", "raised"), True: ("lowers", "lowered")}  # by whether the objective is a loss


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Tuning:
    """The fitted decision, how it was found, and everything that was tried."""

    decision: Decision
    objective: Objective
    base: Setting  # the calibrated classifier alone: the gate kept shut
    best: Setting
    curve: Curve  # of the five clauses
    calibrated_curve: Curve | None = None  # scored out of fold; absent where it was not asked for or cannot be fitted
    contenders: tuple[Setting, ...] = ()  # the best of each kind of gate
    n_rows: int
    n_disagreements: int | None = None  # rows on which the paths' labels differ, at the kappa with the most of them
    n_tried: int | None = None
    notes: tuple[Note, ...] = ()  # what a reader should know about the data behind this

    def __repr__(self) -> str:
        if self.best.thresholds is None:
            return f"Tuning({self.sentence()})"
        values = {"kappa": self.best.kappa, "tau": self.best.tau, **asdict(self.best.thresholds)}
        if self.best.calibrated is not None:  # its thresholds hold nothing back
            values = {name: values[name] for name in ("kappa", "tau", "alpha")} | {"lead": self.best.calibrated.margin}
        settings = ", ".join(f"{name} {value:.3g}" for name, value in values.items() if value is not None)
        return f"Tuning({self.sentence()};\n  {settings})"

    def to_artifact(self) -> Artifact:
        """Return tensors and JSON values, the decision's included."""
        decision, curve = self.decision.to_artifact(), self.curve.to_artifact("curve")
        calibrated = self.calibrated_curve.to_artifact("calibrated") if self.calibrated_curve else Artifact({}, {})
        summary = {
            **{name: getattr(self, name) for name in _PLAIN},
            "notes": [(note.kind, note.values) for note in self.notes],
            "base": self.base.to_json(),
            "best": self.best.to_json(),
            "contenders": [each.to_json() for each in self.contenders],
            "calibrated": calibrated.meta,
            **curve.meta,
        }
        tensors = {**decision.tensors, **curve.tensors, **calibrated.tensors}
        return Artifact(tensors, {**decision.meta, "tuning": summary})

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> Tuning:
        """Read what :meth:`to_artifact` returned."""
        tensors, summary = artifact.tensors, artifact.meta["tuning"]
        calibrated = Artifact(tensors, summary["calibrated"])
        return cls(
            decision=Decision.from_artifact(artifact),
            base=from_plain(summary["base"], Setting),
            best=from_plain(summary["best"], Setting),
            curve=Curve.from_artifact("curve", Artifact(tensors, summary)),
            calibrated_curve=Curve.from_artifact("calibrated", calibrated) if calibrated.meta else None,
            contenders=tuple(from_plain(each, Setting) for each in summary["contenders"]),
            **{name: summary[name] for name in _PLAIN},
            notes=tuple(Note(kind, values) for kind, values in summary["notes"]),
        )

    @property
    def is_shut(self) -> bool:
        """Return whether the gate is kept shut: nothing was better than the classifier, or nothing was proven."""
        return self.best.thresholds is None

    def kept_shut(self) -> Tuning:
        """Return the same search with the gate kept shut, at the concentration under which retrieval is likeliest."""
        best = shut_setting(self.curve, self.base)
        return replace(self, decision=best.apply_to(self.decision), best=best)

    def sentence(self) -> str:
        """Say what was chosen and why."""
        tried = f"{self.n_tried or self.curve.objective.size:,} settings were tried on {self.n_rows:,} validation rows"
        name, better, bettered = objective_name(self.objective), *_BETTER[self.objective in LOSSES]
        if self.is_shut and self.n_disagreements == 0:
            return (
                f"{tried}; the classifier and retrieval never disagree on them, so there is nothing to decide "
                "and the gate stays shut"
            )
        if self.is_shut and (why := next((_SHUT_BY[note.kind] for note in self.notes if note.kind in _SHUT_BY), "")):
            return f"{tried}; {why}, so the gate stays shut"
        if self.is_shut:
            return f"{tried}; none {bettered} {name} without lowering accuracy, so the gate stays shut"
        before, after = (shown_value(self.objective, each.objective) for each in (self.base, self.best))
        unharmed = f" at accuracy {self.best.accuracy:.4f} (before: {self.base.accuracy:.4f})"
        return (
            f"{tried}; on those same rows the best ({self.best.gate}) {better} {name} from {before:.4f} to {after:.4f}"
            f"{'' if self.objective == 'accuracy' else unharmed}, open on {self.best.opened} rows"
        )
