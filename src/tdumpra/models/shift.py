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
from tdumpra.method.record import Record
from tdumpra.method.rows import KeptRows
from tdumpra.models.shift_words import sentences

Array = NDArray[Any]
_CHANNELS = ("red", "green", "blue")
_COLOURS = tuple(f"{what} of {channel}" for what in ("mean", "contrast") for channel in _CHANNELS)
_INSIDE = 0.99  # of training rows: what lies farther out is outside of what training saw
_UNLIKE = 0.05  # of validation rows are as unfamiliar as this
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
    found["sentences"] = sentences(found)
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
