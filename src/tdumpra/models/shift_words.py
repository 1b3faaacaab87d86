"""A shift in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_LEVEL = 0.05  # of all tests together
_CLEAR = 0.6  # chance of lying below (or above) from which a shift is worth a sentence; 0.5 is none
_LARGE = 0.8
_NEARLY_RIGHT = 0.1  # by which confidence may be off and still be called right
_LEAST = 20  # groups on each side: fewer say nothing about a shift


def _is_clear(each: Mapping[str, Any]) -> bool:
    """Return whether a number has moved, by more than chance and by enough to matter."""
    chance = each["chance_below"]
    return bool(each["p_adjusted"] < _LEVEL and max(chance, 1 - chance) >= _CLEAR)


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each thing that was compared."""
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
        return f"confidence is as on validation (mean over lesions {each['mean']:.2f} against {each['reference']:.2f})"
    how = "lower" if each["chance_below"] > 0.5 else "higher"
    return (
        f"confidence is {how} than on validation: mean over lesions {each['mean']:.2f} against {each['reference']:.2f}"
    )


def _overconfidence_words(found: Mapping[str, Any] | None) -> list[str]:
    said = []
    if found is not None and (expected := found["expected"]) is not None:
        said.append(
            f"expect confidence to be {_gap(expected)}: its mean over rows is {found['confidence']:.2f}, where "
            f"accuracy is estimated at {expected['accuracy']:.2f} without labels ({expected['method']})"
        )
    if found is not None and (measured := found["measured"]) is not None:
        said.append(f"measured on the labelled rows, confidence is {_gap(measured)}")
    return said


def _gap(each: Mapping[str, Any]) -> str:
    gap, (low, high) = each["gap"], each["interval"]
    if low <= 0 <= high:
        known = max(-low, high) <= _NEARLY_RIGHT
        words = "about right" if known else "right or wrong, which these rows cannot tell"
        return f"{words} (off by {gap:+.2f}, 95% interval {low:+.2f} to {high:+.2f})".replace("-", "−")
    low, high = sorted((abs(low), abs(high)))
    return f"too {'high' if gap > 0 else 'low'} by {abs(gap):.2f} (95% interval {low:.2f} to {high:.2f})"
