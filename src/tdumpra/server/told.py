"""How the API words its answers: the parts of a case that somebody may know, and what a refusal means."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from tdumpra.server import cases
from tdumpra.server.accounts import Person
from tdumpra.server.cases import Listed, gate_of
from tdumpra.server.schemas import CaseLine, Fingerprints, OpinionOut, Problem, ReadingOut
from tdumpra.server.service import Service
from tdumpra.server.settings import FORMATS
from tdumpra.server.tables import Case, ModelFile, Opinion, Reading

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": words}
    for status, words in {
        400: "not a request that can be read", 401: "no login or token", 403: "not allowed", 404: "not found",
        405: "not for this address", 408: "too slow", 409: "not possible now", 413: "too large", 421: "another host",
        422: "not taken", 429: "too many requests", 503: "busy, or the database is away", 507: "the disk is full",
    }.items()
}  # fmt: skip
IMAGE_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "description": f"The file of one image: {', '.join(FORMATS)}.",
    }
}


def fingerprints(row: ModelFile) -> Fingerprints:
    """Name a model, its bank and its settings."""
    return Fingerprints(model=row.id, bank=row.bank, settings=row.settings)


def opinions_of(session: Session, case: Case) -> list[tuple[Opinion, ModelFile]]:
    """Return what each model said, the active one first."""
    found = select(Opinion, ModelFile).join(ModelFile).where(Opinion.case_id == case.id).order_by(Opinion.active.desc())
    return [(opinion, model) for opinion, model in session.execute(found)]


def answers_of(session: Session, case: Case, person: Person) -> list[ReadingOut]:
    """Return the readings that the person may know: all for those who decide, their own for readers."""
    found = select(Reading).where(Reading.case_id == case.id).order_by(Reading.created_at, Reading.id)
    if not person.may("see"):
        found = found.where(Reading.reader_id == person.id)
    return [
        ReadingOut(
            id=each.id, reader=person.name if each.reader_id == person.id else None, label=each.label,
            confidence=each.confidence, comment=each.comment, informed=each.informed, first=each.first,
            created_at=each.created_at,
        )
        for each in session.scalars(found)
    ]  # fmt: skip


def line_of(session: Session, listed: Listed, person: Person, service: Service) -> CaseLine:
    """Return a case as a line of a list, with what the person may know."""
    case, opinion = listed.case, listed.opinion
    shown = cases.sees_model(session, person, case, service.settings)
    return CaseLine(
        id=case.id, number=case.number, lesion=case.lesion, created_at=case.created_at,
        withdrawn=case.withdrawn_at is not None, readings=listed.readings if person.may("see") else None,
        label=opinion.label if shown else None, gate=_gate(opinion) if shown else None,
        decision=listed.decision if person.may("see") else None,
    )  # fmt: skip


def opinion_of(opinion: Opinion, model: ModelFile) -> OpinionOut:
    """Return what one model said."""
    return OpinionOut(
        active=opinion.active, label=opinion.label, classifier=opinion.classifier, retrieval=opinion.retrieval,
        gate=_gate(opinion), confidence=opinion.confidence, familiarity=opinion.familiarity,
        fingerprints=fingerprints(model),
    )  # fmt: skip


def _gate(opinion: Opinion) -> Any:
    return gate_of(cases.evidence_of(opinion))
