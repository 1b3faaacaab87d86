"""Compute past predictions again, from the stored image and the stored model, and compare."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import NamedTuple

import torch
from sqlalchemy import select

from tdumpra.data.images.framing import Framing
from tdumpra.networks.model_file import Model
from tdumpra.networks.predict import Predictor
from tdumpra.server.cases import evidence_of
from tdumpra.server.database import Database
from tdumpra.server.intake import Task, take
from tdumpra.server.store import Store
from tdumpra.server.tables import Case, ModelFile, Opinion

TOLERANCE = 1e-5  # of a probability: another number of threads may round otherwise


class Replayed(NamedTuple):
    """One prediction computed again."""

    case: int
    model: str
    difference: float | None  # the largest of any probability; None if it could not be computed
    fault: str | None  # why it is not the same


def replay(
    database: Database, store: Store, *, numbers: Collection[int] = (), trusted: Collection[str] = ()
) -> list[Replayed]:
    """Replay the predictions of some cases, or of all that were not withdrawn."""
    with database.read() as session:
        query = (
            select(Case, Opinion, ModelFile)
            .select_from(Case)
            .join(Opinion, Opinion.case_id == Case.id)
            .join(ModelFile, Opinion.model_id == ModelFile.id)
            .where(Case.withdrawn_at.is_(None))
            .order_by(Opinion.model_id, Case.number)
        )
        if numbers:
            query = query.where(Case.number.in_(numbers))
        todo = [(case, opinion, model) for case, opinion, model in session.execute(query)]
    found, predictor, loaded = [], None, ""
    for case, opinion, model in todo:
        if loaded != model.id:
            predictor, loaded = _load(store, model, trusted), model.id
        found.append(_compare(store, case, opinion, predictor))
    return sorted(found)


def _load(store: Store, model: ModelFile, trusted: Collection[str]) -> Predictor | None:
    """Return the model, unless its file is gone or is another one."""
    path = store.model(model.id)
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != model.digest:
        return None
    torch.set_num_threads(1)
    return Predictor(Model.read(path), trusted=trusted, device="cpu")


def _compare(store: Store, case: Case, opinion: Opinion, predictor: Predictor | None) -> Replayed:
    if predictor is None:
        return Replayed(case.number, opinion.model_id, None, "the model's file is missing, or is another one")
    if not store.is_intact(case.image):
        return Replayed(case.number, opinion.model_id, None, "the image is missing, or is another one")
    framings: tuple[tuple[Framing, Framing], ...] = (predictor.framings,)
    taken = take(Task(str(store.image(case.image)), framings, keep=False))
    if isinstance(taken, Exception):
        return Replayed(case.number, opinion.model_id, None, str(taken))
    [prediction] = predictor.decide(taken.framed, evidence=True, groups=[case.lesion])
    before, after = evidence_of(opinion), prediction.evidence
    if after is None:
        return Replayed(case.number, opinion.model_id, None, prediction.error or "the model gave no evidence")
    pairs = [*zip(before.p, after.p, strict=True), *zip(before.p_similarity, after.p_similarity, strict=True)]
    difference = max(abs(a - b) for a, b in pairs)
    same = (before.label, before.opened) == (after.label, after.opened) and difference <= TOLERANCE
    fault = None if same else f"the model says {after.class_names[after.label]} now, and said {opinion.label}"
    return Replayed(case.number, opinion.model_id, difference, fault)
