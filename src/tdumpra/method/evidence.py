"""Why a case was decided as it was: clauses, prototypes, familiarity, and one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tdumpra.core.chances import CalibratedGate, chances
from tdumpra.core.gate import FusionRule, GateSignals, GateThresholds, is_first_choice
from tdumpra.method.bank import Exemplar
from tdumpra.method.decision import Decided, Decision

_SHOWN_PROTOTYPES = 5
NOT_ASKED = " (this gate does not ask)"  # the end of a statement on a clause that lets every value pass
_MEASURES = {
    "theta": "classifier's confidence", "beta": "retrieval's confidence", "margin": "retrieval's lead",
    "delta": "distance of the posteriors", "entropy": "classifier's entropy",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Clause:
    """One condition of the gate with the case's value; the gate opens if all hold."""

    name: str
    statement: str  # for a person, with value and threshold
    value: float
    threshold: float
    holds: bool
    asked: bool = True  # False where the gate's threshold lets every value pass


@dataclass(frozen=True, slots=True)
class Match:
    """A prototype near the case: its cosine, its share of retrieval's posterior, its nearest training cases."""

    label: int
    name: str
    prototype: int
    cosine: float
    share: float
    weight: float  # share of the class's training rows that it stands for
    exemplars: tuple[Exemplar, ...]  # never of the case's own group
    own: int  # nearest training cases that were left out because they show the case's own group


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything behind one decision."""

    label: int
    label_classifier: int
    label_similarity: int
    class_names: tuple[str, ...]
    p: tuple[float, ...]
    p_classifier: tuple[float, ...]
    p_similarity: tuple[float, ...]
    opened: bool
    clauses: tuple[Clause, ...]
    matches: tuple[Match, ...]
    opposing: Match | None  # the strongest prototype of another class than the final label
    familiarity: float  # percentile of the training rows' top cosine
    entropy: float  # of the classifier, in nats
    guarantees_similarity: bool
    alpha: float  # the classifier's weight where the gate is open
    fused_exponent: float  # power of the class prior that an open gate's result is divided by
    rule: FusionRule
    gate_shut: bool  # by tuning, for every case
    group: str | None  # whose training cases were left out
    sentence: str

    @property
    def is_third(self) -> bool:
        """Return whether the final label is neither path's first choice: fusing lifted a class that both rank lower."""
        return self.label not in (self.label_classifier, self.label_similarity)

    @property
    def shown(self) -> tuple[Match, ...]:
        """Return the matches, and the strongest opposing prototype should it be none of them."""
        extra = () if self.opposing is None or self.opposing in self.matches else (self.opposing,)
        return (*self.matches, *extra)

    @property
    def exemplar_ids(self) -> tuple[str, ...]:
        """Return every training case behind the prototypes shown, each once."""
        return tuple({exemplar.id: None for match in self.shown for exemplar in match.exemplars})


def explain(
    decision: Decision,
    p: Tensor,
    z: Tensor,
    *,
    class_names: Sequence[str] | None = None,
    group: str | None = None,
    decided: Decided | None = None,
) -> Evidence:
    """Return the evidence for one checked row ``p`` (1, C), ``z`` (1, D); exemplars of its own ``group`` are left out.

    ``decided`` is what ``decision`` gave for this row, where that is known already.
    """
    decided = decision.decide(p, z) if decided is None else decided
    names = tuple(class_names) if class_names is not None else tuple(str(c) for c in range(decision.bank.n_classes))
    similarity = decision.bank.similarity(z)
    own = None if group is None else str(group)  # the bank keeps groups as strings, whatever they were
    matches = _matches(decision, similarity[0], decided.p_sim[0], names, own)
    label = int(decided.p.argmax())
    clauses = _clauses(decision, decided, names)
    return Evidence(
        label=label,
        label_classifier=int(decided.signals.label_cls),
        label_similarity=int(decided.signals.label_sim),
        class_names=names,
        p=tuple(decided.p[0].tolist()),
        p_classifier=tuple(decided.p_cls[0].tolist()),
        p_similarity=tuple(decided.p_sim[0].tolist()),
        opened=bool(decided.opened),
        clauses=clauses,
        matches=matches[:_SHOWN_PROTOTYPES],
        opposing=next((match for match in matches if match.label != label), None),
        familiarity=float(decision.bank.familiarity(similarity)),
        entropy=float(decided.signals.entropy_cls),
        guarantees_similarity=decision.guarantees_similarity,
        alpha=decision.thresholds.alpha,
        fused_exponent=decision.fused_exponent,
        rule=decision.rule,
        gate_shut=decision.thresholds == GateThresholds.shut(),
        group=own,
        sentence=_sentence(decision, decided, clauses, names),
    )


def _clauses(decision: Decision, decided: Decided, names: tuple[str, ...]) -> tuple[Clause, ...]:
    t, s = decision.thresholds, decided.signals
    # (name, value, threshold, words where it holds, words where it does not)
    rows = [
        ("theta", float(s.gamma_cls), t.theta, "classifier unsure", "classifier sure"),
        ("beta", float(s.gamma_sim), t.beta, "retrieval decisive", "retrieval not decisive"),
        ("margin", float(s.margin_sim), t.margin, "retrieval's lead large", "retrieval's lead small"),
        ("delta", float(s.js), t.delta, "posteriors differ", "posteriors alike"),
    ]
    if t.entropy is not None:
        rows.append(("entropy", float(s.entropy_cls), t.entropy, "classifier spread", "classifier concentrated"))
    clauses = []
    for name, value, threshold, yes, no in rows:
        small_holds = name == "theta"
        # As the gate compares, in the signals' own precision: float32's 0.7 is not below a threshold of 0.7.
        limit = float(torch.tensor(threshold, dtype=s.gamma_cls.dtype))
        holds = value < limit if small_holds else value > limit
        sign = ("<" if holds else "≥") if small_holds else (">" if holds else "≤")
        asks_nothing = holds and (limit >= 1 if small_holds else limit <= 0)
        statement = f"{yes if holds else no} ({_figures(value, limit, sign)})"
        if asks_nothing:
            statement = f"{_MEASURES[name]} {value:.2f}{NOT_ASKED}"
        if decision.calibrated is None or not asks_nothing:  # beside fitted chances, only what asks has a line
            clauses.append(Clause(name, statement, value, threshold, holds, not asks_nothing))
    if decision.calibrated is not None:
        clauses.append(_calibrated_clause(decision.calibrated, s))
    differ = bool(s.label_cls != s.label_sim)
    said = f"{names[int(s.label_cls)]} against {names[int(s.label_sim)]}" if differ else names[int(s.label_cls)]
    verb = "labels disagree" if differ else "labels agree"
    clauses.append(Clause("disagreement", f"{verb} ({said})", float(differ), 0.0, differ))
    if decision.first_choices_only and differ:
        clauses.append(_first_choice_clause(decision, decided, names))
    return tuple(clauses)


def _first_choice_clause(decision: Decision, decided: Decided, names: tuple[str, ...]) -> Clause:
    fused = decision.fused(decided.p_cls, decided.p_sim, torch.ones_like(decided.opened))
    holds = bool(is_first_choice(fused, decided.p_cls, decided.p_sim))
    words = "the first choice of one path" if holds else "neither path's first choice"
    return Clause("first_choice", f"both together say {names[int(fused.argmax())]}, {words}", float(holds), 0.0, holds)


def _calibrated_clause(gate: CalibratedGate, signals: GateSignals) -> Clause:
    fitted = chances(signals, gate.classifier, gate.similarity)
    value = float(fitted.similarity - fitted.classifier)
    holds = value > gate.margin
    of_both = f"{float(fitted.similarity):.2f} against {float(fitted.classifier):.2f}"
    words = "retrieval likelier right" if holds else "retrieval not likelier right by enough"
    lead = _figures(value, gate.margin, ">" if holds else "≤")
    return Clause("advantage", f"{words} ({of_both}, a lead of {lead})", value, gate.margin, holds)


def _figures(value: float, threshold: float, sign: str) -> str:
    left, right = apart(value, threshold)
    return f"{left} {sign} {right}"


def apart(value: float, threshold: float) -> tuple[str, str]:
    """Write both in two decimals, or in as many as it takes to tell them apart."""
    for digits in range(2, 8):
        left, right = f"{value:.{digits}f}", f"{threshold:.{digits}f}"
        if left != right or value == threshold:
            return left, right
    return repr(value), repr(threshold)


def _matches(
    decision: Decision, similarity: Tensor, p_sim: Tensor, names: tuple[str, ...], group: str | None
) -> tuple[Match, ...]:
    """Return all live prototypes, nearest first. A class's shares add up to its probability under retrieval."""
    bank = decision.bank
    live = bank.mask.to(similarity.device)
    share = p_sim[:, None] * torch.where(live, decision.kappa * similarity, -torch.inf).softmax(1)
    order = similarity.masked_fill(~live, -torch.inf).flatten().argsort(descending=True, stable=True)
    matches = []
    for flat in order[: int(live.sum())].tolist():
        c, k = divmod(flat, similarity.shape[1])
        nearest = bank.exemplars[c][k]
        others = tuple(each for each in nearest if group is None or each.group != group)
        cosine, of_posterior, weight = (float(each[c, k]) for each in (similarity, share, bank.weight))
        matches.append(Match(c, names[c], k, cosine, of_posterior, weight, others, own=len(nearest) - len(others)))
    return tuple(matches)


def _sentence(decision: Decision, decided: Decided, clauses: tuple[Clause, ...], names: tuple[str, ...]) -> str:
    before, after = names[int(decided.signals.label_cls)], names[int(decided.p.argmax())]
    if decided.opened:
        why = "; ".join(clause.statement for clause in clauses if clause.asked)
        if after == before:
            return f"{why}: prediction stays {after}"
        third = "" if after == names[int(decided.signals.label_sim)] else ", neither path's first choice"
        return f"{why}: prediction moved from {before} to {after}{third}"
    if decision.thresholds == GateThresholds.shut():
        return f"retrieval did not change this prediction ({after}): tuning left the gate shut"
    if decided.signals.label_cls == decided.signals.label_sim:
        return f"retrieval did not change this prediction ({after}): both say {after}"
    failed = next(clause for clause in clauses if not clause.holds)
    return f"retrieval did not change this prediction ({after}): {failed.statement}"
