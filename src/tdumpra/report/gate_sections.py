"""The gate's sections of a report: its settings, how cases pass its clauses, what it changed, its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tdumpra.core.chances import chances
from tdumpra.core.gate import GateThresholds
from tdumpra.evaluation.story import moved
from tdumpra.experiments.surface import BETA, REFERENCE, THETA, gate_surface
from tdumpra.method.decision import Decided, Decision
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import ScoredOutputs
from tdumpra.report import charts
from tdumpra.report.material import Material
from tdumpra.report.sections import chart, csv_link
from tdumpra.tuning.goal import LOSSES, objective_name, shown_value

_MOST_CLASSES = 24  # of a confusion matrix that can still be read
_CLAUSES = {
    "theta": ("θ", "the classifier is unsure below this top probability"),
    "beta": ("β", "retrieval is decisive above this top probability"),
    "margin": ("margin", "… and with this lead over its second class"),
    "delta": ("δ", "the two posteriors differ by more than this, in nats"),
}
_ASKS_NOTHING = {"theta": 1.0, "beta": 0.0, "margin": 0.0, "delta": 0.0}  # thresholds that let every case pass


def gate_story(material: Material) -> dict[str, Any]:
    """Return the gate's settings in words, and how many test cases pass each of its clauses."""
    gate, tuning, decision, decided = material.evaluation["gate"], material.tuning, material.decision, material.decided
    shut = gate["thresholds"] == asdict(GateThresholds.shut())
    if shut:
        did = "Tuning left the gate shut: no prediction on test differs from the calibrated classifier’s."
    else:
        kind = "the calibrated gate" if gate["calibrated"] else "the five clauses"
        did = f"Tuning chose {kind}. On test the gate opened {gate['opened']:,} times and {moved(gate)}."
    only = " A label that is neither path’s first choice never comes out." if gate.get("first_choices_only") else ""
    free = [symbol for name, (symbol, _) in _CLAUSES.items() if gate["thresholds"][name] == _ASKS_NOTHING[name]]
    if free and not shut and not gate["calibrated"]:
        only += f" This gate does not ask for {', '.join(free)}: its thresholds let every case pass."
    guarantee = (
        "The α bound holds: an open gate always follows retrieval."
        if gate["guarantees_similarity"]
        else "The α bound does not hold: an open gate need not follow retrieval, and the classifier can outweigh it."
    )
    objective = tuning.get("objective", "")
    rivals = [("no gate", tuning["base"])] if tuning else []
    rivals += [(each["gate"], each) for each in tuning.get("contenders", ()) if each["thresholds"] is not None]
    return {
        "sentence": did,
        "objective": f"{objective_name(objective)}{' ↓' if objective in LOSSES else ''}",
        "contenders": [
            (name, shown_value(objective, row["objective"]), row["accuracy"], row["opened"]) for name, row in rivals
        ],
        "settings": [(name, f"{value:.3g}", words) for name, value, words in _settings(gate, shut)],
        "guarantee": None if shut else guarantee + only,
        "funnel": funnel(decision, decided) if decision and decided and not shut else None,
    }


def _settings(gate: Mapping[str, Any], shut: bool) -> list[tuple[str, float, str]]:
    """Return symbol, value and meaning of every setting in use."""
    t, found = gate["thresholds"], []
    if not shut:
        found += [
            (symbol, t[name], words) for name, (symbol, words) in _CLAUSES.items() if t[name] != _ASKS_NOTHING[name]
        ]
        if gate["calibrated"]:
            words = "retrieval’s fitted chance of being right is ahead by more than this"
            found.append(("lead in chance", gate["calibrated"]["margin"], words))
        found.append(("α", t["alpha"], f"the classifier’s weight where the gate is open ({gate['rule']} fusion)"))
    found += [
        ("temperature", gate["temperature"], "of the classifier, fitted on validation; it never changes a label"),
        ("κ", gate["kappa"], "how sharply a prototype is matched"),
        ("τ", gate["tau"], "the temperature of retrieval’s posterior"),
    ]
    if gate["fused_exponent"]:
        words = "an open gate’s result is divided by the prior to this power"
        found.append(("t, open", gate["fused_exponent"], words))
    if gate["prior_exponent"]:
        found.append(("t", gate["prior_exponent"], "the classifier is divided by the class prior to this power"))
    return found


def funnel(decision: Decision, decided: Decided) -> list[dict[str, Any]]:
    """Count the test cases that are left after each clause, in the order of the clauses."""
    s, t = decided.signals, decision.thresholds
    clauses = [("test cases", decided.opened | True), ("the two paths disagree", s.label_cls != s.label_sim)]
    asked = {
        "theta": (f"classifier unsure: top probability below θ = {t.theta:.2g}", s.gamma_cls < t.theta),
        "beta": (f"retrieval decisive: above β = {t.beta:.2g}", s.gamma_sim > t.beta),
        "margin": (f"retrieval’s lead: above {t.margin:.2g}", s.margin_sim > t.margin),
        "delta": (f"posteriors differ: more than δ = {t.delta:.2g}", s.js > t.delta),
    }
    clauses += [clause for name, clause in asked.items() if getattr(t, name) != _ASKS_NOTHING[name]]
    if decision.calibrated is not None:
        fitted = chances(s, decision.calibrated.classifier, decision.calibrated.similarity)
        ahead = fitted.similarity - fitted.classifier > decision.calibrated.margin
        clauses.append((f"retrieval likelier right, by more than {decision.calibrated.margin:.2g}", ahead))
    rows, left = [], decided.opened | True
    if decision.first_choices_only:
        clauses.append(("result is one path’s first choice", decided.opened))
    for words, holds in [*clauses, ("gate open", decided.opened)]:
        left = left & holds
        rows.append({"words": words, "count": int(left.sum()), "share": float(left.double().mean())})
    return rows


def confusion(splits: SplitOutputs, decided: Decided, names: Sequence[str]) -> dict[str, Any]:
    """Count truth against prediction: the classifier's, the gate's, and what the gate changed."""
    n, y = len(names), splits.test.y.numpy()
    before, after = (
        np.bincount(y * n + p.argmax(1).numpy(), minlength=n * n).reshape(n, n) for p in (decided.p_cls, decided.p)
    )
    change = after - before
    cells = sorted(np.argwhere(change).tolist(), key=lambda cell: -abs(change[tuple(cell)]))
    small = n <= _MOST_CLASSES
    listed = np.argwhere(
        np.ones((n, n)) if small else before + after
    )  # of thousands of classes, most pairs never occur
    return {
        "names": names,
        "small": small,
        **({"before": before.tolist(), "after": after.tolist(), "change": change.tolist()} if small else {}),
        "largest": int(np.abs(change).max()),
        "pairs": [(names[i], names[j], int(change[i, j])) for i, j in cells[:6]],
        "data": csv_link(
            [
                {"truth": names[i], "predicted": names[j], "before": int(before[i, j]), "after": int(after[i, j])}
                for i, j in listed.tolist()
            ]
        ),
    }


def curves(splits: SplitOutputs, decision: Decision, tuned: Decision | None = None) -> dict[str, Any]:
    """Draw θ and β moved one at a time, on validation and on test; of a reference gate where the tuned has none.

    Validation rows are decided by ``tuned``, with the bank that was tuned on them, if it is another than is in use.
    """
    five = decision.calibrated is None and decision.thresholds != GateThresholds.shut()
    thresholds = decision.thresholds if five else REFERENCE
    drawn = []
    for name, symbol, values in (("theta", "θ", THETA), ("beta", "β", BETA)):
        by_split = {"validation": (splits.validation, tuned or decision), "test": (splits.test, decision)}
        points, used = _points(by_split, thresholds, name, values), getattr(thresholds, name)
        caption = f"{symbol} moves, all else is held. The test curve is for reading, not for choosing."
        drawn.append(chart(charts.gating_curve(points, symbol, used), f"sweep_{name}", caption))
    words = (
        "The tuned gate, with one threshold moved at a time."
        if five
        else f"The tuned gate has no such thresholds (it is {'calibrated' if decision.calibrated else 'shut'}), so a "
        f"reference gate is moved instead: θ = {REFERENCE.theta}, β = {REFERENCE.beta}, margin {REFERENCE.margin}, δ = "
        f"{REFERENCE.delta}, α = {REFERENCE.alpha}."
    )
    return {"charts": drawn, "words": words}


def _points(
    by_split: Mapping[str, tuple[ScoredOutputs, Decision]],
    thresholds: GateThresholds,
    name: str,
    values: Sequence[float],
) -> list[dict[str, Any]]:
    points = []
    held = {key: (getattr(thresholds, key),) for key in ("theta", "beta", "margin", "alpha", "delta")}
    for split, (rows, decision) in by_split.items():
        prior = {"prior": decision.prior, "exponent": decision.fused_exponent}
        axes: dict[str, Any] = {**held, **prior, name: tuple(values)}
        decided = decision.decide(rows.p, rows.z)
        surface = gate_surface(decided.p_cls, decided.p_sim, rows.y, rule=decision.rule, **axes)
        found = sorted(surface.points(), key=lambda point: point[name])
        points += [{"value": point[name], "split": split, "n": len(rows), **point} for point in found]
    return points
