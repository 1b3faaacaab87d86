"""The words of an evidence page: what its figures mean to a reader who never saw a posterior."""

from __future__ import annotations

import math
from typing import NamedTuple

from tdumpra.method.evidence import NOT_ASKED, Evidence, Match

UNFAMILIAR, UNUSUAL, TYPICAL = 1.0, 5.0, 25.0  # percentiles of the training images
HARDLY_APART = 0.005  # of cosine
_VISIBLE = 0.01  # of a share: a percent, which is how shares are shown


class Words(NamedTuple):
    """A clause as a question; ``needs`` stands before its limit, and is empty where there is no number."""

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
    "first_choice": Words(
        "Is the result a first choice?", "Both together must name the class that one of them names alone.", ""
    ),
}


class Reading(NamedTuple):
    """A short answer, and the sentence behind it; ``caution`` asks the reader to be careful."""

    answer: str
    meaning: str
    caution: bool = False


_OUTCOMES = {  # by: final label right, classifier right
    (True, False): Reading("fixed", "The classifier alone was wrong, and the gate made the prediction right."),
    (False, True): Reading("broken", "The classifier alone was right, and the gate made the prediction wrong.", True),
    (True, True): Reading("right", "The prediction is right, as the classifier alone was."),
    (False, False): Reading("wrong", "The prediction is wrong, as the classifier alone was.", True),
}


def headline(evidence: Evidence) -> str:
    """Say in one sentence what happened to the prediction."""
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
    """Compare the final label and the classifier's with the reference label."""
    if truth is None:
        return None
    right, was_right = (evidence.class_names[c] == truth for c in (evidence.label, evidence.label_classifier))
    found = _OUTCOMES[right, was_right]
    if found.answer == "wrong" and evidence.label != evidence.label_classifier:
        return found._replace(meaning="The gate moved the prediction from one wrong class to another.")
    return found


def unasked(evidence: Evidence) -> str | None:
    """Name the conditions that this gate was tuned without: their limits let every case pass."""
    free = [clause.statement.removesuffix(NOT_ASKED) for clause in evidence.clauses if not clause.asked]
    if not free:
        return None
    return f"This gate was tuned by a search that is free to drop conditions. It does not ask for {' and '.join(free)}."


def familiarity(evidence: Evidence) -> Reading:
    """Say how near the case is to anything that the bank knows."""
    value = evidence.familiarity
    if value < UNFAMILIAR:
        return Reading(
            "unfamiliar",
            "Fewer than 1 in 100 training images lie as far from every prototype as this case does. It may show "
            "something that the training images do not: trust neither opinion, however decisive it looks.",
            True,
        )
    share = f"{value:.0f} % of the training images lie at least as far from every prototype as this case does"
    if value < UNUSUAL:
        return Reading("unusual", f"Only {share}. Read both opinions with care.", True)
    if value < TYPICAL:
        meaning = f"{share}. New cases lie somewhat farther than training images as a rule."
        return Reading("less typical than most", meaning)
    return Reading("familiar", f"{share}: the bank knows cases like it.")


def guarantee(evidence: Evidence) -> Reading:
    """Say whether an open gate must follow retrieval under these settings."""
    if evidence.gate_shut:
        return Reading("gate shut", "Tuning left the gate shut: it opens for no case at all.")
    joined = " (multiplied, not added)" if evidence.rule == "log-linear" else ""
    weights = (
        f"Where the gate opens, the final opinion is {100 * evidence.alpha:.0f} % classifier and "
        f"{100 - 100 * evidence.alpha:.0f} % retrieval{joined}."
    )
    if evidence.fused_exponent:
        weights += f" This is divided by the class shares to the power {evidence.fused_exponent:g}: rare classes gain."
    if evidence.guarantees_similarity:
        return Reading(
            "holds", f"{weights} With these weights and limits an open gate always ends in retrieval's class."
        )
    return Reading(
        "does not hold",
        f"{weights} With these weights and limits an open gate can still end in the classifier's class, or in a third "
        "one: opening does not by itself mean that retrieval is followed.",
    )


def spread(evidence: Evidence) -> str:
    """Give the classifier's entropy beside its largest possible value."""
    return f"{evidence.entropy:.2f} of at most {math.log(len(evidence.p)):.2f} nats"


def own_group(evidence: Evidence) -> Reading:
    """Say whether the case's own lesion could be among its evidence."""
    if evidence.group is None:
        return Reading(
            "own lesion not known",
            "No lesion or patient was named for this case. If the training images hold photographs of it, they may "
            "be among the evidence.",
            True,
        )
    meaning = f"Training images of this case's own group ({evidence.group}) are never shown."
    return Reading("other lesions only", meaning)


def hardly_apart(evidence: Evidence) -> str | None:
    """Warn where the nearest prototypes are of several classes and practically equally near."""
    nearest = max(match.cosine for match in evidence.shown)
    names = dict.fromkeys(match.name for match in evidence.shown if match.cosine >= nearest - HARDLY_APART)
    if len(names) < 2:
        return None
    *first, last = names
    return (
        f"The bank can hardly tell these classes apart here: the nearest prototypes of {', '.join(first)} and {last} "
        f"lie within {HARDLY_APART} of one another in cosine."
    )


def shares_out_of_order(evidence: Evidence) -> str | None:
    """Explain a prototype that counts for less than a farther one, where there is such a pair."""
    ordered = sorted(evidence.shown, key=lambda match: -match.cosine)
    for i, near in enumerate(ordered[:-1]):
        far = max(ordered[i + 1 :], key=lambda match: match.share)
        if far.share >= near.share + _VISIBLE:
            break
    else:
        return None

    def told(match: Match) -> str:
        return f"{match.name} (cosine {match.cosine:.3f}, share {100 * match.share:.0f} %)"

    in_all = [f"{match.name} {100 * evidence.p_similarity[match.label]:.0f} %" for match in (near, far)]
    return (
        f"A prototype of {told(near)} is nearer but counts for less than one of {told(far)}. Shares are of the class: "
        "retrieval judges each class by all its prototypes together, then divides the class's probability among "
        f"them. In all, {in_all[0]} and {in_all[1]}."
    )


def absence(match: Match) -> str:
    """Say why a prototype has no training image to show."""
    if not match.own:
        return "No training image is kept for this prototype."
    which, show = (
        (f"All {match.own} training images", "show") if match.own > 1 else ("The only training image", "shows")
    )
    return (
        f"{which} kept for this prototype {show} the case's own group and cannot be shown: its closeness is no "
        "independent evidence."
    )
