"""What retrieval is worth: the best variant that uses the bank against the best that does not."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
from torch import Tensor

from tdumpra.core.bootstrap import percentile_interval
from tdumpra.tuning.goal import LOSSES, Goal, objective_name

Array = np.ndarray
Replicates = Mapping[str, Mapping[str, Array]]


def retrieval_worth(
    rehearsed: Mapping[str, Tensor],
    y_val: Tensor,
    scores: Mapping[str, Mapping[str, float]],
    replicates: Replicates | None,
    goal: Goal,
    *,
    without_bank: Set[str],
    level: float,
) -> dict[str, Any]:
    """Each side's champion is chosen on validation, under the same objective and constraint; test compares the two.

    Args:
        rehearsed: each comparator's posterior on the validation rows.
        y_val: their labels.
        scores: each comparator's metrics on test.
        replicates: the same for each bootstrap replicate; without them there is no interval.
        goal: what is maximised; accuracy must not fall below the student's.
        without_bank: the comparators that need no second path.
        level: of the interval.
    """
    floor = goal.score(rehearsed["student"], y_val).accuracy
    on_val = {name: goal.score(p, y_val) for name, p in rehearsed.items() if name != "oracle"}

    def champion(names: Set[str]) -> str:
        harmless = [name for name in on_val if name in names and on_val[name].accuracy >= floor]
        return max(harmless, key=lambda name: round(on_val[name].objective, 12), default="student")

    with_bank = champion(set(on_val) - without_bank)
    rival = champion(set(without_bank))
    metric, sign = (goal.objective, -1 if goal.objective in LOSSES else 1)
    difference = sign * (scores[with_bank][metric] - scores[rival][metric])
    low = high = float("nan")
    if replicates is not None:
        low, high = percentile_interval(sign * (replicates[with_bank][metric] - replicates[rival][metric]), level)
    accuracy = {name: scores[name]["accuracy"] for name in (with_bank, rival)}
    verdict = "retrieval" if low > 0 else "no retrieval" if high < 0 else "neither"
    if replicates is None:
        verdict = "not tested"
    return {
        "objective": goal.objective,
        "with_bank": with_bank,
        "without_bank": rival,
        "with_bank_value": scores[with_bank][metric],
        "without_bank_value": scores[rival][metric],
        "difference": difference,
        "interval": [low, high],
        "with_bank_accuracy": accuracy[with_bank],
        "without_bank_accuracy": accuracy[rival],
        "winner": verdict,
        "sentence": f"{_verdict(with_bank, rival, verdict)}: {objective_name(goal.objective)} "
        f"{_side(difference)} with the bank ({_span(low, high, level)}), at accuracy {accuracy[with_bank]:.4f} against "
        f"{accuracy[rival]:.4f}",
    }


def _verdict(with_bank: str, rival: str, verdict: str) -> str:
    return {
        "retrieval": f"retrieval won: {with_bank} beats {rival}, each the best of its side on validation",
        "no retrieval": f"retrieval lost: {rival}, which needs no bank, beats {with_bank}",
        "not tested": f"{with_bank} (with the bank) against {rival} (without) was not tested",
        "neither": f"nobody won between {with_bank} (with the bank) and {rival} (without)",
    }[verdict]


def _side(difference: float) -> str:
    return f"{'better' if difference >= 0 else 'worse'} by {abs(difference):.4f}"


def _span(low: float, high: float, level: float) -> str:
    return "no interval" if np.isnan(low) else f"{level:.0%} interval {low:+.4f} to {high:+.4f}".replace("-", "−")
