"""Sentences on what the gate did on test, and on missing groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NO_GROUPS = "No groups were given: images of one lesion or patient may be on both sides of the split."


def gate_story(evaluation: Mapping[str, Any]) -> str:
    """Tell what the gate did on test, with every label that it moved."""
    gate = evaluation["gate"]
    if not gate["opened"]:
        return "on test the gate never opened."
    p = f"exact McNemar p = {gate['mcnemar_p']:.3g}" if gate["mcnemar_p"] is not None else "McNemar: see each seed"
    flip = "" if gate.get("sign_flip_p") is None else f", sign-flip over lesions p = {gate['sign_flip_p']:.3g}"
    return (
        f"on test the gate opened on {gate['opened']:,} of {gate['n']:,} rows and {moved(gate)} ({p}{flip}); it breaks "
        f"fewer than {gate['harm_upper']:.1%} of rows (95 % bound)."
    )


def moved(gate: Mapping[str, Any]) -> str:
    """Tell how every label that the gate moved came out."""
    if not gate["flipped"]:
        return "moved no label"
    unhelped = gate["flipped"] - gate["fixed"] - gate["broken"]
    neither = f", {unhelped:,} wrong before and after" if unhelped else ""
    labels = "label" if gate["flipped"] == 1 else "labels"
    return f"moved {gate['flipped']:,} {labels}: {gate['fixed']:,} fixed, {gate['broken']:,} broken{neither}"


def without_groups(grouped: Mapping[str, bool]) -> list[str]:
    """Warn of missing groups, naming the models if only some of them lack groups."""
    bare = [name for name, has_groups in grouped.items() if not has_groups]
    if not bare:
        return []
    return [NO_GROUPS if len(bare) == len(grouped) else f"{', '.join(bare)}: {NO_GROUPS}"]
