"""What the gate did on test, told in a sentence, and what to think of it where no groups were given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NO_GROUPS = "No groups were given: images of one lesion or patient may stand on both sides of the split."


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


def without_groups(grouped: Mapping[str, bool]) -> list[str]:
    """The sentence on missing groups, with names where it concerns some of several models."""
    bare = [name for name, has_groups in grouped.items() if not has_groups]
    if not bare:
        return []
    return [NO_GROUPS if len(bare) == len(grouped) else f"{', '.join(bare)}: {NO_GROUPS}"]


def _outcomes(gate: Mapping[str, Any]) -> str:
    neither = gate["flipped"] - gate["fixed"] - gate["broken"]
    words = f"{gate['fixed']:,} fixed, {gate['broken']:,} broken"
    return f"{words}, {neither:,} neither (wrong before and after)" if neither else words
