"""An evaluation in plain words: the headline, what stands behind it, and what to be careful about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

LEVEL = 0.05  # below it a difference is called more than chance
Verdict = Literal["better", "worse", "chance", "shut", "idle"]


class Tile(NamedTuple):
    """A figure that stands out, and what it is."""

    value: str
    words: str
    tone: str = ""


class Summary(NamedTuple):
    """What a reader should know first."""

    headline: str
    verdict: Verdict
    tiles: list[Tile]
    sentences: list[str]
    cautions: list[str]


def summarise(evaluation: Mapping[str, Any], leak: Mapping[str, Any] | None = None) -> Summary:
    """The top of a report, from one seed's evaluation or from several seeds together."""
    return Summary(
        headline(evaluation), verdict(evaluation["gate"]), _tiles(evaluation), _sentences(evaluation),
        _cautions(evaluation, leak),
    )  # fmt: skip


def p_value(gate: Mapping[str, Any]) -> float | None:
    """Of fixed against broken: over lesions where there are any, else row by row."""
    flip = gate.get("sign_flip_p")
    p: float | None = flip if flip is not None else gate["mcnemar_p"]
    return p


def verdict(gate: Mapping[str, Any]) -> Verdict:
    """What fixed and broken predictions together say."""
    if not gate["opened"]:
        return "shut"
    if not gate["fixed"] and not gate["broken"]:
        return "idle"
    p = p_value(gate)
    if p is None or p >= LEVEL or gate["fixed"] == gate["broken"]:
        return "chance"
    return "better" if gate["fixed"] > gate["broken"] else "worse"


def headline(evaluation: Mapping[str, Any]) -> str:
    """What the gate did, in a sentence."""
    gate, seeds = evaluation["gate"], len(evaluation.get("seeds", ()))
    cases = f"{gate['n']:,} cases" if seeds < 2 else f"{gate['n']:,} cases of {seeds} seeds"
    words = {
        "better": "better than chance",
        "worse": "worse than leaving it shut",
        "chance": "not better than chance",
        "idle": "it changed nothing for better or worse",
    }
    found = verdict(gate)
    if found == "shut":
        return f"The gate stayed shut on all {cases}: every prediction is the classifier’s own."
    did = f"fixed {gate['fixed']:,} and broke {gate['broken']:,}"
    return f"The gate opened on {gate['opened']:,} of {cases}, {did}: {words[found]}."


def _tiles(evaluation: Mapping[str, Any]) -> list[Tile]:
    gate, scores = evaluation["gate"], evaluation["comparators"]
    before, after = scores["student"], scores["gate"]

    def change(metric: str, words: str, *, small_is_good: bool = False) -> Tile:
        difference = None if None in (before[metric], after[metric]) else after[metric] - before[metric]
        if difference is None:
            return Tile("undefined", words)
        tone = "" if abs(difference) < 5e-5 else "good" if (difference < 0) == small_is_good else "bad"
        return Tile(signed(difference), f"{words}: {before[metric]:.4f} → {after[metric]:.4f}", tone)

    calibration = change("ece", "calibration error", small_is_good=True)
    alone = scores.get("temperature", {}).get("ece")
    if alone is not None and after["ece"] is not None:  # the gate stands on a fitted temperature, which has its share
        calibration = calibration._replace(
            words=f"{calibration.words}; a temperature alone: {alone:.4f}",
            tone="" if calibration.tone == "good" and alone <= after["ece"] else calibration.tone,
        )
    return [
        Tile(f"{gate['opened'] / gate['n']:.1%}", f"of cases opened the gate ({gate['opened']:,} of {gate['n']:,})"),
        Tile(f"{gate['fixed']:,} : {gate['broken']:,}", "predictions fixed : broken"),
        change("accuracy", "accuracy"),
        change("balanced_accuracy", "balanced accuracy"),
        calibration,
    ]


def _sentences(evaluation: Mapping[str, Any]) -> list[str]:
    gate = evaluation["gate"]
    sentences = []
    if gate["opened"]:
        tests = [
            f"{words} {p_text(gate[key])}"
            for words, key in (("sign-flip test over lesions", "sign_flip_p"), ("exact McNemar test", "mcnemar_p"))
            if gate.get(key) is not None
        ]
        sentences.append(
            f"The tests of fixed against broken: {', '.join(tests)}. With 95 % confidence the gate breaks fewer than "
            f"{gate['harm_upper']:.1%} of cases."
        )
    sentences += _on_ambiguous(evaluation.get("ambiguous"))
    if gate.get("headroom") is not None and gate["headroom"] > 0:
        sentences.append(
            f"An oracle that always followed the right path would reach an accuracy of {gate['oracle_accuracy']:.4f}: "
            f"{100 * gate['headroom']:.1f} points of headroom, of which the gate took "
            f"{signed(100 * (gate['accuracy'] - gate['classifier_accuracy']), 1)}."
        )
    if "retrieval_worth" in evaluation:
        sentences.append(sentence(f"against what needs no bank: {evaluation['retrieval_worth']['sentence']}"))
    sentences += _seeds_won(evaluation.get("by_seed", {}))
    sentences += _parted_ways(evaluation["comparators"])
    if "by_seed" not in evaluation:  # several seeds have as many sentences, and a place of their own
        sentences.append(sentence(f"how it was tuned: {evaluation['tuning']}"))
    return sentences


def _on_ambiguous(part: Mapping[str, Any] | None) -> list[str]:
    """What became of the cases that the second opinion is for."""
    if part is None or not part["n"]:
        return []
    before, after = (part["comparators"][name]["accuracy"] for name in ("student", "gate"))
    return [
        f"On the {part['n']:,} ambiguous cases, those of which the classifier is less than {part['below']:.0%} sure, "
        f"accuracy went from {before:.4f} to {after:.4f}."
    ]


def _seeds_won(by_seed: Mapping[str, Mapping[str, Any]]) -> list[str]:
    winners = [each["retrieval_worth"]["winner"] for each in by_seed.values() if "retrieval_worth" in each]
    words = {"retrieval": "retrieval won", "no retrieval": "retrieval lost", "neither": "nobody won"}
    counted = [f"{said} in {winners.count(name)}" for name, said in words.items() if name in winners]
    if not counted:
        return []
    counted[0] += f" of {len(winners)} seeds"
    return [sentence(f"against what needs no bank, {', '.join(counted)}")]


def _parted_ways(scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Why one figure rose while the other fell: it must be the rare classes that gained, or lost."""
    before, after = scores["student"], scores["gate"]
    changes = [
        0.0 if None in (before[metric], after[metric]) else after[metric] - before[metric]
        for metric in ("accuracy", "balanced_accuracy")
    ]
    if min(changes) > -5e-5 or max(changes) < 5e-5:
        return []
    rare, common = ("gained", "lost") if changes[1] > 0 else ("lost", "gained")
    return [
        f"Accuracy and balanced accuracy went different ways: on the whole rare classes {rare}, common ones {common}."
    ]


def _cautions(evaluation: Mapping[str, Any], leak: Mapping[str, Any] | None) -> list[str]:
    by_seed = {seed: each.get("notes", ()) for seed, each in evaluation.get("by_seed", {}).items()}
    counted = Counter(note for notes in by_seed.values() for note in notes)
    of_some = {note for note, count in counted.items() if count < len(by_seed)}
    cautions = [sentence(note) for note in evaluation.get("notes", ()) if note not in of_some]
    for seed, notes in by_seed.items():
        cautions += [f"Seed {seed}: {sentence(note)}" for note in notes if note in of_some]
    if not evaluation["grouped"]:
        cautions.append(
            "No groups were given: images of one lesion or patient may stand on both sides of the split, and every "
            "figure here may be too good."
        )
    if leak is not None and leak["images"]:
        cautions.append(
            f"{leak['images']:,} of {leak['of']:,} test images ({leak['share']:.1%}) share a group with training or "
            "validation: every figure here is too good."
        )
    return cautions


def p_text(p: float) -> str:
    """A p-value as one reads it; a very small one by a bound."""
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"


def signed(value: float, digits: int = 4) -> str:
    """A change, with a minus sign that is one."""
    return f"{value:+.{digits}f}".replace("-", "−")


def sentence(text: str) -> str:
    """Words as a sentence: a capital first, a full stop last, and nothing else changed."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!")) else ".")
