"""Cases: take one in with what every model says of it, find them, show them, withdraw them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, exists, func, or_, select
from sqlalchemy.orm import Session, aliased

from tdumpra.method.bank import Exemplar
from tdumpra.method.evidence import Clause, Evidence, Match
from tdumpra.report.reading import UNFAMILIAR
from tdumpra.runtime.prediction import Prediction
from tdumpra.server import audit
from tdumpra.server.accounts import LOCAL, Person
from tdumpra.server.answers import Once
from tdumpra.server.models import Loaded
from tdumpra.server.refusals import RefusedError, not_found
from tdumpra.server.service import Service
from tdumpra.server.settings import LOW_CONFIDENCE, Settings
from tdumpra.server.tables import Case, Decision, Opinion, Reading, now

FILTERS = {
    "unread": "for me to read",
    "differing": "readers differ, undecided",
    "decided": "decided",
    "moved": "moved by the gate",
    "opened": "gate open",
    "unfamiliar": "unfamiliar",
    "low": "low confidence",
    "shadow": "models differ",
    "withdrawn": "withdrawn",
}
OF_THE_MODEL = frozenset({"moved", "opened", "unfamiliar", "low", "shadow"})  # filters that tell what it says
OF_OTHERS = frozenset({"differing", "decided", "withdrawn"})  # filters that tell what others did
PAGE = 50


class Judged(NamedTuple):
    """What one model said of one image."""

    model: Loaded
    prediction: Prediction
    evidence: Evidence


def take_in(service: Service, person: Person, data: bytes, lesion: str | None, once: Once) -> dict[str, Any]:
    """Store an image as a case, with the opinion of every model; return its id and number."""
    person.require("upload")
    with service.database.read() as session:
        if (before := once.earlier(session)) is not None:
            return dict(before)
    with service.inference.place():
        service.models.active.refuse_if_swapped()
        loaded = service.models.all()
        taken = service.intake(data, tuple(each.predictor.framings for each in loaded), keep=True)
        digest = service.store.put(taken.image, taken.preview)
        judged = [judge(service, model, framed, lesion) for model, framed in zip(loaded, taken.framed, strict=True)]
    with service.database.write() as session:
        if (before := once.earlier(session)) is not None:
            return dict(before)
        if not service.store.image(digest).is_file():  # a case of the same image was withdrawn a moment ago
            service.store.put(taken.image, taken.preview)
        number = (session.scalar(select(func.max(Case.number))) or 0) + 1
        case = Case(
            number=number, image=digest, width=taken.width, height=taken.height, lesion=lesion, created_by=person.id
        )
        audit.record(session, person.id, "add case", case)
        active = service.models.active.row.id
        for each in judged:
            audit.record(session, person.id, "add opinion", _opinion(case, each, each.model.row.id == active))
        answer = {"id": case.id, "number": case.number}
        once.keep(session, answer)
    return answer


def judge(service: Service, model: Loaded, framed: Any, lesion: str | None) -> Judged:
    """Ask one model, with its evidence."""
    prediction = service.inference.predict(model.predictor, framed, group=lesion, evidence=True)
    if prediction.evidence is None:
        raise RefusedError(500, "the model gave no evidence")
    service.metrics.prediction(model.row.id, gate_of(prediction.evidence))
    return Judged(model, prediction, prediction.evidence)


def gate_of(evidence: Evidence) -> str:
    """Say what the gate did in one word."""
    if evidence.label != evidence.label_classifier:
        return "moved"
    return "opened" if evidence.opened else "shut"


def find(session: Session, person: Person, case_id: str) -> Case:
    """Return a case that the person may see, or say that there is none."""
    case = session.get(Case, case_id)
    if case is None or not (person.may("see") or person.may("read") or case.created_by == person.id):
        raise not_found()
    if case.withdrawn_at is not None and not person.may("manage"):
        raise not_found()
    return case


def sees_model(session: Session, person: Person, case: Case, settings: Settings) -> bool:
    """Return whether the person may know what the model says: blind readers only after their own answer."""
    if not settings.blind or person.role not in ("reader", LOCAL):
        return True
    own = select(Reading.id).where(Reading.case_id == case.id, Reading.reader_id == person.id)
    return session.scalars(own.limit(1)).first() is not None


def withdraw(service: Service, person: Person, case_id: str, once: Once) -> dict[str, Any]:
    """Take a case out for good: its image is removed, and it is in no list, figure or export any more."""
    person.require("manage")
    with service.database.write() as session:
        case = find(session, person, case_id)
        answer = once.earlier(session)
        if answer is None:
            answer = _mark_withdrawn(session, person, case)
            once.keep(session, answer)
    with service.database.write() as session:  # only now is it certain, and nobody adds the image at the same time
        shared = select(Case.id).where(Case.image == case.image, Case.withdrawn_at.is_(None)).limit(1)
        if session.scalars(shared).first() is None:
            service.store.remove(case.image)
    return dict(answer)


def _mark_withdrawn(session: Session, person: Person, case: Case) -> dict[str, Any]:
    if case.withdrawn_at is not None:
        raise RefusedError(409, f"case {case.number} was withdrawn already")
    case.withdrawn_at = now()
    audit.record(session, person.id, "withdraw case", case)
    return {"id": case.id, "number": case.number}


class Listed(NamedTuple):
    """A case in a list, with the opinion of the model that was active."""

    case: Case
    opinion: Opinion
    readings: int
    differ: bool
    decision: str | None


def listing(
    session: Session,
    person: Person,
    settings: Settings,
    *,
    chosen: Sequence[str] = (),
    below: int | None = None,
    limit: int = PAGE,
) -> list[Listed]:
    """Return the newest cases that the person may see and that all ``chosen`` filters let pass."""
    if unknown := set(chosen) - FILTERS.keys():
        raise RefusedError(422, f"{min(unknown)!r} is no filter: there are {', '.join(FILTERS)}")
    if settings.blind and not person.may("see") and OF_THE_MODEL & set(chosen):
        raise RefusedError(403, "blind readers cannot choose cases by what the model says")
    if not person.may("see") and OF_OTHERS & set(chosen):
        raise RefusedError(403, "this filter tells what others did, which your role does not see")
    first = select(
        Reading.case_id, func.count().label("n"), func.count(func.distinct(Reading.label)).label("labels")
    ).where(Reading.first).group_by(Reading.case_id).subquery()  # fmt: skip
    newest = aliased(Decision)
    last = select(func.max(newest.number)).where(newest.case_id == Case.id).scalar_subquery()
    query = (
        select(Case, Opinion, func.coalesce(first.c.n, 0), func.coalesce(first.c.labels, 0), Decision.label)
        .join(Opinion, and_(Opinion.case_id == Case.id, Opinion.active))
        .outerjoin(first, first.c.case_id == Case.id)
        .outerjoin(Decision, and_(Decision.case_id == Case.id, Decision.number == last))
        .where(*_visible(person, settings))
        .order_by(Case.number.desc())
        .limit(limit)
    )
    query = query.where(Case.withdrawn_at.is_not(None) if "withdrawn" in chosen else Case.withdrawn_at.is_(None))
    if below is not None:
        query = query.where(Case.number < below)
    conditions: dict[str, ColumnElement[bool]] = {
        **_of_opinions(),
        "unread": and_(
            ~exists().where(Reading.case_id == Case.id, Reading.reader_id == person.id),
            func.coalesce(first.c.n, 0) < settings.readers,
            Decision.id.is_(None),
        ),
        "differing": and_(first.c.n >= settings.readers, first.c.labels > 1, Decision.id.is_(None)),
        "decided": Decision.id.is_not(None),
    }
    rows = session.execute(query.where(*(conditions[name] for name in chosen if name in conditions)))
    return [Listed(case, opinion, n, labels > 1, label) for case, opinion, n, labels, label in rows]


def flagged() -> ColumnElement[bool]:
    """Return the condition of a case that is worth a second look."""
    found = _of_opinions()
    return or_(found["moved"], found["unfamiliar"], found["low"])


def evidence_of(opinion: Opinion) -> Evidence:
    """Return the evidence as it was when the case came in."""

    def match(said: dict[str, Any]) -> Match:
        return Match(**{**said, "exemplars": tuple(Exemplar(*each) for each in said["exemplars"])})

    said = json.loads(opinion.evidence)
    lists = {name: tuple(said[name]) for name in ("class_names", "p", "p_classifier", "p_similarity")}
    return Evidence(
        **{
            **said,
            **lists,
            "clauses": tuple(Clause(**each) for each in said["clauses"]),
            "matches": tuple(match(each) for each in said["matches"]),
            "opposing": said["opposing"] and match(said["opposing"]),
        }
    )


def _of_opinions() -> dict[str, ColumnElement[bool]]:
    other = aliased(Opinion)
    return {
        "moved": Opinion.label != Opinion.classifier,
        "opened": Opinion.opened.is_(True),
        "unfamiliar": Opinion.familiarity < UNFAMILIAR,
        "low": Opinion.confidence < LOW_CONFIDENCE,
        "shadow": exists().where(other.case_id == Opinion.case_id, other.label != Opinion.label),
    }


def _visible(person: Person, settings: Settings) -> list[ColumnElement[bool]]:
    if person.may("see"):
        return []
    if not person.may("read"):
        return [Case.created_by == person.id]
    return [flagged()] if settings.queue == "flagged" else []


def _opinion(case: Case, judged: Judged, active: bool) -> Opinion:
    evidence = judged.evidence
    names = evidence.class_names
    return Opinion(
        case_id=case.id, model_id=judged.model.row.id, active=active, label=names[evidence.label],
        classifier=names[evidence.label_classifier], retrieval=names[evidence.label_similarity], opened=evidence.opened,
        confidence=max(evidence.p), familiarity=evidence.familiarity, evidence=json.dumps(asdict(evidence)),
    )  # fmt: skip
