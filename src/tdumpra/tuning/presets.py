"""Presets: named sets of candidates for tuning to search, and the bounds that no gate of theirs may pass."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from tdumpra.checks import check_choice, check_count, check_positive, check_unit_interval
from tdumpra.core.gate import FUSION_RULES, LN2, FusionRule, GateThresholds
from tdumpra.errors import nearest
from tdumpra.method.bank import MERGE_ABOVE

GateKind = Literal["clauses", "calibrated"]
_CANDIDATES = (
    "kappa", "tau", "theta", "beta", "margin", "delta", "alpha", "rule", "fused_exponent", "gates", "advantage",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The candidates of each setting, and bounds. A single candidate is a fixed value.

    A candidate beyond a bound is moved to it. The calibrated gate, which has no thresholds of its own to search, asks
    for the bounds.
    """

    kappa: tuple[float, ...] = (10.0, 20.0, 40.0)
    tau: tuple[float, ...] = ()  # of the similarity posterior; none: fitted by likelihood, or 1 without temperatures
    theta: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    beta: tuple[float, ...] = (0.0, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    margin: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    delta: tuple[float, ...] = (0.05, 0.1, 0.2)
    alpha: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    rule: tuple[FusionRule, ...] = ("linear", "log-linear")
    fused_exponent: tuple[float, ...] = (0.0,)  # power of the class prior that the fused posterior is divided by
    gates: tuple[GateKind, ...] = ("clauses",)  # the paper's five clauses, the fitted chances of being right, or both
    advantage: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.3)  # by which retrieval's chance must be ahead (calibrated)
    temperatures: bool = True  # fit the classifier's temperature by likelihood; else it is 1
    merge_above: float = MERGE_ABOVE  # prototypes of a class with a larger cosine are merged; 1 keeps all
    most_theta: float = 1.0  # a classifier this sure is never asked about
    chance_factor: float = 0.0  # how often chance retrieval's top probability must at least be, see `least_beta`
    least_margin: float = 0.0  # lead that retrieval must at least have
    first_choices_only: bool = False  # a label that is neither path's first choice leaves the row untouched
    least_disagreeing: int = 0  # validation lesions on which the paths disagree; with fewer the gate stays shut
    least_opened: int = 0  # validation rows on which a candidate gate opens; with fewer it is no candidate
    must_survive: bool = False  # keep the gate shut unless its gain survives on rows that had no say in the choice

    def __post_init__(self) -> None:
        for name in _CANDIDATES:
            candidates = getattr(self, name)
            if not isinstance(candidates, tuple):
                raise TypeError(f"{name} must be a tuple of candidates, not {candidates!r}")
            if not candidates and name != "tau":
                raise ValueError(f"a preset needs at least one candidate for {name}")
        for name in ("kappa", "tau"):
            for value in getattr(self, name):
                check_positive(value, name)
        for name in ("theta", "beta", "margin", "delta", "alpha", "fused_exponent", "advantage"):
            for value in getattr(self, name):
                check_unit_interval(value, name, upper=LN2 if name == "delta" else 1.0)
        for rule in self.rule:
            check_choice(rule, "rule", FUSION_RULES)
        for kind in self.gates:
            check_choice(kind, "gates", get_args(GateKind))
        for name in ("merge_above", "most_theta", "least_margin"):
            check_unit_interval(getattr(self, name), name)
        if not 0 <= self.chance_factor < math.inf:
            raise ValueError(f"chance_factor must be 0 or more, not {self.chance_factor!r}")
        for name in ("least_disagreeing", "least_opened"):
            check_count(getattr(self, name), name, least=0)

    def least_beta(self, n_classes: int) -> float:
        r"""Return the least that retrieval's top probability must exceed, :math:`\min(f/C, (1 + 1/C)/2)`.

        It is so often chance, :math:`1/C`, as ``chance_factor`` says, and never more than half way from chance to
        certainty: twice chance is certainty where there are two classes.
        """
        return min(self.chance_factor / n_classes, (1 + 1 / n_classes) / 2)

    def least_asked(self, n_classes: int) -> GateThresholds:
        """Return the loosest thresholds within the bounds."""
        beta = self.least_beta(n_classes)
        return GateThresholds(theta=self.most_theta, beta=beta, margin=self.least_margin, delta=0.0, alpha=0.0)

    def bounded(self, n_classes: int) -> Preset:
        """Return the candidates within the bounds; those that fall together count once."""
        least = self.least_asked(n_classes)
        return replace(
            self,
            theta=tuple(dict.fromkeys(min(value, least.theta) for value in self.theta)),
            beta=tuple(dict.fromkeys(max(value, least.beta) for value in self.beta)),
            margin=tuple(dict.fromkeys(max(value, least.margin) for value in self.margin)),
        )

    def for_share(self, share: float) -> Preset:
        """Return what to ask of a part of the rows: as many disagreements and openings as are its share."""
        lesions, rows = (math.ceil(share * count) for count in (self.least_disagreeing, self.least_opened))
        return replace(self, least_disagreeing=lesions, least_opened=rows)

    @classmethod
    def complete(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Return a table's values over those of the preset that its key ``extends`` names."""
        content = dict(content)
        if content.get("merge_above", 0.0) is None:  # saved by a version that had no number for it
            content["merge_above"] = 1.0
        base = content.pop("extends", None)
        if base is None:
            return content
        if base not in PRESETS:
            known = ", ".join(map(repr, PRESETS))
            hint = nearest(base, PRESETS) if isinstance(base, str) else ""
            raise ValueError(f"extends must be one of {known}, not {base!r}{hint}")
        return {**asdict(PRESETS[base]), **content}


_PAPER_THETA = (0.5, 0.6, 0.7, 0.8, 0.9)
# The paper tunes tau over values that it does not state: factors of two around 1, the softmax as written.
_PAPER_TAU = (0.25, 0.5, 1.0, 2.0, 4.0)
_FREE = Preset(gates=("clauses", "calibrated"))

PresetName = Literal["default", "free", "paper", "paper-swapped", "rebalancing"]
PRESETS: dict[str, Preset] = {
    # Conservative by construction: retrieval is heard only where it is twice as sure as chance and clearly ahead, and
    # the classifier is not sure. With five folds, 20 lesions and 10 openings are four and two in each: with fewer, an
    # estimate out of fold would rest on single cases.
    "default": replace(
        _FREE, most_theta=0.9, chance_factor=2.0, least_margin=0.1, first_choices_only=True, least_disagreeing=20,
        least_opened=10, must_survive=True,
    ),
    # Both kinds of gate and all thresholds, down to a gate that asks nothing of retrieval.
    "free": _FREE,
    # The paper's setting: its theta grid, its alpha, no temperature of the classifier, prototypes as they come.
    "paper": Preset(
        kappa=(20.0,), tau=_PAPER_TAU, theta=_PAPER_THETA, delta=(0.05,), alpha=(0.9,), rule=("linear",),
        temperatures=False, merge_above=1.0,
    ),
    # The same with the weight on retrieval, as the paper's text, propositions and figure need it.
    "paper-swapped": Preset(
        kappa=(20.0,), tau=_PAPER_TAU, theta=_PAPER_THETA, delta=(0.05,), alpha=(0.1,), rule=("linear",),
        temperatures=False, merge_above=1.0,
    ),
    # For unequal classes and a bank in a space of its own: where the paths disagree, one weight and one power of the
    # prior decide. Few candidates, so that a small validation set is not searched for luck.
    "rebalancing": Preset(
        kappa=(20.0,), theta=(0.7, 0.9, 1.0), beta=(0.0, 0.5), margin=(0.0,), delta=(0.0,),
        alpha=(0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), rule=("log-linear",),
        fused_exponent=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    ),
}  # fmt: skip


def check_preset(preset: str | Preset) -> Preset:
    """Return the preset of that name; a :class:`Preset` is returned as it is."""
    if isinstance(preset, Preset):
        return preset
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)} or a Preset, not {preset!r}")
    return PRESETS[preset]
