"""What the page of a case shows, and to whom."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy.orm import Session

from tdumpra.report.evidence_page import evidence_values
from tdumpra.server import cases, readings
from tdumpra.server.accounts import LOCAL, Person
from tdumpra.server.readings import CONFIDENCES
from tdumpra.server.service import Service
from tdumpra.server.tables import Case, Opinion, Reading
from tdumpra.server.told import answers_of, opinions_of

_NO_MODEL = "the model that decided this case is not loaded now"
_NO_THUMBNAILS = "the model was saved without them (for privacy)"


def values(session: Session, service: Service, person: Person, case: Case) -> tuple[str, dict[str, Any]]:
    """Return the template of a case's page and its values: for a blind reader nothing that the model said."""
    said = opinions_of(session, case)
    active, model = said[0]
    shared = {
        "case": case,
        "class_names": json.loads(model.classes),
        "confidences": CONFIDENCES,
        "answers": answers_of(session, case, person),
        "may_read": _may_read(session, service, person, case),
    }
    if not cases.sees_model(session, person, case, service.settings):
        return "blind.html", shared
    decision = readings.latest(session, case) if person.may("see") else None  # it would tell the others' answers
    firsts = readings.firsts(session, case)
    return "case.html", {
        **_evidence(service, active, case, None if decision is None else decision.label),
        **shared,
        "opinions": said,
        "decision": decision,
        "may_decide": _may_decide(service, person, case, decision is not None, firsts),
        "differ": person.may("see") and len({each.label for each in firsts}) > 1,
    }


def _evidence(service: Service, opinion: Opinion, case: Case, truth: str | None) -> dict[str, Any]:
    evidence, loaded = cases.evidence_of(opinion), service.models.find(opinion.model_id)
    pictures = {} if loaded is None else loaded.predictor.pictures(evidence)
    return {
        **evidence_values(evidence, case_id=str(case.number), truth=truth, pictures=pictures),
        "image": None if case.withdrawn_at else f"/cases/{case.id}/picture",
        "no_image": "The case was withdrawn, and its image removed.",
        "heatmap": None,
        "notes": [],
        "missing_reason": _NO_MODEL if loaded is None else _NO_THUMBNAILS,
        "back_link": None,
    }


def _may_read(session: Session, service: Service, person: Person, case: Case) -> bool:
    """Return whether an answer of the person would be taken now."""
    if not person.may("read") or case.withdrawn_at is not None:
        return False
    own = [each for each in answers_of(session, case, person) if each.reader is not None]
    if not own:
        taken = len(readings.firsts(session, case))
        return taken < service.settings.readers and readings.latest(session, case) is None
    return service.settings.blind and not any(each.informed for each in own)


def _may_decide(service: Service, person: Person, case: Case, decided: bool, firsts: list[Reading]) -> bool:
    """Return whether a decision of the person would be taken now."""
    if not person.may("decide") or case.withdrawn_at is not None:
        return False
    if person.role != LOCAL and any(each.reader_id == person.id for each in firsts):
        return False
    return decided or len(firsts) >= service.settings.readers
