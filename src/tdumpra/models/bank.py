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
import torch
from torch import Tensor

from tdumpra.core.calibration import class_prior
from tdumpra.core.gate import GateThresholds
from tdumpra.errors import InputFileError, nearest
from tdumpra.estimator import DualPathClassifier
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.method.record import REPLAY_ROWS, KeptRows, Record
from tdumpra.models.opened import OpenedModel
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
    left = _without_idle_marks(record.without(groups=groups, ids=ids))
    if not len(left.train):
        raise InputFileError("that is every training row of the model, and a bank needs some")
    gone = {part: int(getattr(record, part).among(groups=groups, ids=ids).sum()) for part in ("train", "validation")}
    touched = {
        name
        for rows in (record.train, record.validation)
        for name in rows.groups[rows.among(groups=groups, ids=ids)].tolist()
    }
    names, known = _classes_left(model, left)
    notes = [*_what_stays(model, gone), *_halved_groups(left, touched), *_empty_classes(record, left, names)]
    if not _prior_is_own(model.decision, record):
        notes.append("class shares came from the rows of several seeds: they are now those of this model's own rows")
    return Changed(rebuilt(model, left, names, known), gone, len(touched), tuple(notes))


def add(model: OpenedModel, rows: KeptRows, names: Sequence[str], source: str) -> Changed:
    """Add labelled rows to a model's bank, marked by their ``source``.

    ``names`` are the model's classes, and after them those that are new.
    """
    record = model.record
    if not len(rows):
        raise InputFileError("there is no labelled row to add")
    decision, new = model.decision, tuple(names[len(model.class_names) :])
    known = decision.columns if new or decision.known is not None else None
    more = replace(rows, z=rows.z.astype(record.train.z.dtype, copy=False), p=rows.p.astype(np.float32, copy=False))
    more = _within_replay(record.train, more)
    return Changed(
        rebuilt(model, record.with_rows(more, source=source), tuple(names), known),
        {"train": len(rows), "validation": 0},
        len(np.unique(rows.groups)),
        tuple(_of_new_classes(decision, new)),
    )


def rebuilt(
    model: OpenedModel, record: Record, names: tuple[str, ...], known: int | None
) -> Model | DualPathClassifier:
    """Return the model with everything that rests on its record made from ``record``."""
    bank = record.rebuild_bank(names)
    decision = replace(model.decision, bank=bank, prior=prior_of(record, len(names)), known=known)
    content = model.content
    if isinstance(content, Model):
        shown = {each.id for of_class in bank.exemplars for nearest_ones in of_class for each in nearest_ones}
        return replace(
            content,
            decision=decision,
            class_names=names,
            record=record,
            thumbnails={name: picture for name, picture in content.thumbnails.items() if name in shown},
            identity={**content.identity, "made_from": ""},  # of the run's files, which this is not
        )
    fitted = content.fitted_
    tuning = replace(fitted.tuning, decision=decision)
    unseen = None if fitted.unseen_bank is None else _bank_of_train(record, names)
    # a proof and an estimate were of the bank that was
    child = DualPathClassifier.from_fitted(
        fitted._replace(tuning=tuning, unseen_bank=unseen, certificate=None, estimate=None),
        names if content.class_names_ is not None or len(names) != len(content.classes_) else None,
        **content.get_params(deep=False),
    )
    child.record_, child.lineage_ = record, content.lineage_
    child.head_, child.evaluation_ = content.head_, content.evaluation_
    return child


def _without_idle_marks(record: Record) -> Record:
    """Drop the columns of a record that say nothing of any row that is left, as if no row had ever needed them."""

    def plain(rows: KeptRows) -> KeptRows:
        if rows.sources is not None and not (rows.sources != "").any():
            rows = replace(rows, sources=None)
        if rows.weights is not None and (rows.weights == 1).all():
            rows = replace(rows, weights=None)
        return rows

    return replace(record, train=plain(record.train), validation=plain(record.validation))


def prior_of(record: Record, n_classes: int) -> Tensor:
    """Return the class shares of the rows that the classifier learnt from.

    Rows that were added later are counted only for classes that the classifier does not know.
    """
    rows = record.train.joined(record.validation) if record.bank.with_validation else record.train
    counted = rows.y >= rows.p.shape[1]
    counted |= True if rows.sources is None else rows.sources == ""
    return class_prior(torch.from_numpy(rows.y[counted]), n_classes)


def _bank_of_train(record: Record, names: tuple[str, ...]) -> PrototypeBank:
    return replace(record, bank=record.bank._replace(with_validation=False)).rebuild_bank(names)


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


def _classes_left(model: OpenedModel, left: Record) -> tuple[tuple[str, ...], int | None]:
    """Return the classes that stay: those of the classifier, and added ones as far as one of them has a row."""
    names, known = model.class_names, model.decision.known
    if known is None:
        return names, None
    stay = max(known, int(left.train.y.max()) + 1, int(left.validation.y.max(initial=-1)) + 1)
    return names[:stay], known if stay > known else None


def _prior_is_own(decision: Decision, record: Record) -> bool:
    return torch.equal(decision.prior, prior_of(record, decision.bank.n_classes).to(decision.prior))


def _what_stays(model: OpenedModel, gone: dict[str, int]) -> list[str]:
    """Tell what a removal cannot undo."""
    notes = []
    if isinstance(model.content, Model):
        trained = [each for each in (model.content.classifier, model.content.retrieval) if each is not None]
        if gone["train"] and not all(each.network.frozen for each in trained):
            notes.append(
                "the networks' weights are as they were: what training took from these rows stays in them, and only "
                "training again without them undoes that"
            )
    else:
        notes.append("the network is your own: if it was trained on these rows, only training it again undoes that")
        if model.content.head_ is not None:
            notes.append("the head that  tdumpra adapt  fitted stays: adapt again without these rows to undo that")
    seen = (
        f"on validation rows, {gone['validation']:,} of these among them"
        if gone["validation"]
        else "beside a bank that held these rows"
    )
    notes.append(f"temperature and thresholds were chosen {seen}, and stay: only tuning again undoes that")
    if any(step.command == "adapt" for step in model.lineage):
        notes.append(
            "the model was adapted: what was fitted on local rows stays, and only adapting its parent again undoes that"
        )
    return notes


def _halved_groups(left: Record, touched: Collection[str]) -> list[str]:
    stay = sum(int(rows.among(groups=touched).sum()) for rows in (left.train, left.validation))
    return [f"{stay:,} other rows of the same groups stay: --group takes them too"] if stay else []


def _empty_classes(before: Record, left: Record, names: tuple[str, ...]) -> list[str]:
    had, has = (np.bincount(record.train.y, minlength=len(names)) for record in (before, left))
    lost = [name for c, name in enumerate(names) if had[c] and not has[c]]
    return [f"{name} has no row left: the class stays, and retrieval never names it" for name in lost]


def _within_replay(train: KeptRows, more: KeptRows) -> KeptRows:
    """Keep features of added rows only as far as their class has room; those that are kept already stay."""
    if more.features is None:
        return more
    room = Counter({int(label): REPLAY_ROWS for label in np.unique(more.y)})
    room.subtract(train.y[train.has_features].tolist())
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
