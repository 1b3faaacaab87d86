"""Presets: named sets of candidates for tuning to search."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from tdumpra.checks import check_choice, check_positive, check_unit_interval
from tdumpra.core.gate import FUSION_RULES, LN2, FusionRule
from tdumpra.method.bank import MERGE_ABOVE

GateKind = Literal["clauses", "calibrated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The candidates of each setting. A single candidate is a fixed value."""

    kappa: tuple[float, ...] = (10.0, 20.0, 40.0)
    theta: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    beta: tuple[float, ...] = (0.0, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    margin: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    delta: tuple[float, ...] = (0.05, 0.1, 0.2)
    alpha: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    rule: tuple[FusionRule, ...] = ("linear", "log-linear")
    fused_exponent: tuple[float, ...] = (0.0,)  # power of the class prior that the fused posterior is divided by
    gates: tuple[GateKind, ...] = ("clauses",)  # the paper's five clauses, the fitted chances of being right, or both
    advantage: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.3)  # by which retrieval's chance must be ahead (calibrated)
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
        for name in ("theta", "beta", "margin", "delta", "alpha", "fused_exponent", "advantage"):
            for value in getattr(self, name):
                check_unit_interval(value, name, upper=LN2 if name == "delta" else 1.0)
        for rule in self.rule:
            check_choice(rule, "rule", FUSION_RULES)
        for kind in self.gates:
            check_choice(kind, "gates", get_args(GateKind))


_PAPER_THETA = (0.5, 0.6, 0.7, 0.8, 0.9)

_FREE = Preset(gates=("clauses", "calibrated"))

PresetName = Literal["default", "free", "paper", "paper-swapped", "rebalancing"]
PRESETS: dict[PresetName, Preset] = {
    "default": _FREE,
    # Both kinds of gate and all thresholds, down to a gate that asks nothing of retrieval.
    "free": _FREE,
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
    # For unequal classes and a bank in a space of its own: where the paths disagree, one weight and one power of the
    # prior decide. Few candidates, so that a small validation set is not searched for luck.
    "rebalancing": Preset(
        kappa=(20.0,), theta=(0.7, 0.9, 1.0), beta=(0.0, 0.5), margin=(0.0,), delta=(0.0,),
        alpha=(0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), rule=("log-linear",),
        fused_exponent=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    ),
}  # fmt: skip
