"""Choosing temperatures, concentration, thresholds and weight, on validation outputs only.

Two rules govern the choice. *Do no harm*: a setting whose validation accuracy is lower than the classifier's is no
candidate, whatever its objective. *Least intervention*: among equals the gate that opens least wins, so that a gate
which wins nothing stays shut.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tdumpra.artifacts import Artifact
from tdumpra.bank import MERGE_ABOVE, PrototypeBank
from tdumpra.checks import check_positive
from tdumpra.core import metrics, search
from tdumpra.core.calibration import adjust_prior, apply_temperature, fit_temperature
from tdumpra.core.gate import FusionRule, GateSignals, GateThresholds, fuse_linear, fuse_log_linear, gate_signals
from tdumpra.core.metrics import OBJECTIVES, ClassCounts, Objective
from tdumpra.core.posterior import similarity_posterior
from tdumpra.decision import Decision
from tdumpra.functional import check_rule, widen
from tdumpra.outputs import ValidationOutputs

Array = np.ndarray
PRIOR_EXPONENTS = tuple(np.round(np.linspace(0, 1, 21), 2).tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What may be searched, and over which candidates. A single candidate is a fixed value."""

    kappa: tuple[float, ...] = (10.0, 20.0, 40.0)
    theta: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    beta: tuple[float, ...] = (0.0, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    margin: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    delta: tuple[float, ...] = (0.05, 0.1, 0.2)
    alpha: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    rule: tuple[FusionRule, ...] = ("linear", "log-linear")
    temperatures: bool = True  # fit the classifier's temperature and tau by likelihood; else both are 1
    merge_above: float | None = MERGE_ABOVE  # of the bank

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name in {"temperatures", "merge_above"}:
                continue
            candidates = getattr(self, field.name)
            if not isinstance(candidates, tuple):
                raise TypeError(f"{field.name} must be a tuple of candidates, not {candidates!r}")
            if not candidates:
                raise ValueError(f"a preset needs at least one candidate for {field.name}")
        for kappa in self.kappa:
            check_positive(kappa, "kappa")
        for name in ("theta", "beta", "margin", "delta", "alpha"):
            for value in getattr(self, name):  # each candidate is checked where thresholds check themselves
                GateThresholds(**{"theta": 0.5, "beta": 0.5, "margin": 0.5, "delta": 0.5, "alpha": 0.5, name: value})
        for rule in self.rule:
            check_rule(rule)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Preset:
        """A preset from plain values, as ``dataclasses.asdict`` gives them."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in content.items()}
        return cls(**values)


_PAPER_THETA = (0.5, 0.6, 0.7, 0.8, 0.9)

PRESETS: dict[str, Preset] = {
    "default": Preset(),
    # The paper's setting: its theta grid, its alpha, no temperatures, prototypes as they come.
    "paper": Preset(
        kappa=(20.0,), theta=_PAPER_THETA, delta=(0.05,), alpha=(0.9,), rule=("linear",), temperatures=False,
        merge_above=None,
    ),
    # The same with the weight on retrieval, as the paper's text, propositions and figure need it.
    "paper-swapped": Preset(
        kappa=(20.0,), theta=_PAPER_THETA, delta=(0.05,), alpha=(0.1,), rule=("linear",), temperatures=False,
        merge_above=None,
    ),
}  # fmt: skip


class Setting(NamedTuple):
    """One point of the search and its score on the validation data; ``thresholds`` is ``None`` for the shut gate."""

    kappa: float
    tau: float
    rule: FusionRule
    thresholds: GateThresholds | None
    objective: float
    accuracy: float
    opened: int

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**self._asdict(), "thresholds": self.thresholds and asdict(self.thresholds)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Setting:
        """The inverse of :meth:`to_json`."""
        thresholds = content["thresholds"]
        return cls(**{**content, "thresholds": thresholds and GateThresholds(**thresholds)})


_CURVE_ARRAYS = ("objective", "accuracy", "opened")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Curve:
    """Objective, accuracy and openings of every combination. Axes: kappa, rule, alpha, theta, beta, margin, delta."""

    axes: dict[str, tuple[float | str, ...]]
    tau: tuple[float, ...]  # fitted for each kappa
    similarity_nll: tuple[float, ...]  # of retrieval alone, for each kappa
    objective: Array
    accuracy: Array
    opened: Array


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Tuning:
    """The fitted decision, how it was found, and everything that was tried."""

    decision: Decision
    objective: Objective
    base: Setting  # the calibrated classifier alone: the gate kept shut
    best: Setting
    curve: Curve
    n_rows: int

    def to_artifact(self) -> Artifact:
        """Tensors and JSON values, the decision's included."""
        decision = self.decision.to_artifact()
        tensors = {f"curve.{name}": torch.from_numpy(getattr(self.curve, name)) for name in _CURVE_ARRAYS}
        summary = {
            "objective": self.objective,
            "n_rows": self.n_rows,
            "base": self.base.to_json(),
            "best": self.best.to_json(),
            "axes": self.curve.axes,
            "tau": self.curve.tau,
            "similarity_nll": self.curve.similarity_nll,
        }
        return Artifact({**decision.tensors, **tensors}, {**decision.meta, "tuning": summary})

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> Tuning:
        """The inverse of :meth:`to_artifact`."""
        tensors, summary = dict(artifact.tensors), artifact.meta["tuning"]
        curve = Curve(
            axes={name: tuple(values) for name, values in summary["axes"].items()},
            tau=tuple(summary["tau"]),
            similarity_nll=tuple(summary["similarity_nll"]),
            **{name: tensors.pop(f"curve.{name}").numpy() for name in _CURVE_ARRAYS},
        )
        return cls(
            decision=Decision.from_artifact(Artifact(tensors, artifact.meta)),
            objective=summary["objective"],
            base=Setting.from_json(summary["base"]),
            best=Setting.from_json(summary["best"]),
            curve=curve,
            n_rows=summary["n_rows"],
        )

    @property
    def is_shut(self) -> bool:
        """Whether no candidate was better than leaving the classifier alone."""
        return self.best.thresholds is None

    def sentence(self) -> str:
        """What was chosen and why, for a person."""
        tried = f"{self.curve.objective.size:,} settings were tried on {self.n_rows:,} validation rows"
        name = self.objective.replace("_", " ")
        if self.is_shut:
            return f"{tried}; none raised {name} without lowering accuracy, so the gate stays shut"
        return (
            f"{tried}; the best raises {name} from {self.base.objective:.4f} to {self.best.objective:.4f} "
            f"at accuracy {self.best.accuracy:.4f} (before: {self.base.accuracy:.4f}), open on {self.best.opened} rows"
        )


def tune(
    bank: PrototypeBank,
    validation: ValidationOutputs,
    prior: Tensor,
    *,
    preset: Preset = PRESETS["default"],
    objective: Objective = "balanced_accuracy",
    adjust_for_prior: bool = False,
) -> Tuning:
    """Fit temperatures by likelihood, then take the best gate that does no harm."""
    if not isinstance(validation, ValidationOutputs):
        raise TypeError(f"tuning needs validation outputs, not {type(validation).__name__}")
    check_objective(objective)
    p, y = widen(validation.p), validation.y
    temperature = fit_temperature(p.log(), y) if preset.temperatures else 1.0
    calibrated = apply_temperature(p, temperature)
    exponent = choose_prior_exponent(calibrated, y, prior, objective) if adjust_for_prior else 0.0
    p_cls = adjust_prior(calibrated, prior, exponent)
    base = _score_shut_gate(p_cls, p, y, objective)

    searches, taus, losses = [], [], []
    for kappa in preset.kappa:
        scores = bank.class_scores(validation.z, kappa=kappa)
        taus.append(fit_temperature(scores, y) if preset.temperatures else 1.0)
        p_sim = similarity_posterior(scores, tau=taus[-1]).to(p_cls)
        losses.append(float(_row_loss(p_sim, y).mean()))
        searches.append(_search(p_cls, p_sim, y, preset, objective))
    curve = Curve(
        axes={
            "kappa": preset.kappa,
            "rule": preset.rule,
            "alpha": preset.alpha,
            "theta": tuple(sorted(preset.theta)),
            **{name: tuple(sorted(getattr(preset, name), reverse=True)) for name in ("beta", "margin", "delta")},
        },
        tau=tuple(taus),
        similarity_nll=tuple(losses),
        objective=np.stack([found.objective for found in searches]),
        accuracy=np.stack([found.accuracy for found in searches]),
        opened=np.stack([found.opened for found in searches]),
    )
    best = choose(curve, base)
    decision = Decision(
        bank=bank,
        thresholds=best.thresholds or GateThresholds.shut(),
        kappa=best.kappa,
        tau=best.tau,
        temperature=temperature,
        rule=best.rule,
        prior=prior,
        prior_exponent=exponent,
    )
    return Tuning(decision=decision, objective=objective, base=base, best=best, curve=curve, n_rows=len(y))


def choose(curve: Curve, base: Setting) -> Setting:
    """The best objective at no lower accuracy; among equals the fewest openings, then the strictest thresholds.

    Where nothing beats the shut gate, that is the choice, with the concentration under which retrieval alone is most
    likely. Figures are compared to twelve decimals: sums taken in another order differ in the last bits.
    """
    objective = np.where(curve.accuracy >= base.accuracy, curve.objective, -np.inf).round(12)
    top = objective.max()
    if not top > round(base.objective, 12):
        likeliest = int(np.argmin(curve.similarity_nll))
        return base._replace(kappa=float(curve.axes["kappa"][likeliest]), tau=curve.tau[likeliest])
    equals = np.argwhere(objective == top)  # in the grid's order: strict before loose on each axis
    index = tuple(equals[np.argmin(curve.opened[tuple(equals.T)])])
    kappa, rule, alpha, theta, beta, margin, delta = (
        axis[i] for axis, i in zip(curve.axes.values(), index, strict=True)
    )
    return Setting(
        kappa=float(kappa),
        tau=curve.tau[index[0]],
        rule=rule,
        thresholds=GateThresholds(*(float(value) for value in (theta, beta, margin, delta, alpha))),
        objective=float(curve.objective[index]),
        accuracy=float(curve.accuracy[index]),
        opened=int(curve.opened[index]),
    )


def choose_prior_exponent(p: Tensor, y: Tensor, prior: Tensor, objective: Objective) -> float:
    """The power of the prior to divide by, under the same objective and the same rules as the gate."""
    best_exponent, best_score = 0.0, -np.inf
    accuracy_before = None
    for exponent in PRIOR_EXPONENTS:
        adjusted = adjust_prior(p, prior, exponent)
        counts, loss = _counts_and_loss(adjusted, y)
        accuracy = float(metrics.accuracy(counts))
        accuracy_before = accuracy if accuracy_before is None else accuracy_before
        score = float(objective_value(objective, counts, loss, len(y)))
        if accuracy >= accuracy_before and score > best_score:
            best_exponent, best_score = exponent, score
    return best_exponent


def check_objective(objective: str) -> None:
    """Refuse an objective that does not exist."""
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, not {objective!r}")


def objective_value(objective: Objective, counts: ClassCounts, loss_sum: Array, n_rows: int) -> Array:
    """The figure that is maximised; the likelihood enters with its sign turned."""
    if objective == "nll":
        return -np.asarray(loss_sum) / n_rows
    measure = {
        "accuracy": metrics.accuracy,
        "balanced_accuracy": metrics.balanced_accuracy,
        "macro_f1": metrics.macro_f1,
    }[objective]
    return np.asarray(measure(counts))


class _Searched(NamedTuple):
    objective: Array
    accuracy: Array
    opened: Array


def _search(p_cls: Tensor, p_sim: Tensor, y: Tensor, preset: Preset, objective: Objective) -> _Searched:
    """All combinations of rule, alpha and thresholds for one similarity posterior."""
    base_counts, base_loss = _counts_and_loss(p_cls, y)
    signals = gate_signals(p_cls, p_sim)
    disagree = signals.label_cls != signals.label_sim  # the fifth clause, and the only rows that can move
    axes = _axes(GateSignals(*(signal[disagree] for signal in signals)), preset)
    p_cls, p_sim, y = p_cls[disagree], p_sim[disagree], y[disagree]
    grids = []
    for rule, alpha in itertools.product(preset.rule, preset.alpha):
        fused = (fuse_linear if rule == "linear" else fuse_log_linear)(p_cls, p_sim, alpha=alpha)
        sums = search.orthant_sums(axes, _contributions(p_cls, fused, y))
        n_classes = len(base_counts.support)
        counts = ClassCounts(
            correct=base_counts.correct + sums[..., :n_classes],
            support=base_counts.support,
            predicted=base_counts.predicted + sums[..., n_classes : 2 * n_classes],
        )
        n_rows = int(base_counts.support.sum())
        value = objective_value(objective, counts, base_loss + sums[..., -1], n_rows)
        grids.append((value, metrics.accuracy(counts), sums[..., -2].astype(np.int64)))
    shape = (len(preset.rule), len(preset.alpha), *(len(axis.values) for axis in axes))
    return _Searched(*(np.stack(column).reshape(shape) for column in zip(*grids, strict=True)))


def _axes(signals: GateSignals, preset: Preset) -> tuple[search.Axis, ...]:
    return (
        search.below(signals.gamma_cls.numpy(), preset.theta),
        search.above(signals.gamma_sim.numpy(), preset.beta),
        search.above(signals.margin_sim.numpy(), preset.margin),
        search.above(signals.js.numpy(), preset.delta),
    )


def _contributions(p_cls: Tensor, fused: Tensor, y: Tensor) -> Array:
    """What opening each row's gate changes: correct and predicted by class, openings, log loss."""
    before, after, truth = p_cls.argmax(1).numpy(), fused.argmax(1).numpy(), y.numpy()
    rows, n_classes = np.arange(len(truth)), p_cls.shape[1]
    correct, predicted = np.zeros((len(truth), n_classes)), np.zeros((len(truth), n_classes))
    correct[rows, truth] = (after == truth).astype(np.float64) - (before == truth)
    np.add.at(predicted, (rows, after), 1.0)
    np.add.at(predicted, (rows, before), -1.0)
    loss = _row_loss(fused, y) - _row_loss(p_cls, y)
    return np.concatenate([correct, predicted, np.ones((len(truth), 1)), loss[:, None]], axis=1)


def _score_shut_gate(p_cls: Tensor, p: Tensor, y: Tensor, objective: Objective) -> Setting:
    """The classifier alone. Its accuracy is that of ``p``, before any adjustment: the harm that must not be done."""
    counts, loss = _counts_and_loss(p_cls, y)
    value = float(objective_value(objective, counts, loss, len(y)))
    plain, _ = _counts_and_loss(p, y)
    return Setting(1.0, 1.0, "linear", None, value, float(metrics.accuracy(plain)), 0)


def _counts_and_loss(p: Tensor, y: Tensor) -> tuple[ClassCounts, Array]:
    counts = metrics.class_counts(p.argmax(1).numpy(), y.numpy(), p.shape[1])
    return counts, np.asarray(_row_loss(p, y).sum())


def _row_loss(p: Tensor, y: Tensor) -> Array:
    return metrics.log_loss_by_row(p.double().numpy(), y.numpy())
