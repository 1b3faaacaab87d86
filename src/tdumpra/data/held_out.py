"""Choose the test images otherwise than by chance: a value of a metadata column, or one of the outer folds."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from tdumpra.data.draw import draw_folds
from tdumpra.data.manifest import Manifest
from tdumpra.errors import nearest

_FOLDS = 3  # the stream of random numbers beside those of validation (1) and test (2)
_SHOWN = 10  # values that a sentence names


def parse_hold_out(text: str) -> tuple[str, str]:
    """Return column and value of ``COLUMN=VALUE``."""
    column, _, value = (part.strip() for part in text.partition("="))
    if not column or not value:
        raise ValueError(f"hold_out is COLUMN=VALUE, as in site=rosendahl, not {text!r}")
    return column, value


def held_out(manifest: Manifest, hold_out: str) -> tuple[NDArray[np.bool_], list[str]]:
    """Mark the images of a value of a metadata column, and the other images of their groups; with notes."""
    column, value = parse_hold_out(hold_out)
    columns = sorted({name for record in manifest.records for name in record.meta})
    if column not in columns:
        has = f"its columns are {', '.join(columns)}" if columns else "it has no metadata"
        raise ValueError(f"{manifest.name} has no column {column!r} to hold out by{nearest(column, columns)} ({has})")
    values = np.array([record.meta.get(column, "") for record in manifest.records], dtype=np.str_)
    named = values == value
    if not named.any():
        raise ValueError(f"no image of {manifest.name} has {column}={value}: it has {_counted(values)}")
    in_test = np.isin(manifest.groups, manifest.groups[named])
    notes = [f"the test is {column}={value}: {int(named.sum()):,} images"]
    if following := int((in_test & ~named).sum()):
        notes[0] += f", and {following:,} of another {column} whose group is among them"
    if unknown := int(((values == "") & ~in_test).sum()):
        notes.append(f"{unknown:,} images say nothing of {column}: they are not held out")
    classes = range(len(manifest.class_names))
    absent = set(manifest.labels.tolist()) - set(manifest.labels[in_test].tolist())
    notes += [f"{manifest.class_names[c]}: no image in test" for c in classes if c in absent]
    return in_test, notes


def outer_fold(manifest: Manifest, n_folds: int, fold: int, seed: int) -> NDArray[np.bool_]:
    """Mark the images of one of ``n_folds`` folds, which together test every group once."""
    labels, groups = manifest.labels, manifest.groups
    n_groups = {label: len(np.unique(groups[labels == label])) for label in np.unique(labels).tolist()}
    rarest = min(n_groups, key=n_groups.__getitem__)
    if n_folds > n_groups[rarest]:
        raise ValueError(
            f"outer_folds = {n_folds} is more than the groups of the rarest class: {manifest.class_names[rarest]} has "
            f"{n_groups[rarest]}"
        )
    in_fold: NDArray[np.bool_] = draw_folds(labels, groups, n_folds, (seed, _FOLDS)) == fold
    return in_fold


def refuse_untrained(manifest: Manifest, in_test: NDArray[np.bool_]) -> None:
    """Refuse a test that takes all images of a class."""
    labels = manifest.labels
    untrained = set(labels.tolist()) - set(labels[~in_test].tolist())
    if untrained:
        names = ", ".join(manifest.class_names[label] for label in sorted(untrained))
        raise ValueError(f"this test holds all images of {names}: nothing is left to learn the class from")


def _counted(values: NDArray[np.str_]) -> str:
    """Return the values of a column with how many images have each."""
    counts = Counter(value for value in values.tolist() if value).most_common()
    more = f" and {len(counts) - _SHOWN:,} more" if len(counts) > _SHOWN else ""
    return ", ".join(f"{value} ({count:,})" for value, count in counts[:_SHOWN]) + more
