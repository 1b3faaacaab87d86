"""The fitted state of the method, and the one function from two inputs to a fused result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from tdumpra.artifacts import Artifact
from tdumpra.core.calibration import adjust_prior, apply_temperature_and_bias
from tdumpra.core.chances import CalibratedGate, calibrated_gate_opens
from tdumpra.core.gate import (
    FusionRule,
    GateSignals,
    GateThresholds,
    fuse_where_open,
    gate_opens,
    gate_signals,
    is_first_choice,
)
from tdumpra.core.posterior import similarity_posterior, vmf_class_scores
from tdumpra.core.rowwise import block_rows, widen
from tdumpra.errors import ArtifactError
from tdumpra.foreign import reading
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.schema import check_decision
from tdumpra.toml import from_plain

_CHUNK = 32_768  # rows at once: enough for every operation to use all cores, some 50 MiB in all ...
_CHUNK_ENTRIES = 2**23  # ... and fewer where cosines with thousands of prototypes would take more

_SETTINGS = ("rule", "kappa", "tau", "temperature", "prior_exponent", "fused_exponent")


class Decided(NamedTuple):
    """The decisions on some rows, with what they came from: classifier, retrieval, and the signals of the gate."""

    p: Float[Tensor, "n c"]
    opened: Bool[Tensor, " n"]
    signals: GateSignals
    p_cls: Float[Tensor, "n c"]
    p_sim: Float[Tensor, "n c"]

    def columns(self) -> tuple[Tensor, ...]:
        """Return everything, signals one by one."""
        return (self.p, self.opened, *self.signals, self.p_cls, self.p_sim)

    def stretched(self, n_rows: int) -> Decided:
        """Return room for so many rows of the same kind."""
        p, opened, *signals, p_cls, p_sim = (each.new_empty(n_rows, *each.shape[1:]) for each in self.columns())
        return Decided(p, opened, GateSignals(*signals), p_cls, p_sim)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Decision:
    """Bank, temperatures and thresholds, frozen. Made by :func:`tdumpra.tuning.tune.tune`."""

    bank: PrototypeBank
    thresholds: GateThresholds
    kappa: float = 20.0
    tau: float = 1.0
    temperature: float = 1.0  # of the classifier
    rule: FusionRule = "linear"
    prior: Float[Tensor, " c"]  # class shares of the training labels
    class_bias: tuple[float, ...] = ()  # of the classifier, in nats, fitted where the model was adapted to; (): none
    prior_exponent: float = 0.0  # of the classifier's posterior, on every row; 0: no adjustment
    fused_exponent: float = 0.0  # of the fused posterior, where the gate is open
    calibrated: CalibratedGate | None = None  # one more clause: retrieval's fitted chance of being right is ahead
    first_choices_only: bool = False  # one more: the fused label is the first choice of one of the paths
    known: int | None = None  # how many classes the classifier tells apart, the bank's first; None: all of them

    @property
    def columns(self) -> int:
        """Return the number of classes of the classifier's posterior."""
        return self.bank.n_classes if self.known is None else self.known

    @property
    def guarantees_similarity(self) -> bool:
        """Return whether an open gate always follows retrieval.

        The paper's bound is for linear fusion. Under the log-linear one a class that the classifier rules out cannot
        win, so only a classifier without a say gives the guarantee; a fused posterior that is divided by a power of the
        prior gives none.
        """
        if self.fused_exponent:
            return False
        return self.thresholds.guarantees_similarity if self.rule == "linear" else self.thresholds.alpha == 0

    def classifier(self, p: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """Return the classifier's calibrated posterior; ``p`` itself where nothing was fitted.

        Classes that the bank alone knows follow with probability zero: the classifier has nothing to say of them.
        """
        if self.known is not None:
            p = p[:, : self.known]  # rows may be widened already
        calibrated = apply_temperature_and_bias(p, self.temperature, self.class_bias)
        adjusted = adjust_prior(calibrated, self.prior[: self.columns].to(p.device), self.prior_exponent)
        return adjusted if self.known is None else pad(adjusted, (0, self.bank.n_classes - self.known))

    def similarity(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        """Return retrieval's posterior."""
        return self.retrieval(self.bank.similarity(z))

    def retrieval(self, similarity: Float[Tensor, "n c k"]) -> Float[Tensor, "n c"]:
        """Return retrieval's posterior from the cosines with all prototypes."""
        scores = vmf_class_scores(similarity, self.bank.mask.to(similarity.device), kappa=self.kappa)
        return similarity_posterior(scores, tau=self.tau)

    @property
    def _rows_at_once(self) -> int:
        return min(_CHUNK, block_rows(self.bank.mask.numel(), entries=_CHUNK_ENTRIES))

    def decide(self, p: Float[Tensor, "n c"], z: Float[Tensor, "n d"]) -> Decided:
        """Fuse checked rows, all signals kept."""
        if len(p) <= self._rows_at_once:
            return self.decide_posteriors(p, self.similarity(z))
        start, whole = 0, None
        for part in self.chunks(p, z):
            whole = whole or part.stretched(len(p))
            for column, values in zip(whole.columns(), part.columns(), strict=True):
                column[start : start + len(values)] = values
            start += len(part.p)
        assert whole is not None  # there were rows
        return whole

    def chunks(self, p: Float[Tensor, "n c"], z: Float[Tensor, "n d"]) -> Iterator[Decided]:
        """Fuse checked rows some thousands at a time, in order, in bounded memory."""
        step = self._rows_at_once
        for start in range(0, len(p), step):
            rows = slice(start, start + step)
            yield self.decide_posteriors(p[rows], self.similarity(z[rows]))

    def decide_posteriors(self, p: Float[Tensor, "n c"], p_sim: Float[Tensor, "n c"]) -> Decided:
        """Fuse the classifier's rows with retrieval's posterior for them."""
        p_cls = self.classifier(widen(p))
        p_sim = p_sim.to(p_cls)
        signals = gate_signals(p_cls, p_sim)
        opened = self._opens(signals)
        fused = self.fused(p_cls, p_sim, opened)
        if self.first_choices_only:
            opened = opened & is_first_choice(fused, p_cls, p_sim)
            fused = torch.where(opened[:, None], fused, p_cls)
        return Decided(fused, opened, signals, p_cls, p_sim)

    def fused(
        self, p_cls: Float[Tensor, "n c"], p_sim: Float[Tensor, "n c"], opened: Bool[Tensor, " n"]
    ) -> Float[Tensor, "n c"]:
        """Return both posteriors fused where ``opened``, else the classifier's."""
        alpha, prior = self.thresholds.alpha, self.prior.to(p_cls)
        return fuse_where_open(
            p_cls, p_sim, opened, alpha=alpha, rule=self.rule, prior=prior, exponent=self.fused_exponent
        )

    def _opens(self, signals: GateSignals) -> Bool[Tensor, " n"]:
        """Return where the signals open the gate: the paper's clauses, and the calibrated one where there is one."""
        opened = gate_opens(signals, self.thresholds)
        return opened if self.calibrated is None else opened & calibrated_gate_opens(signals, self.calibrated)

    def to_json(self) -> dict[str, Any]:
        """Return the settings, without bank and prior, as every file writes them."""
        return {
            "thresholds": asdict(self.thresholds),
            "calibrated": self.calibrated and asdict(self.calibrated),
            "guarantees_similarity": self.guarantees_similarity,
            "first_choices_only": self.first_choices_only,
            **({} if self.known is None else {"known": self.known}),
            **({"class_bias": list(self.class_bias)} if self.class_bias else {}),
            **{name: getattr(self, name) for name in _SETTINGS},
        }

    def to_artifact(self) -> Artifact:
        """Return tensors and JSON values, for the files that hold a decision."""
        bank = self.bank.to_artifact()
        return Artifact({**bank.tensors, "prior": self.prior}, {"bank": bank.meta, "decision": self.to_json()})

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> Decision:
        """Read what :meth:`to_artifact` returned."""
        with reading("its decision", "decision", ArtifactError):
            tensors, settings = artifact.tensors, artifact.meta["decision"]
            bank = PrototypeBank.from_artifact(Artifact(tensors, artifact.meta["bank"]))
            check_decision(tensors, settings)
            return cls(
                bank=bank,
                prior=tensors["prior"],
                thresholds=GateThresholds(**settings["thresholds"]),
                calibrated=settings["calibrated"] and from_plain(settings["calibrated"], CalibratedGate),
                # what older files do not know
                first_choices_only=settings.get("first_choices_only", False),
                known=settings.get("known"),
                class_bias=tuple(settings.get("class_bias", ())),
                **{name: settings[name] for name in _SETTINGS},
            )
