"""What the gate did on test, told in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def gate_story(evaluation: Mapping[str, Any]) -> str:
    """What the gate did on test; every label that it moved is accounted for."""
    gate = evaluation["gate"]
    if not gate["opened"]:
        return "on test the gate never opened."
    p = f"exact McNemar p = {gate['mcnemar_p']:.3g}" if gate["mcnemar_p"] is not None else "McNemar: see each seed"
    flip = "" if gate.get("sign_flip_p") is None else f", sign-flip over lesions p = {gate['sign_flip_p']:.3g}"
    return (
        f"on test the gate opened on {gate['opened']:,} of {gate['n']:,} rows and moved {gate['flipped']:,} labels: "
        f"{_outcomes(gate)} ({p}{flip}); it breaks fewer than {gate['harm_upper']:.1%} of rows (95 % bound)."
    )


def _outcomes(gate: Mapping[str, Any]) -> str:
    neither = gate["flipped"] - gate["fixed"] - gate["broken"]
    words = f"{gate['fixed']:,} fixed, {gate['broken']:,} broken"
    return f"{words}, {neither:,} neither (wrong before and after)" if neither else words
