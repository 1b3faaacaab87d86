"""How new data differ from what a model was made of, by its record alone: no images, and no labels are needed.

Each lesion or patient counts once. Rows are compared with the validation rows, which the networks never saw, as new
rows were not; colours with the training rows, which are what was seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tdumpra.core.bootstrap import drawn_groups, percentile_interval
from tdumpra.core.groups import lesion_numbers
from tdumpra.core.significance import holm_adjusted
from tdumpra.core.two_samples import (
    expected_accuracy,
    mean_by_group,
    moved,
    outside,
    same_shares_p,
    total_variation,
)
from tdumpra.method.decision import Decided, Decision
from tdumpra.method.record import KeptRows, Record

Array = NDArray[Any]
_CHANNELS = ("red", "green", "blue")
_COLOURS = tuple(f"{what} of {channel}" for what in ("mean", "contrast") for channel in _CHANNELS)
_LEVEL = 0.05  # of all tests together
_CLEAR = 0.6  # chance of lying below (or above) from which a shift is worth a sentence; 0.5 is none
_LARGE = 0.8
_INSIDE = 0.99  # of training rows: what lies farther out is outside of what training saw
_UNLIKE = 0.05  # of validation rows are as unfamiliar as this
_LEAST = 20  # groups on each side: fewer say nothing about a shift
_REPLICATES = 500


class Seen(NamedTuple):
    """What the model says of some rows."""

    rows: KeptRows
    decided: Decided
    familiarity: Array

    @property
    def confidence(self) -> Array:
        """Return the probability of the final label of each row."""
        top: Array = self.decided.p.amax(1).double().numpy()
        return top

    @property
    def labels(self) -> Array:
        """Return the final label of each row."""
        found: Array = self.decided.p.argmax(1).numpy()
        return found


def look(decision: Decision, rows: KeptRows) -> Seen:
    """Decide rows, and tell how familiar they are."""
    z = torch.from_numpy(np.ascontiguousarray(rows.z))
    p = torch.from_numpy(rows.p.astype(np.float64))
    decided = decision.decide(p / p.sum(1, keepdim=True), z)
    familiarity = decision.bank.familiarity(decision.bank.similarity(z)).double().numpy()
    return Seen(rows, decided, familiarity)


def shift(new: Seen, validation: Seen, record: Record, names: Sequence[str]) -> dict[str, Any]:
    """Return the part ``shift`` of ``validation.json``: figures, and what they mean in plain words."""
    found: dict[str, Any] = {
        "groups": {"new": _groups(new.rows), "validation": _groups(validation.rows), "train": _groups(record.train)},
        "classes": _classes(new, validation, record, names),
        "confidence": _number(new.confidence, new.rows, validation.confidence, validation.rows),
        "familiarity": _familiarity(new, validation),
        "colours": _colours(new.rows, record.train),
        "overconfidence": _overconfidence(new, validation),
    }
    _adjust(found)
    found["sentences"] = _sentences(found)
    return found


def _groups(rows: KeptRows) -> int:
    return len(np.unique(rows.groups))


def _number(values: Array, rows: KeptRows, reference: Array, others: KeptRows) -> dict[str, float]:
    """Compare a number over groups."""
    return moved(mean_by_group(values, rows.groups), mean_by_group(reference, others.groups))._asdict()


def _classes(new: Seen, validation: Seen, record: Record, names: Sequence[str]) -> dict[str, Any]:
    """Compare class shares: of labels with those of training, or, without labels, of predictions with validation's."""
    labelled = new.rows.labelled
    by_label = bool(labelled.any())
    if by_label:
        rows = new.rows.rows(labelled)
        sides = ((rows.y, rows.groups), (record.train.y, record.train.groups))
    else:
        sides = ((new.labels, new.rows.groups), (validation.labels, validation.rows.groups))
    counts, reference = (_class_counts(labels, groups, len(names)) for labels, groups in sides)
    known = counts.sum() > 0 and reference.sum() > 0
    return {
        "of": "labels" if by_label else "predictions",
        "reference": "train" if by_label else "validation",
        "new": _shares(counts, names),
        "before": _shares(reference, names),
        "distance": total_variation(counts, reference) if known else float("nan"),
        "p_value": same_shares_p(counts, reference) if known else float("nan"),
        "missing": [name for name, count in zip(names, counts, strict=True) if not count] if by_label else [],
    }


def _class_counts(labels: Array, groups: Array, n_classes: int) -> Array:
    """Count groups by the class of their first row."""
    _, first = np.unique(groups, return_index=True)
    counts: Array = np.bincount(labels[first], minlength=n_classes)
    return counts


def _shares(counts: Array, names: Sequence[str]) -> dict[str, float]:
    total = max(int(counts.sum()), 1)
    return {name: float(count / total) for name, count in zip(names, counts, strict=True)}


def _familiarity(new: Seen, validation: Seen) -> dict[str, Any]:
    found: dict[str, Any] = _number(new.familiarity, new.rows, validation.familiarity, validation.rows)
    limit = float(np.quantile(validation.familiarity, _UNLIKE)) if len(validation.rows) else float("nan")
    below = float((new.familiarity < limit).mean()) if len(validation.rows) else float("nan")
    return {**found, "unlike_below": limit, "unlike": below, "unlike_before": _UNLIKE}


def _colours(new: KeptRows, train: KeptRows) -> dict[str, Any] | None:
    """Compare mean and contrast of each channel; ``None`` where a side does not know its colours."""
    if new.colours is None or train.colours is None:
        return None
    (mine, own), (theirs, seen) = (
        (groups[known], colours[known].astype(np.float64))
        for groups, colours in ((new.groups, new.colours), (train.groups, train.colours))
        for known in (np.isfinite(colours).all(1),)
    )
    if not len(mine) or len(theirs) <= len(_COLOURS):
        return None
    channels = {
        name: moved(mean_by_group(own[:, i], mine), mean_by_group(seen[:, i], theirs))._asdict()
        for i, name in enumerate(_COLOURS)
    }
    return {
        "channels": channels,
        "outside": float(outside(own, seen, inside=_INSIDE).mean()),
        "outside_before": 1 - _INSIDE,
    }


def _overconfidence(new: Seen, validation: Seen) -> dict[str, Any] | None:
    """Estimate by how much confidence is too high, and measure it where there are labels."""
    found: dict[str, Any] = {"confidence": float(new.confidence.mean()), "expected": None, "measured": None}
    if len(validation.rows):
        correct = validation.labels == validation.rows.y
        found["expected"] = {
            "accuracy": expected_accuracy(new.confidence, validation.confidence, correct),
            "method": "average thresholded confidence, by the errors on the validation rows",
            **_estimate(new, validation, correct),
        }
        found["before"] = float(validation.confidence.mean() - correct.mean())
    keep = new.rows.labelled
    if keep.any():
        gap = new.confidence[keep] - (new.labels[keep] == new.rows.y[keep])
        found["measured"] = {"accuracy": float((new.labels[keep] == new.rows.y[keep]).mean()), **_mean(gap, new, keep)}
    return found


def _estimate(new: Seen, validation: Seen, correct: Array) -> dict[str, Any]:
    """Return the expected gap, with both sets of groups drawn again."""
    rng = np.random.default_rng(0)
    sides = [lesion_numbers(seen.rows.groups, len(seen.rows)) for seen in (new, validation)]
    gaps = []
    for _ in range(_REPLICATES):
        own, theirs = (np.repeat(np.arange(len(member)), drawn_groups(member, rng)) for member in sides)
        confidence = new.confidence[own]
        gaps.append(confidence.mean() - expected_accuracy(confidence, validation.confidence[theirs], correct[theirs]))
    gap = new.confidence.mean() - expected_accuracy(new.confidence, validation.confidence, correct)
    return {"gap": float(gap), "interval": list(percentile_interval(np.array(gaps), 0.95))}


def _mean(values: Array, new: Seen, keep: Array) -> dict[str, Any]:
    rng, member = np.random.default_rng(0), lesion_numbers(new.rows.groups[keep], int(keep.sum()))
    drawn = [np.average(values, weights=drawn_groups(member, rng)) for _ in range(_REPLICATES)]
    return {"gap": float(values.mean()), "interval": list(percentile_interval(np.array(drawn), 0.95))}


def _tests(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return everything that was tested."""
    channels = [] if found["colours"] is None else list(found["colours"]["channels"].values())
    return [found["classes"], found["confidence"], found["familiarity"], *channels]


def _adjust(found: Mapping[str, Any]) -> None:
    """Add p-values that allow for there being several tests (Holm)."""
    tests = [each for each in _tests(found) if not np.isnan(each["p_value"])]
    adjusted = holm_adjusted(np.array([each["p_value"] for each in tests])) if tests else np.empty(0)
    for each in _tests(found):
        each["p_adjusted"] = float("nan")
    for each, p_value in zip(tests, adjusted, strict=True):
        each["p_adjusted"] = float(p_value)


def _is_clear(each: Mapping[str, Any]) -> bool:
    """Return whether a number has moved, by more than chance and by enough to matter."""
    chance = each["chance_below"]
    return bool(each["p_adjusted"] < _LEVEL and max(chance, 1 - chance) >= _CLEAR)


def _sentences(found: Mapping[str, Any]) -> list[str]:
    few = {side: n for side, n in found["groups"].items() if 0 < n < _LEAST and side != "train"}
    said = [f"only {n} {side} groups: whether anything has shifted can hardly be told" for side, n in few.items()]
    if not found["groups"]["validation"]:
        said.append("the record holds no validation rows: confidence and familiarity cannot be compared")
    said += [_class_words(found["classes"]), _colour_words(found["colours"])]
    said += [_familiarity_words(found["familiarity"]), _confidence_words(found["confidence"])]
    said += _overconfidence_words(found["overconfidence"])
    return [each for each in said if each]


def _class_words(classes: Mapping[str, Any]) -> str:
    if np.isnan(classes["distance"]):
        return ""
    who = "classes" if classes["of"] == "labels" else "predicted classes"
    if not (classes["p_adjusted"] < _LEVEL and classes["distance"] >= 0.1):
        return f"{who} are spread much as in {_called(classes['reference'])}"
    change = {name: share - classes["before"][name] for name, share in classes["new"].items()}
    most = max(change, key=lambda name: abs(change[name]))
    word = "more" if change[most] > 0 else "less"
    return (
        f"{who} are spread differently: {classes['distance']:.0%} of the cases would have to be of another class to "
        f"match {_called(classes['reference'])}; {most} is {word} common ({classes['new'][most]:.0%} against "
        f"{classes['before'][most]:.0%})"
    )


def _called(reference: str) -> str:
    return "training" if reference == "train" else reference


def _colour_words(colours: Mapping[str, Any] | None) -> str:
    if colours is None:
        return "colours cannot be compared: they are not known on both sides"
    clear = {name: each for name, each in colours["channels"].items() if _is_clear(each)}
    far = colours["outside"]
    if not clear and far < 5 * colours["outside_before"]:
        return f"colours are those that training saw ({far:.1%} of images lie outside of them, 1% of training's do)"
    named = sorted(clear, key=lambda name: -abs(clear[name]["chance_below"] - 0.5))[:2]
    how = " and ".join(_colour_change(name, less=clear[name]["chance_below"] > 0.5) for name in named)
    more = f" ({how})" if how else ""
    word = "lie outside of what training saw" if far >= 5 * colours["outside_before"] else "have shifted"
    return f"colours {word}{more}: {far:.1%} of images are farther out than 99% of training's"


def _colour_change(name: str, *, less: bool) -> str:
    what, _, channel = name.partition(" of ")
    if what == "mean":
        return f"{'less' if less else 'more'} {channel}"
    return f"{'less' if less else 'more'} contrast in {channel}"


def _familiarity_words(each: Mapping[str, Any]) -> str:
    if np.isnan(each["p_adjusted"]):
        return ""
    if not _is_clear(each):
        return "cases are as familiar to the bank as those of validation"
    chance = each["chance_below"]
    how = "much less" if chance >= _LARGE else "less" if chance > 0.5 else "more"
    return (
        f"cases are {how} familiar to the bank: a new one is less familiar than one of validation {chance:.0%} of the "
        f"time, and {each['unlike']:.0%} are as unfamiliar as the least familiar 5% of validation"
    )


def _confidence_words(each: Mapping[str, Any]) -> str:
    if np.isnan(each["p_adjusted"]):
        return ""
    if not _is_clear(each):
        return f"confidence is as on validation (mean {each['mean']:.2f} against {each['reference']:.2f})"
    how = "lower" if each["chance_below"] > 0.5 else "higher"
    return f"confidence is {how} than on validation: {each['mean']:.2f} on average against {each['reference']:.2f}"


def _overconfidence_words(found: Mapping[str, Any] | None) -> list[str]:
    said = []
    if found is not None and (expected := found["expected"]) is not None:
        said.append(
            f"expect confidence to be {_gap(expected)}: it is {found['confidence']:.2f} on average, where accuracy is "
            f"estimated at {expected['accuracy']:.2f} without labels ({expected['method']})"
        )
    if found is not None and (measured := found["measured"]) is not None:
        said.append(f"measured on the labelled rows, confidence is {_gap(measured)}")
    return said


def _gap(each: Mapping[str, Any]) -> str:
    gap, (low, high) = each["gap"], each["interval"]
    if low <= 0 <= high:
        return f"about right (off by {gap:+.2f}, 95% interval {low:+.2f} to {high:+.2f})"
    low, high = sorted((abs(low), abs(high)))
    return f"too {'high' if gap > 0 else 'low'} by {abs(gap):.2f} (95% interval {low:.2f} to {high:.2f})"
