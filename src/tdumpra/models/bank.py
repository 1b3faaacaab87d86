"""A bank that lives: rows are added to a model or taken out of it, and everything that rests on them is made again.

Whatever a bank is made of stands in the model's record, and every part of the bank is a function of the record: so the
model without some rows is, to the bit, the model whose record never held them. What is no function of the record, the
weights of networks and the thresholds, stays as it is, and each change says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tdumpra.core.gate import GateThresholds
from tdumpra.errors import InputFileError, nearest
from tdumpra.estimator import DualPathClassifier
from tdumpra.method.decision import Decision
from tdumpra.method.record import Record
from tdumpra.method.replay import REPLAY_ROWS
from tdumpra.method.rows import KeptRows
from tdumpra.models.opened import OpenedModel
from tdumpra.models.removal import Gone, what_stays
from tdumpra.networks.model_file import Model


class Changed(NamedTuple):
    """A model with other rows, not yet written."""

    content: Model | DualPathClassifier
    rows: dict[str, int]  # that came or went, of train and of validation
    groups: int
    notes: tuple[str, ...]  # what a user should know; no name of a row stands in them


def remove(model: OpenedModel, *, groups: Collection[str] = (), ids: Collection[str] = ()) -> Changed:
    """Take every row of these groups and with these ids out of a model. Names are matched to the letter."""
    record = model.record
    _refuse_unknown(record, groups, ids)
    gone = Gone(*(rows.rows(rows.among(groups=groups, ids=ids)) for rows in (record.train, record.validation)))
    left = record.without(groups=groups, ids=ids)
    if not len(left.train):
        raise InputFileError("that is every training row of the model, and a bank needs some")
    notes = what_stays(model, gone, left)
    left, names, known = _without_empty_classes(model, left)
    content = model.with_rows(left, _rebuilt(model.decision, left, names, known), class_names=names)
    if isinstance(content, Model):
        content, without_picture = _with_pictures_in_use(content)
        notes += without_picture
    return Changed(content, {"train": len(gone.train), "validation": len(gone.validation)}, len(gone.groups), notes)


def add(model: OpenedModel, rows: KeptRows, names: Sequence[str], source: str) -> Changed:
    """Add labelled rows to a model's bank, marked by their ``source``.

    ``names`` are the model's classes, and after them those that are new.
    """
    record = model.record
    if not len(rows):
        raise InputFileError("there is no labelled row to add")
    decision, new = model.decision, tuple(names[len(model.class_names) :])
    known = decision.columns if new or decision.known is not None else None
    grown = record.with_rows(_within_replay(record, rows), source=source)
    return Changed(
        model.with_rows(grown, _rebuilt(decision, grown, names, known), class_names=names),
        {"train": len(rows), "validation": 0},
        len(np.unique(rows.groups)),
        tuple(_of_new_classes(decision, new)),
    )


def _rebuilt(decision: Decision, record: Record, names: Sequence[str], known: int | None) -> Decision:
    """Return the decision with everything that rests on the rows made from ``record``."""
    return replace(decision, bank=record.rebuild_bank(names), prior=record.prior(len(names)), known=known)


def _refuse_unknown(record: Record, groups: Collection[str], ids: Collection[str]) -> None:
    if not groups and not ids:
        raise ValueError("name what to remove: --group ID or --id ID")
    held = {
        "group": {str(name) for rows in (record.train, record.validation) for name in rows.groups},
        "id": {str(name) for rows in (record.train, record.validation) for name in rows.ids},
    }
    for kind, other, asked in (("group", "id", groups), ("id", "group", ids)):
        for name in asked:
            if name in held[kind]:
                continue
            if name in held[other]:
                hint = f"; it is the name of {'an image' if other == 'id' else 'a group'}: --{other} {name}"
            else:
                hint = nearest(name, held[kind])
            what = "group" if kind == "group" else "image"
            raise InputFileError(f"no {what} of the model is called {name!r}{hint}")


def _without_empty_classes(model: OpenedModel, left: Record) -> tuple[Record, tuple[str, ...], int | None]:
    """Drop added classes that have no row left. The classifier's own stay: it may still name them."""
    names, known = model.class_names, model.decision.known
    if known is None:
        return left, names, None
    stay = np.union1d(np.arange(known), np.concatenate([left.train.y, left.validation.y]))
    train, validation = (replace(rows, y=np.searchsorted(stay, rows.y)) for rows in (left.train, left.validation))
    left = replace(left, train=train, validation=validation)
    return left, tuple(names[c] for c in stay.tolist()), known if len(stay) > known else None


def _with_pictures_in_use(content: Model) -> tuple[Model, tuple[str, ...]]:
    """Drop the pictures of cases that are no exemplars any more, and count exemplars without one."""
    shown = {each.id for of_class in content.decision.bank.exemplars for nearest in of_class for each in nearest}
    pictures = {name: picture for name, picture in content.thumbnails.items() if name in shown}
    bare = len(shown - pictures.keys())
    note = f"{bare:,} exemplars have no picture: the model holds none of cases that took the place of removed ones"
    return replace(content, thumbnails=pictures), (note,) if pictures and bare else ()


def _within_replay(record: Record, more: KeptRows) -> KeptRows:
    """Keep features of added rows only as far as their class has room; those that are kept already stay."""
    if more.features is None:
        return more
    room = Counter({int(label): REPLAY_ROWS for label in np.unique(more.y)})
    room.subtract(record.train.y[record.replay].tolist())
    kept = np.zeros(len(more), dtype=bool)
    for row, label in enumerate(more.y.tolist()):
        if more.has_features[row] and room[label] > 0:
            kept[row] = True
            room[label] -= 1
    return replace(more, features=np.where(kept[:, None], more.features, np.float16(0)), has_features=kept)


def _of_new_classes(decision: Decision, new: Sequence[str]) -> list[str]:
    if not new:
        return []
    listed = ", ".join(new)
    if decision.thresholds == GateThresholds.shut():
        return [f"the gate is shut, so no label will be {listed}: retrieval and the evidence alone know it"]
    if decision.rule == "log-linear" and decision.thresholds.alpha > 0:
        return [
            f"log-linear fusion gives no probability to what the classifier rules out, so no label will be {listed}: "
            "retrieval and the evidence alone know it"
        ]
    return []
