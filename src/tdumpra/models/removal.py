"""What a removal of rows cannot undo, told from where the rows came from and what was done with them since."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from tdumpra.method.record import Record
from tdumpra.method.replay import REPLAY_ROWS
from tdumpra.method.rows import KeptRows, embedding_marks
from tdumpra.models.opened import OpenedModel
from tdumpra.networks.model_file import Model


class Gone(NamedTuple):
    """Rows that leave a model."""

    train: KeptRows
    validation: KeptRows

    @property
    def groups(self) -> set[str]:
        """Return the groups that the rows belong to."""
        return {str(name) for rows in self for name in rows.groups}

    @property
    def sources(self) -> set[str]:
        """Return where the training rows came from; empty text for the model's own."""
        if self.train.sources is None:
            return {""} if len(self.train) else set()
        return {str(name) for name in self.train.sources}


def what_stays(model: OpenedModel, gone: Gone, left: Record) -> tuple[str, ...]:
    """Return a sentence for each thing that a user should know; no name of a row stands in them."""
    notes = [*_networks(model, gone), *_choices(model, gone)]
    if not notes:
        notes.append("nothing else rests on these rows: they came after training, tuning and adapting")
    notes += [*_empty_places(model, left), *_halved_groups(gone, left), *_copies(gone, left)]
    notes += _empty_classes(model, gone, left)
    decision = model.decision
    if not torch.equal(decision.prior, model.record.prior(decision.bank.n_classes).to(decision.prior)):
        notes.append("class shares came from the rows of several seeds: they are now those of this model's own rows")
    return tuple(notes)


def _networks(model: OpenedModel, gone: Gone) -> list[str]:
    """Tell of weights that were trained on the model's own rows. Rows that were added came later."""
    if not isinstance(model.content, Model):
        if "" in gone.sources or len(gone.validation):
            return ["the network is your own: if it was trained on these rows, only training it again undoes that"]
        return []
    trained = [each for each in (model.content.classifier, model.content.retrieval) if each is not None]
    if "" not in gone.sources or all(each.network.frozen for each in trained):
        return []
    return [
        "the networks' weights are as they were: what training took from these rows stays in them, and only "
        "training again without them undoes that"
    ]


def _choices(model: OpenedModel, gone: Gone) -> list[str]:
    """Tell of temperature, thresholds, bias and head that were chosen when the rows were there."""
    notes = []
    if "" in gone.sources or len(gone.validation):
        seen = (
            f"on validation rows, {len(gone.validation):,} of these among them"
            if len(gone.validation)
            else "beside a bank that held these rows"
        )
        notes.append(f"temperature and thresholds were chosen {seen}, and stay: only tuning again undoes that")
    came = {source: number for number, step in enumerate(model.lineage) for source in step.inputs.values()}
    first = min([came.get(source, 0) for source in gone.sources] + [0] * bool(len(gone.validation)))
    if any(step.command == "adapt" for step in model.lineage[first:]):
        notes.append(
            "the model was adapted when it held these rows: the bias, head or weight that was fitted then stays, and "
            "only to adapt again without them undoes that"
        )
    return notes


def _empty_places(model: OpenedModel, left: Record) -> list[str]:
    """Tell of replay rows whose place another row would have, had its features been kept."""
    names = model.class_names
    before, after = (
        np.minimum(np.bincount(record.train.y[record.replay], minlength=len(names)), REPLAY_ROWS)
        for record in (model.record, left)
    )
    bare = np.bincount(left.train.y[~left.train.has_features], minlength=len(names))
    missing = np.where(before == REPLAY_ROWS, np.minimum(before - after, bare), 0)
    if not missing.any():
        return []
    which = ", ".join(name for name, count in zip(names, missing, strict=True) if count)
    return [
        f"the replay record has {int(missing.sum()):,} rows fewer ({which}): the rows that would take their places are "
        "not in the model's reserve"
    ]


def _halved_groups(gone: Gone, left: Record) -> list[str]:
    stay = sum(int(rows.among(groups=gone.groups).sum()) for rows in (left.train, left.validation))
    return [f"{stay:,} other rows of the same groups stay: --group takes them too"] if stay else []


def _copies(gone: Gone, left: Record) -> list[str]:
    """Tell of rows of other groups that show an image that leaves: whoever withdraws is still in the model by them."""
    count = 0
    for rows in (left.train, left.validation):
        same = np.zeros(len(rows), dtype=bool)
        for away in gone:
            if not len(away) or not len(rows):
                continue
            same |= np.isin(embedding_marks(rows.z), embedding_marks(away.z.astype(rows.z.dtype)))
            if rows.content is not None and away.content is not None:
                same |= (rows.content != "") & np.isin(rows.content, away.content)
        count += int((same & ~rows.among(groups=gone.groups)).sum())
    if not count:
        return []
    return [
        f"other groups have the pixels or the embedding of removed images in {count:,} rows, which stay: if these are "
        "copies, remove their groups too"
    ]


def _empty_classes(model: OpenedModel, gone: Gone, left: Record) -> list[str]:
    """Tell of classes of the classifier without a row; an added one goes with its rows."""
    known = model.decision.columns
    lost = np.setdiff1d(gone.train.y, left.train.y)
    return [
        f"{name} has no row left: the class stays, and retrieval never names it"
        if c < known
        else f"{name} has no row left, and is no class of the model any more"
        for c, name in enumerate(model.class_names)
        if c in lost
    ]
