"""Readings and decisions: what people say of a case.

A reader's first answer counts for agreement. Where reading is blind it was given without the model, and a second answer
may follow with it; both are kept. Once enough readers have answered, a case that they agree on is decided; one on which
they differ waits for an adjudicator who did not read it.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tdumpra.errors import nearest
from tdumpra.server import audit
from tdumpra.server.accounts import LOCAL, Person
from tdumpra.server.answers import Once
from tdumpra.server.cases import find, flagged
from tdumpra.server.refusals import RefusedError, not_found
from tdumpra.server.service import Service
from tdumpra.server.tables import Case, Decision, ModelFile, Opinion, Reading

CONFIDENCES = {1: "a guess", 2: "unsure", 3: "fairly sure", 4: "sure", 5: "certain"}


def add_reading(
    service: Service, person: Person, case_id: str, *, label: str, confidence: int, comment: str, once: Once
) -> dict[str, Any]:
    """Keep a reader's answer; the case is decided by it if all readers that are asked for agree."""
    person.require("read")
    with service.database.write() as session:
        if (before := once.earlier(session)) is not None:
            return dict(before)
        case = find(session, person, case_id)
        _refuse_unqueued(session, case, service)
        refuse_unknown_label(session, case, label)
        own = session.scalars(select(Reading).where(Reading.case_id == case.id, Reading.reader_id == person.id)).all()
        first = not own
        informed = not (first and service.settings.blind)
        if any(each.informed == informed for each in own):
            raise RefusedError(409, f"you have answered case {case.number} already")
        counted = firsts(session, case)
        if first and len(counted) >= service.settings.readers:
            raise RefusedError(409, f"case {case.number} has its {service.settings.readers} readings already")
        reading = Reading(
            case_id=case.id, reader_id=person.id, informed=informed, first=first, label=label, confidence=confidence,
            comment=comment,
        )  # fmt: skip
        audit.record(session, person.id, "add reading", reading)
        if first:
            _decide_if_agreed(session, person, case, [*counted, reading], service.settings.readers)
        answer = {"id": reading.id, "case": case.id, "informed": informed, "first": first}
        once.keep(session, answer)
    return answer


def add_decision(
    service: Service, person: Person, case_id: str, *, label: str, comment: str, once: Once
) -> dict[str, Any]:
    """Keep an adjudicator's label for a case whose readers differ, or a new one for a case that is decided."""
    person.require("decide")
    with service.database.write() as session:
        if (before := once.earlier(session)) is not None:
            return dict(before)
        case = find(session, person, case_id)
        if case.withdrawn_at is not None:
            raise RefusedError(409, f"case {case.number} was withdrawn")
        refuse_unknown_label(session, case, label)
        read = firsts(session, case)
        if person.role != LOCAL and any(each.reader_id == person.id for each in read):
            raise RefusedError(403, f"you have read case {case.number}: somebody else decides it")
        if latest(session, case) is None and len(read) < service.settings.readers:
            missing = service.settings.readers - len(read)
            raise RefusedError(409, f"case {case.number} still waits for {missing} of its readings")
        decision = _decide(session, person, case, label, comment, agreed=False)
        answer = {"id": decision.id, "case": case.id, "label": label}
        once.keep(session, answer)
    return answer


def firsts(session: Session, case: Case) -> list[Reading]:
    """Return the readings that count, in the order in which they came."""
    found = select(Reading).where(Reading.case_id == case.id, Reading.first).order_by(Reading.created_at, Reading.id)
    return list(session.scalars(found))


def latest(session: Session, case: Case) -> Decision | None:
    """Return the decision that counts."""
    found = select(Decision).where(Decision.case_id == case.id).order_by(Decision.number.desc()).limit(1)
    return session.scalars(found).first()


def next_unread(session: Session, person: Person, service: Service) -> str | None:
    """Return the id of the oldest case that waits for the person's reading."""
    n = select(func.count()).where(Reading.case_id == Case.id, Reading.first).correlate(Case).scalar_subquery()
    own = select(Reading.id).where(Reading.case_id == Case.id, Reading.reader_id == person.id).exists()
    done = select(Decision.id).where(Decision.case_id == Case.id).exists()
    query = select(Case.id).join(Opinion, Opinion.case_id == Case.id).where(
        Opinion.active, Case.withdrawn_at.is_(None), n < service.settings.readers, ~own, ~done
    )  # fmt: skip
    if service.settings.queue == "flagged":
        query = query.where(flagged())
    return session.scalars(query.order_by(Case.number).limit(1)).first()


def refuse_unknown_label(session: Session, case: Case, label: str) -> None:
    """Raise unless the label is one of the classes that the case was judged by."""
    said = select(ModelFile.classes).join(Opinion, Opinion.model_id == ModelFile.id).where(
        Opinion.case_id == case.id, Opinion.active
    )  # fmt: skip
    names = json.loads(session.scalars(said).one())
    if label not in names:
        raise RefusedError(422, f"{label[:80]!r} is none of the classes ({', '.join(names)}){nearest(label, names)}")


def _refuse_unqueued(session: Session, case: Case, service: Service) -> None:
    if case.withdrawn_at is not None:
        raise not_found()
    if service.settings.queue == "flagged":
        worth = select(Opinion.id).where(Opinion.case_id == case.id, Opinion.active, flagged())
        if session.scalars(worth).first() is None:
            raise not_found()


def _decide_if_agreed(session: Session, person: Person, case: Case, readings: list[Reading], readers: int) -> None:
    if len(readings) >= readers and len({each.label for each in readings}) == 1 and latest(session, case) is None:
        _decide(session, person, case, readings[0].label, "", agreed=True)


def _decide(session: Session, person: Person, case: Case, label: str, comment: str, *, agreed: bool) -> Decision:
    before = latest(session, case)
    decision = Decision(
        case_id=case.id, number=1 if before is None else before.number + 1, label=label, agreed=agreed, comment=comment,
        decided_by=person.id,
    )  # fmt: skip
    audit.record(session, person.id, "decide case", decision)
    return decision
