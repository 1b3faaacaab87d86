"""What retrieval is worth: the best comparator that uses the bank against the best that does not."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from tdumpra.core.bootstrap import percentile_interval
from tdumpra.tuning.goal import LOSSES, Goal, Score, objective_name

Array = np.ndarray


def champions(scored: Mapping[str, Score], with_bank: Set[str]) -> tuple[str, str]:
    """Return the best comparator with the bank and the best without, at no lower accuracy than the classifier's.

    They are chosen by their scores on validation, for the goal of the gate; the oracle, which sees labels, has none.
    """
    floor = scored["student"].accuracy

    def champion(names: Set[str]) -> str:
        harmless = [name for name in scored if name in names and scored[name].accuracy >= floor]
        return max(harmless, key=lambda name: round(scored[name].objective, 12), default="student")

    return champion(with_bank), champion(scored.keys() - with_bank)


def retrieval_worth(
    ours: str,
    rival: str,
    scores: Mapping[str, Mapping[str, float]],
    replicates: Mapping[str, Mapping[str, Array]],
    goal: Goal,
    *,
    level: float,
) -> dict[str, Any]:
    """Compare the champion with the bank and the one without on test; ``replicates`` give the interval."""
    metric, sign = (goal.objective, -1 if goal.objective in LOSSES else 1)
    difference = sign * (scores[ours][metric] - scores[rival][metric])
    low = high = float("nan")
    winner = "not tested"
    if replicates:
        low, high = percentile_interval(sign * (replicates[ours][metric] - replicates[rival][metric]), level)
        winner = "retrieval" if low > 0 else "no retrieval" if high < 0 else "neither"
    found = {
        "objective": goal.objective,
        "with_bank": ours,
        "without_bank": rival,
        "with_bank_value": scores[ours][metric],
        "without_bank_value": scores[rival][metric],
        "difference": difference,
        "interval": [low, high],
        "with_bank_accuracy": scores[ours]["accuracy"],
        "without_bank_accuracy": scores[rival]["accuracy"],
        "winner": winner,
    }
    return {**found, "sentence": _worth_sentence(found, level)}


_WINNERS = {
    "retrieval": "retrieval won: {with_bank} beats {without_bank}, each the best of its side on validation",
    "no retrieval": "retrieval lost: {without_bank}, which needs no bank, beats {with_bank}",
    "not tested": "{with_bank} (with the bank) against {without_bank} (without) was not tested",
    "neither": "nobody won between {with_bank} (with the bank) and {without_bank} (without)",
}


def _worth_sentence(found: Mapping[str, Any], level: float) -> str:
    difference, (low, high) = found["difference"], found["interval"]
    span = "no interval" if np.isnan(low) else f"{level:.0%} interval {low:+.4f} to {high:+.4f}".replace("-", "−")
    return (
        f"{_WINNERS[found['winner']].format(**found)}: {objective_name(found['objective'])} "
        f"{'better' if difference >= 0 else 'worse'} by {abs(difference):.4f} with the bank ({span}), at accuracy "
        f"{found['with_bank_accuracy']:.4f} against {found['without_bank_accuracy']:.4f}"
    )
