"""The words of an evidence page: what its figures mean for somebody who never saw a posterior."""

from __future__ import annotations

import math
from typing import NamedTuple

from tdumpra.method.evidence import Evidence, Match

UNFAMILIAR, UNUSUAL, TYPICAL = 1.0, 5.0, 25.0  # percentiles of the training images


class Words(NamedTuple):
    """A clause as a question; ``needs`` is what stands before its limit, empty where there is no number."""

    question: str
    meaning: str
    needs: str


CLAUSES = {
    "theta": Words("Is the classifier unsure?", "The probability of its first choice must be low.", "below"),
    "beta": Words("Is retrieval decisive?", "The probability of its first choice must be high.", "above"),
    "margin": Words("Is retrieval's lead clear?", "Its first choice must be well ahead of its second.", "above"),
    "delta": Words(
        "Do the two opinions differ?",
        "Distance between the two lists of probabilities: 0 if they are alike, 0.69 at most.",
        "above",
    ),
    "entropy": Words("Is the classifier spread out?", "How widely it spreads its probability over classes.", "above"),
    "advantage": Words(
        "Is retrieval likelier to be right?",
        "Difference of the two chances of being right, as fitted on validation cases.",
        "above",
    ),
    "disagreement": Words("Do they name different classes?", "If both name the same class, nothing can move.", ""),
}


class Reading(NamedTuple):
    """A short answer, and the sentence behind it; ``caution`` asks the reader to be careful."""

    answer: str
    meaning: str
    caution: bool


def headline(evidence: Evidence) -> str:
    """What happened to the prediction, in one sentence."""
    names = evidence.class_names
    final, before, other = (names[c] for c in (evidence.label, evidence.label_classifier, evidence.label_similarity))
    if evidence.is_third:
        return (
            f"Both opinions together changed this prediction from {before} to {final}, which is the first choice of "
            f"neither: the second opinion alone is {other}."
        )
    if evidence.opened and final != before:
        return f"The second opinion changed this prediction from {before} to {final}."
    if evidence.opened:
        return f"The second opinion ({other}) was heard, and the prediction stays {final}."
    if before == other:
        return f"Classifier and second opinion agree on {final}. The prediction is the classifier's own."
    return f"The second opinion ({other}) was not followed. The prediction is the classifier's own."


def outcome(evidence: Evidence, truth: str | None) -> Reading | None:
    """How the final label and the classifier's compare with the reference label."""
    if truth is None:
        return None
    right, was_right = (evidence.class_names[c] == truth for c in (evidence.label, evidence.label_classifier))
    if right and not was_right:
        return Reading("fixed", "The classifier alone was wrong, and the gate made the prediction right.", False)
    if was_right and not right:
        return Reading("broken", "The classifier alone was right, and the gate made the prediction wrong.", True)
    if right:
        return Reading("right", "The prediction is right, as the classifier alone was.", False)
    moved = evidence.label != evidence.label_classifier
    meaning = (
        "The gate moved the prediction from one wrong class to another."
        if moved
        else ("The prediction is wrong, as the classifier alone was.")
    )
    return Reading("wrong", meaning, True)


def familiarity(evidence: Evidence) -> Reading:
    """How near the case is to anything that the bank knows."""
    value = evidence.familiarity
    if value < UNFAMILIAR:
        return Reading(
            "unfamiliar",
            "Fewer than 1 in 100 training images lie as far from every prototype as this case does. It may show "
            "something that the training images do not: trust neither opinion, however decisive it looks.",
            True,
        )
    if value < UNUSUAL:
        return Reading(
            "unusual",
            f"Only {_percent(value)} of the training images lie as far from every prototype as this case does. "
            "Read both opinions with care.",
            True,
        )
    if value < TYPICAL:
        return Reading(
            "less typical than most",
            f"{_percent(value)} of the training images lie at least as far from every prototype as this case does. New "
            "cases lie somewhat farther than training images as a rule.",
            False,
        )
    return Reading(
        "familiar",
        f"{_percent(value)} of the training images lie at least as far from every prototype as this case does: the "
        "bank knows cases like it.",
        False,
    )


def guarantee(evidence: Evidence) -> Reading:
    """Whether an open gate must follow retrieval under these settings."""
    if evidence.gate_shut:
        return Reading("gate shut", "Tuning found nothing to gain, so the gate opens for no case at all.", False)
    joined = " (multiplied, not added)" if evidence.rule == "log-linear" else ""
    weights = (
        f"Where the gate opens, the final opinion is {_percent(100 * evidence.alpha)} classifier and "
        f"{_percent(100 - 100 * evidence.alpha)} retrieval{joined}."
    )
    if evidence.fused_exponent:
        weights += f" This is divided by the class shares to the power {evidence.fused_exponent:g}: rare classes gain."
    if evidence.guarantees_similarity:
        return Reading(
            "holds",
            f"{weights} With these weights and limits an open gate always ends in retrieval's class.",
            False,
        )
    return Reading(
        "does not hold",
        f"{weights} With these weights and limits an open gate can still end in the classifier's class, or in a third "
        "one: opening does not by itself mean that retrieval is followed.",
        False,
    )


def spread(evidence: Evidence) -> str:
    """The classifier's entropy beside its largest possible value."""
    most = math.log(len(evidence.p))
    return f"{evidence.entropy:.2f} of at most {most:.2f} nats"


def own_group(evidence: Evidence) -> Reading:
    """Whether the case's own lesion could stand among its evidence."""
    if evidence.group is None:
        return Reading(
            "own lesion not known",
            "No lesion or patient was named for this case. If the training images hold photographs of it, they may "
            "stand among the evidence.",
            True,
        )
    return Reading(
        "other lesions only", f"Training images of this case's own group ({evidence.group}) are never shown.", False
    )


def absence(match: Match) -> str:
    """Why a prototype has no training image to show."""
    if match.own:
        return (
            f"All {match.own} training images that are kept for this prototype show the case's own group, so none can "
            "be shown: its closeness is no independent evidence."
            if match.own > 1
            else "The one training image that is kept for this prototype shows the case's own group, so it cannot be "
            "shown: its closeness is no independent evidence."
        )
    return "No training image is kept for this prototype."


def _percent(value: float) -> str:
    return f"{value:.0f} %"
