"""The API for programs, ``/v1/…``. An image is the body of a request as it is; everything else is JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from pydantic import WithJsonSchema
from starlette.concurrency import run_in_threadpool

from tdumpra.artifacts import jsonable
from tdumpra.server import audit, cases, export, readings
from tdumpra.server.accounts import Person
from tdumpra.server.answers import Once
from tdumpra.server.cases import FILTERS, Listed
from tdumpra.server.models import Loaded
from tdumpra.server.refusals import RefusedError
from tdumpra.server.schemas import (
    CaseList,
    CaseOut,
    Created,
    DecisionIn,
    DecisionKept,
    DecisionOut,
    Gate,
    HeadOut,
    Lesion,
    ModelList,
    ModelOut,
    PredictionOut,
    ReadingIn,
    ReadingKept,
)
from tdumpra.server.service import Service
from tdumpra.server.told import IMAGE_BODY, REFUSALS, answers_of, fingerprints, line_of, opinion_of, opinions_of

router = APIRouter(prefix="/v1", responses=REFUSALS)


async def service_of(request: Request) -> Service:  # asynchronous, or each call would go to a thread and back
    """Return the running server's parts."""
    service: Service = request.app.state.service
    return service


async def person_of(request: Request) -> Person:
    """Return who asks, as the guard found out."""
    person: Person = request.state.person
    return person


Serves = Annotated[Service, Depends(service_of)]
Who = Annotated[Person, Depends(person_of)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]
Filter = Annotated[str, WithJsonSchema({"type": "string", "enum": [*FILTERS]})]
CaseId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
ModelId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
LesionQuery = Annotated[Lesion | None, Query(description="The lesion or patient, under a pseudonym.")]


@router.post("/predict", openapi_extra=IMAGE_BODY)
async def predict(
    request: Request,
    service: Serves,
    person: Who,
    evidence: Annotated[bool, Query(description="Ask the bank in any case, and say why.")] = False,
    lesion: LesionQuery = None,
) -> PredictionOut:
    """Predict one image with the active model. Nothing is stored."""
    person.require("predict")
    data = await image_of(request)
    model = service.models.active

    def work() -> tuple[Any, Loaded]:
        with service.inference.place():
            model.refuse_if_swapped()
            taken = service.intake(data, (model.predictor.framings,), keep=False)
            found = service.inference.predict(model.predictor, taken.framed[0], group=lesion, evidence=evidence)
            return found, model

    prediction, model = await run_in_threadpool(work)
    own = prediction.label
    if prediction.signals is not None:
        own = model.class_names[int(prediction.signals["label_cls"])]
    gate: Gate = "moved" if own != prediction.label else "opened" if prediction.opened else "shut"
    service.metrics.prediction(model.row.id, gate)
    return PredictionOut(
        label=prediction.label,
        classifier=own,
        gate=gate,
        probabilities=prediction.probabilities,
        evidence=None if prediction.evidence is None else jsonable(asdict(prediction.evidence)),
        fingerprints=fingerprints(model.row),
        request_id=request.state.request_id,
    )


@router.post("/cases", status_code=201, openapi_extra=IMAGE_BODY)
async def add_case(
    request: Request, service: Serves, person: Who, lesion: LesionQuery = None, key: Key = None
) -> Created:
    """Store an image as a case, with what every model says of it."""
    person.require("upload")
    data = await image_of(request)
    once = Once(person.id, key, "add case", data, lesion or "")
    return Created(**await run_in_threadpool(cases.take_in, service, person, data, lesion, once))


@router.get("/cases")
def list_cases(
    service: Serves,
    person: Who,
    only: Annotated[list[Filter] | None, Query(description="Filters that must all hold.")] = None,
    below: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Cases with smaller numbers.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = cases.PAGE,
) -> CaseList:
    """List the cases that you may see, newest first."""
    with service.database.read() as session:
        found = cases.listing(session, person, service.settings, chosen=only or (), below=below, limit=limit)
        lines = [line_of(session, each, person, service) for each in found]
    return CaseList(cases=lines, next=found[-1].case.number if len(found) == limit else None)


@router.get("/cases/{case_id}")
def get_case(case_id: CaseId, service: Serves, person: Who) -> CaseOut:
    """Return one case with all that you may know of it."""
    with service.database.read() as session:
        case = cases.find(session, person, case_id)
        shown = cases.sees_model(session, person, case, service.settings)
        opinions = opinions_of(session, case)
        answers = answers_of(session, case, person)
        active = next(each for each, _ in opinions if each.active)
        decision = readings.latest(session, case)
        told = decision is not None and person.may("see")  # to readers it would tell the others' answers
        n = len(readings.firsts(session, case))
        listed = Listed(case, active, n, False, decision.label if decision is not None else None)
        line = line_of(session, listed, person, service)
        return CaseOut(
            **line.model_dump(),
            width=case.width,
            height=case.height,
            opinions=[opinion_of(each, model) for each, model in opinions] if shown else None,
            answers=answers,
            decided=DecisionOut.model_validate(decision, from_attributes=True) if told else None,
        )


@router.get(
    "/cases/{case_id}/image",
    response_class=Response,
    responses={200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}},
)
def get_image(case_id: CaseId, service: Serves, person: Who) -> Response:
    """Return the stored image: a PNG of its pixels, without metadata."""
    with service.database.read() as session:
        case = cases.find(session, person, case_id)
    return Response(service.store.read(service.store.image(case.image)), media_type="image/png")


@router.delete("/cases/{case_id}")
def withdraw_case(case_id: CaseId, service: Serves, person: Who, key: Key = None) -> Created:
    """Withdraw a case for good: its image is removed, and no list, figure or export has it any more."""
    once = Once(person.id, key, "withdraw", case_id)
    return Created(**cases.withdraw(service, person, case_id, once))


@router.post("/cases/{case_id}/readings", status_code=201)
def add_reading(case_id: CaseId, reading: ReadingIn, service: Serves, person: Who, key: Key = None) -> ReadingKept:
    """Give your answer to a case."""
    once = Once(person.id, key, "read", case_id, reading.model_dump_json())
    return ReadingKept(**readings.add_reading(service, person, case_id, **reading.model_dump(), once=once))


@router.post("/cases/{case_id}/decisions", status_code=201)
def add_decision(case_id: CaseId, decision: DecisionIn, service: Serves, person: Who, key: Key = None) -> DecisionKept:
    """Decide a case whose readers differ, or decide one anew."""
    once = Once(person.id, key, "decide", case_id, decision.model_dump_json())
    return DecisionKept(**readings.add_decision(service, person, case_id, **decision.model_dump(), once=once))


@router.get("/models")
def list_models(service: Serves) -> ModelList:
    """List the models that are loaded."""
    active = service.models.active
    return ModelList(
        models=[
            ModelOut(
                fingerprints=fingerprints(each.row), name=each.row.name, active=each is active,
                classes=list(each.class_names), intact=each.is_intact(),
            )
            for each in service.models.all()
        ]
    )  # fmt: skip


@router.post("/models/{model_id}/promote")
def promote(model_id: ModelId, service: Serves, person: Who, key: Key = None) -> ModelList:
    """Make a loaded model the active one; the one before becomes its shadow."""
    person.require("manage")
    once = Once(person.id, key, "promote", model_id)
    with service.database.write() as session:
        if once.earlier(session) is None:
            service.models.promote(session, model_id, person.id)
            once.keep(session, {})
    return _followed(service)


@router.post("/models/rollback")
def roll_back(service: Serves, person: Who, key: Key = None) -> ModelList:
    """Make the model active again that was so before the last promotion."""
    person.require("manage")
    once = Once(person.id, key, "roll back")
    with service.database.write() as session:
        if once.earlier(session) is None:
            service.models.roll_back(session, person.id)
            once.keep(session, {})
    return _followed(service)


@router.get("/audit/head")
def audit_head(service: Serves, person: Who) -> HeadOut:
    """Return the end of the audit trail, to be kept elsewhere."""
    person.require("study")
    with service.database.read() as session:
        return HeadOut(**audit.head(session)._asdict())


@router.get(
    "/export",
    response_class=Response,
    responses={200: {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}}},
)
def get_export(service: Serves, person: Who) -> Response:
    """Return the decided cases as a ZIP: ``cases.csv`` and its images, to be read as ``csv:cases.csv``."""
    person.require("export")
    return export.response(service)


async def image_of(request: Request) -> bytes:
    """Return the body of a request, which is an image's file."""
    data = await request.body()
    if not data:
        raise RefusedError(422, "the request holds no image: its body is the file itself")
    return data


def _followed(service: Service) -> ModelList:
    with service.database.read() as session:
        service.models.follow(session)
    return list_models(service)
