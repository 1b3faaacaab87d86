"""The gate's part of a report: its settings, how cases pass its clauses, what it changed, its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tdumpra.core.chances import chances
from tdumpra.core.gate import GateThresholds
from tdumpra.experiments.surface import BETA, REFERENCE, THETA, gate_surface
from tdumpra.method.decision import Decision
from tdumpra.method.output_files import SplitOutputs
from tdumpra.report import charts
from tdumpra.report.drawing import csv_text
from tdumpra.report.material import Material
from tdumpra.report.sections import chart, download
from tdumpra.tuning.goal import LOSSES, objective_name, shown_value

_MOST_CLASSES = 24  # of a confusion matrix that can still be read


def gate_story(material: Material) -> dict[str, Any]:
    """The gate's settings in words, and how many test cases get past each of its clauses."""
    gate = material.evaluation["gate"]
    t = gate["thresholds"]
    shut = t == asdict(GateThresholds.shut())
    settings = []
    if not shut and not gate["calibrated"]:
        settings = [
            ("θ", f"{t['theta']:.3g}", "the classifier is unsure below this top probability"),
            ("β", f"{t['beta']:.3g}", "retrieval is decisive above this top probability"),
            ("margin", f"{t['margin']:.3g}", "… and with this lead over its second class"),
            ("δ", f"{t['delta']:.3g}", "the two posteriors differ by more than this, in nats"),
        ]
    elif not shut:
        lead = gate["calibrated"]["margin"]
        settings = [("lead", f"{lead:.3g}", "retrieval’s fitted chance of being right is ahead by more than this")]
    if not shut:
        settings.append(
            ("α", f"{t['alpha']:.3g}", f"the classifier’s weight where the gate is open ({gate['rule']} fusion)")
        )
    settings += [
        (
            "temperature",
            f"{gate['temperature']:.3g}",
            "of the classifier, fitted on validation; it never changes a label",
        ),
        ("κ", f"{gate['kappa']:.3g}", "how sharply a prototype is matched"),
        ("τ", f"{gate['tau']:.3g}", "the temperature of retrieval’s posterior"),
    ]
    if gate.get("fused_exponent"):
        settings.append(
            ("t, open", f"{gate['fused_exponent']:.3g}", "an open gate’s result is divided by the prior to this power")
        )
    if gate["prior_exponent"]:
        settings.append(
            ("t", f"{gate['prior_exponent']:.3g}", "the classifier is divided by the class prior to this power")
        )
    guarantee = (
        "The α bound holds: an open gate always follows retrieval."
        if gate["guarantees_similarity"]
        else "The α bound does not hold: an open gate need not follow retrieval, and the classifier can outweigh it."
    )
    kind = "shut" if shut else "the calibrated gate" if gate["calibrated"] else "the five clauses"
    tuning = material.tuning
    objective = tuning.get("objective", "")
    rivals = [("no gate", tuning["base"])] if tuning else []
    rivals += [(each["gate"], each) for each in tuning.get("contenders", ()) if each["thresholds"] is not None]
    return {
        "sentence": _what_it_did(gate, kind),
        "objective": f"{objective_name(objective)}{' ↓' if objective in LOSSES else ''}",
        "contenders": [
            (
                name,
                *(f"{value:.4f}" for value in (shown_value(objective, row["objective"]), row["accuracy"])),
                f"{row['opened']:,}",
            )
            for name, row in rivals
        ],
        "settings": settings,
        "guarantee": None if shut else guarantee,
        "funnel": None if shut or material.decided is None else funnel(material),
    }


def _what_it_did(gate: Mapping[str, Any], kind: str) -> str:
    if kind == "shut":
        return "Tuning left the gate shut: no prediction on test differs from the calibrated classifier’s."
    other = gate["flipped"] - gate["fixed"] - gate["broken"]
    return (
        f"Tuning chose {kind}. On test the gate opened {gate['opened']:,} times and moved {gate['flipped']:,} labels: "
        f"{gate['fixed']:,} from wrong to right, {gate['broken']:,} from right to wrong, {other:,} from wrong to wrong."
    )


def funnel(material: Material) -> list[dict[str, Any]]:
    """Test cases that are left after each clause, in the order in which they are asked."""
    decision, decided = material.decision, material.decided
    if decision is None or decided is None:
        return []
    s, t = decided.signals, decision.thresholds
    clauses = [("the two paths disagree", s.label_cls != s.label_sim)]
    if decision.calibrated is None:
        clauses += [
            (f"classifier unsure: top probability below θ = {t.theta:.2g}", s.gamma_cls < t.theta),
            (f"retrieval decisive: above β = {t.beta:.2g}", s.gamma_sim > t.beta),
            (f"retrieval’s lead: above {t.margin:.2g}", s.margin_sim > t.margin),
            (f"posteriors differ: more than δ = {t.delta:.2g}", s.js > t.delta),
        ]
    else:
        fitted = chances(s, decision.calibrated.classifier, decision.calibrated.similarity)
        ahead = fitted.similarity - fitted.classifier > decision.calibrated.margin
        clauses.append((f"retrieval likelier right, by more than {decision.calibrated.margin:.2g}", ahead))
    left = decided.opened | True
    rows = [{"words": "test cases", "count": len(left), "share": 1.0}]
    for words, holds in clauses:
        left = left & holds
        rows.append({"words": words, "count": int(left.sum()), "share": float(left.double().mean())})
    rows.append(
        {"words": "gate open", "count": int(decided.opened.sum()), "share": float(decided.opened.double().mean())}
    )
    return rows


def confusion(material: Material) -> dict[str, Any] | str:
    """Truth against prediction: the classifier, the gate, and what the gate changed."""
    splits, decided, names = material.splits, material.decided, material.class_names
    if splits is None or decided is None:
        return material.missing["cases"]
    n, y = len(names), splits.test.y.numpy()
    before, after = (
        np.bincount(y * n + p.argmax(1).numpy(), minlength=n * n).reshape(n, n) for p in (decided.p_cls, decided.p)
    )
    data = [
        {"truth": names[i], "predicted": names[j], "before": int(before[i, j]), "after": int(after[i, j])}
        for i in range(n)
        for j in range(n)
    ]
    support = np.maximum(before.sum(1, keepdims=True), 1)
    change = after - before
    largest = max(int(np.abs(change).max()), 1)

    def table(counts: np.ndarray, strength: np.ndarray) -> list[dict[str, Any]]:
        return [
            {
                "name": names[i],
                "cells": [{"n": int(counts[i, j]), "v": float(strength[i, j]), "on": i == j} for j in range(n)],
            }
            for i in range(n)
        ]

    pairs = sorted(
        ((int(change[i, j]), i, j) for i in range(n) for j in range(n) if change[i, j]), key=lambda each: -abs(each[0])
    )
    return {
        "names": names,
        "small": n <= _MOST_CLASSES,
        "before": table(before, before / support),
        "after": table(after, after / support),
        "change": table(change, change / largest),
        "pairs": [{"by": by, "truth": names[i], "predicted": names[j], "on": i == j} for by, i, j in pairs[:12]],
        "data": download(csv_text(data)),
    }


def curves(material: Material) -> dict[str, Any] | str:
    """θ and β moved one at a time, on validation and on test; a reference gate where the tuned one has none."""
    splits, decision = material.splits, material.decision
    if splits is None or decision is None:
        return material.missing["cases"]
    five = decision.calibrated is None and decision.thresholds != GateThresholds.shut()
    thresholds = decision.thresholds if five else REFERENCE
    drawn = []
    for name, symbol, values in (("theta", "θ", THETA), ("beta", "β", BETA)):
        points, used = _points(splits, decision, thresholds, name, values), getattr(thresholds, name)
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
    splits: SplitOutputs, decision: Decision, thresholds: GateThresholds, name: str, values: Sequence[float]
) -> list[dict[str, Any]]:
    points = []
    for split, rows in (("validation", splits.validation), ("test", splits.test)):
        decided = decision.decide(rows.p, rows.z)
        axes: dict[str, Any] = {
            key: (getattr(thresholds, key),) for key in ("theta", "beta", "margin", "alpha", "delta")
        }
        axes |= {"prior": decision.prior, "exponent": decision.fused_exponent, name: tuple(values)}
        surface = gate_surface(decided.p_cls, decided.p_sim, rows.y, rule=decision.rule, **axes)
        found = sorted(surface.points(), key=lambda point: point[name])
        points += [{"value": point[name], "split": split, "n": len(rows), **point} for point in found]
    return points
