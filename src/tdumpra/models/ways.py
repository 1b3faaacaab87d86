"""The cheap ways to adapt a model to a new place: what each fits on labelled rows from there, and what it then decides.

No encoder is trained. A way changes how the classifier is read (temperature and class bias, or a new linear head on its
pooled features, fitted beside kept training rows), or what the bank holds, or both. A :class:`Plan` is a way with its
dials set; a :class:`Workbench` fits plans on some of the local rows and keeps what several plans share.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from tdumpra.core.calibration import class_prior, fit_temperature_and_bias
from tdumpra.core.gate import GateThresholds
from tdumpra.core.linear_head import (
    MOST_DIRECTIONS,
    Directions,
    LinearHead,
    Moments,
    fit_linear_head,
    principal_directions,
)
from tdumpra.core.metrics import Objective
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decided, Decision
from tdumpra.method.record import Record
from tdumpra.method.rows import KeptRows

Array = np.ndarray
Reading = Literal["keep", "bias", "head"]
WAYS = {
    "keep": "the model as it is",
    "bias": "temperature and class bias",
    "head": "linear head with replay",
    "bank": "local cases in the bank",
    "bias+bank": "class bias and bank",
    "head+bank": "linear head and bank",
}
TILTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # power of the local class shares that the classifier is divided by
REPLAY = (0.3, 1.0)  # weight of all replay rows together, in units of all local rows
PENALTIES = (1e-3, 3e-4, 1e-4)  # on the head's weights, for features of mean squared length one
BANK_WEIGHTS = (1.0, 8.0)  # of a local row, where a training row weighs one
SAY = (0.0, 0.3, 0.5)  # of retrieval; 0: as the model's own gate has it
_SPARE_DIRECTIONS = 32  # of home, beyond those of a head: where the search for a new place's directions begins
_ASKED_BELOW = 0.9  # the classifier's confidence, where a plan gives retrieval a say of its own


class Plan(NamedTuple):
    """A way with its dials. The defaults leave the model as it is."""

    reading: Reading = "keep"
    tilt: float = 0.0
    replay: float = 0.0
    l2: float = 0.0
    bank_weight: float = 0.0  # 0: the bank stays as it is
    say: float = 0.0

    @property
    def way(self) -> str:
        """Return the key of :data:`WAYS`."""
        if not self.bank_weight:
            return self.reading
        return "bank" if self.reading == "keep" else f"{self.reading}+bank"

    def words(self) -> str:
        """Return the dials for a reader."""
        parts = []
        if self.reading == "head":
            parts.append(f"replay rows weigh {self.replay:g} times the local ones, penalty {self.l2:g}")
        if self.reading != "keep" and self.tilt:
            parts.append(f"divided by the local class shares to the power {self.tilt:g}")
        if self.bank_weight:
            parts.append(f"a local case weighs {self.bank_weight:g} in the bank")
            parts.append(
                f"retrieval has a weight of {self.say:g} where the classifier is less than {_ASKED_BELOW:.0%} sure"
                if self.say
                else "the gate as it was"
            )
        return "; ".join(parts) or "nothing changes"


def reading_plans(reading: Reading, objective: Objective) -> list[Plan]:
    """Return the plans of one way to read the classifier, the mildest first.

    Accuracy and likelihood are best at the local class shares, which the fits find by themselves.
    """
    tilts = (0.0,) if objective in ("accuracy", "nll") else TILTS
    if reading == "keep":
        return [Plan()]
    if reading == "bias":
        return [Plan("bias", tilt) for tilt in tilts]
    return [Plan("head", tilt, replay, l2) for l2 in PENALTIES for replay in REPLAY for tilt in tilts]


def bank_plans(plan: Plan, *, shut: bool) -> list[Plan]:
    """Return ``plan`` with each setting of the bank. Behind a gate that is ``shut`` a bank changes nothing."""
    return [plan._replace(bank_weight=weight, say=say) for say in SAY if say or not shut for weight in BANK_WEIGHTS]


class Adapted(NamedTuple):
    """A decision, and the head that replaces the classifier's own; ``None`` leaves that as it is."""

    decision: Decision
    head: LinearHead | None = None

    def probabilities(self, rows: KeptRows) -> Tensor:
        """Return the classifier's posterior, before the decision calibrates it, in float64."""
        if self.head is None:
            return torch.from_numpy(rows.p.astype(np.float64))
        assert rows.features is not None  # a head is fitted only where there are some
        return torch.from_numpy(softmax(self.head.logits(rows.features), axis=1))

    def decide(self, rows: KeptRows) -> Decided:
        """Decide rows as the written model does."""
        return self.decision.decide(self.probabilities(rows), torch.from_numpy(rows.z))


class _Replay(NamedTuple):
    """Training rows beside which a head is fitted."""

    features: Array
    y: Array


@dataclass(frozen=True, eq=False)
class Workbench:
    """A model's decision and record beside labelled local rows. Fits are kept by the rows that they stand on."""

    decision: Decision
    record: Record
    class_names: Sequence[str]
    local: KeptRows
    _kept: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Return the ways to read the classifier that the data allow: a head needs features on both sides."""
        return ("keep", "bias", "head") if self.replay is not None else ("keep", "bias")

    @cached_property
    def replay(self) -> _Replay | None:
        """Return the training rows that a head is fitted beside, if the local rows have the same features."""
        train, local = self.record.train, self.local
        if train.features is None or local.features is None or not np.all(local.has_features):
            return None
        if train.features.shape[1] != local.features.shape[1] or not np.any(train.has_features):
            return None
        used = self.record.replay
        return _Replay(train.features[used], train.y[used])

    def fit(self, train: Array, plan: Plan) -> Adapted:
        """Carry out a plan on the local rows that ``train`` marks."""
        decision, head = self.decision, None
        if plan.reading != "keep":
            labels = torch.from_numpy(self.local.y[train])
            shares = class_prior(labels, len(self.class_names)).numpy()
            tilt = plan.tilt * np.log(shares)
            decision = replace(decision, temperature=1.0, class_bias=(), prior_exponent=0.0)
            if plan.reading == "bias":
                temperature, bias = self._bias(train)
                bias = tuple((np.array(bias) - tilt).tolist())
                decision = replace(decision, temperature=temperature, class_bias=bias)
            else:
                fitted = self._head(train, plan.replay, plan.l2)
                # as a network holds it, so that estimates and predictions stand on the same numbers
                head = LinearHead(fitted.weight.astype(np.float32), (fitted.bias - tilt).astype(np.float32))
        if plan.bank_weight:
            decision = replace(decision, bank=self._bank(train, plan.bank_weight))
        if plan.say:
            decision = replace(decision, **_with_a_say(plan.say))
        return Adapted(decision, head)

    def predict(self, train: Array, plan: Plan, rows: Array) -> Array:
        """Return the final probabilities of local rows, by their numbers, from a plan carried out on others."""
        adapted = self.fit(train, plan)
        p_sim = self._similarity(train, plan.bank_weight)[rows]
        decided = adapted.decision.decide_posteriors(adapted.probabilities(self.local.rows(rows)), p_sim)
        return decided.p.numpy()

    def _bias(self, train: Array) -> tuple[float, tuple[float, ...]]:
        key = ("bias", train.tobytes())
        if key not in self._kept:
            p = torch.from_numpy(self.local.p[train].astype(np.float64))
            self._kept[key] = fit_temperature_and_bias(p, torch.from_numpy(self.local.y[train]))
        found: tuple[float, tuple[float, ...]] = self._kept[key]
        return found

    def _head(self, train: Array, replay: float, l2: float) -> LinearHead:
        key = ("head", train.tobytes(), replay, l2)
        if key not in self._kept:
            directions, x, y = self._coordinates(train)
            n_local = int(train.sum())
            w = np.ones(len(y))
            w[n_local:] = replay * n_local / (len(y) - n_local)
            fitted = fit_linear_head(x, y, w, n_classes=len(self.class_names), l2=l2)
            self._kept[key] = directions.on_features(fitted)
        found: LinearHead = self._kept[key]
        return found

    def _coordinates(self, train: Array) -> tuple[Directions, Array, Array]:
        """Return directions, coordinates and labels of the marked local rows and, after them, of the replay rows."""
        found: tuple[Directions, Array, Array]
        name, found = self._kept.get(("coordinates",), (b"", None))
        if name != train.tobytes():  # they are large: only the last are kept
            kept = self.replay
            assert kept is not None  # else no plan names a head
            assert self.local.features is not None
            directions = self._directions(train, kept.features, self.local.features)
            features = np.concatenate([self.local.features[train], kept.features])
            found = directions, directions.coordinates(features), np.concatenate([self.local.y[train], kept.y])
            self._kept["coordinates",] = train.tobytes(), found
        return found

    def _directions(self, train: Array, replay: Array, local: Array) -> Directions:
        """Return the principal directions of the replay rows and the marked local ones, from sums that are shared."""
        if ("moments",) not in self._kept:
            home = Moments.of(replay)
            near = principal_directions(home, MOST_DIRECTIONS + _SPARE_DIRECTIONS).basis
            self._kept["moments",] = home, Moments.of(local), near
        home, everyone, near = self._kept["moments",]
        few = 2 * int(train.sum()) < len(train)
        marked = Moments.of(local[train]) if few else everyone.plus(Moments.of(local[~train]), -1)
        return principal_directions(home.plus(marked), near=near)

    def _bank(self, train: Array, weight: float) -> PrototypeBank:
        key = ("bank", train.tobytes(), weight)
        if key not in self._kept:
            bare = replace(self.local, features=None, has_features=np.zeros(len(train), dtype=bool))
            record = self.record.with_rows(bare.rows(train), weight=weight)
            with warnings.catch_warnings():  # small classes were named when the model was made
                warnings.filterwarnings("ignore", message="n_prototypes")
                self._kept[key] = record.rebuild_bank(self.class_names)
        found: PrototypeBank = self._kept[key]
        return found

    def _similarity(self, train: Array, weight: float) -> Tensor:
        """Return retrieval's posterior on all local rows."""
        key = ("similarity", train.tobytes() if weight else b"", weight)
        if key not in self._kept:
            decision = replace(self.decision, bank=self._bank(train, weight)) if weight else self.decision
            self._kept[key] = decision.similarity(torch.from_numpy(self.local.z))
        found: Tensor = self._kept[key]
        return found


def _with_a_say(say: float) -> dict[str, Any]:
    """Return the settings of a gate that opens wherever the paths disagree and the classifier is not sure."""
    thresholds = GateThresholds(theta=_ASKED_BELOW, beta=0.0, margin=0.0, delta=0.0, alpha=1 - say)
    return {"thresholds": thresholds, "rule": "log-linear", "calibrated": None, "fused_exponent": 0.0}
