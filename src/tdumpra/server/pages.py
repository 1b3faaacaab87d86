"""The pages for people. Every form works without a script; its hidden key makes a second click count once."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile

from tdumpra.server import api, audit, case_page, cases, export, readings
from tdumpra.server.accounts import Person
from tdumpra.server.answers import Once
from tdumpra.server.api import Serves, Who
from tdumpra.server.cases import FILTERS, OF_THE_MODEL
from tdumpra.server.models import earlier
from tdumpra.server.refusals import RefusedError
from tdumpra.server.schemas import DecisionIn, Lesion, ReadingIn
from tdumpra.server.settings import FORMATS
from tdumpra.server.study import study
from tdumpra.server.views import page

router = APIRouter(include_in_schema=False)
CaseId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
_MOST_FIELDS = 20
Checked = TypeVar("Checked", bound=BaseModel)


@router.get("/")
def work_list(
    request: Request,
    service: Serves,
    person: Who,
    only: Annotated[list[str] | None, Query()] = None,
    below: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> Response:
    """Show the cases that the person may see."""
    chosen = [name for name in dict.fromkeys(only or ()) if name]
    blind = service.settings.blind and not person.may("see")
    with service.database.read() as session:
        found = cases.listing(session, person, service.settings, chosen=chosen, below=below)
        lines = [
            {"listed": each, "shown": cases.sees_model(session, person, each.case, service.settings)} for each in found
        ]
        upcoming = readings.next_unread(session, person, service) if person.may("read") else None
    offered = {name: words for name, words in FILTERS.items() if _offers(name, person, blind)}
    older = found[-1].case.number if len(found) == cases.PAGE else None
    return page(
        request, "worklist.html", lines=lines, chosen=chosen, filters=offered, older=older, upcoming=upcoming,
        blind=blind, readers=service.settings.readers,
    )  # fmt: skip


def _offers(name: str, person: Person, blind: bool) -> bool:
    if name in OF_THE_MODEL:
        return not blind
    return person.may({"unread": "read", "withdrawn": "manage"}.get(name, "see"))


@router.get("/next")
def next_case(service: Serves, person: Who) -> Response:
    """Go to the next case that waits for the reader."""
    person.require("read")
    with service.database.read() as session:
        found = readings.next_unread(session, person, service)
    return RedirectResponse("/" if found is None else f"/cases/{found}", 303)


@router.get("/upload")
def upload_form(request: Request, service: Serves, person: Who) -> Response:
    """Show the form for new images."""
    person.require("upload")
    return page(
        request, "upload.html", scripts=("upload.js",), formats=FORMATS, most=service.settings.form_files,
        megabytes=service.settings.image_bytes // 2**20,
    )  # fmt: skip


@router.post("/upload")
async def upload(request: Request, service: Serves, person: Who) -> Response:
    """Take several images at once, from a browser without scripts."""
    person.require("upload")
    async with request.form(max_files=service.settings.form_files, max_fields=_MOST_FIELDS) as form:
        files = [each for each in form.getlist("images") if isinstance(each, UploadFile) and each.size]
        lesion = _lesion(form)
        if not files:
            raise RefusedError(422, "no image was chosen")
        done: list[dict[str, Any]] = []
        for number, file in enumerate(files, 1):
            data = await file.read()
            once = Once(person.id, f"{_key(form)}-{number}", "add case", data, lesion or "")
            try:
                if len(data) > service.settings.image_bytes:
                    raise RefusedError(413, f"more than {service.settings.image_bytes:,} bytes")
                added = await run_in_threadpool(cases.take_in, service, person, data, lesion, once)
            except RefusedError as error:
                done.append({"file": number, "case": None, "problem": str(error)})
            else:
                done.append({"file": number, "case": added, "problem": None})
    return page(request, "uploaded.html", done=done)


@router.get("/cases/{case_id}")
def show_case(request: Request, case_id: CaseId, service: Serves, person: Who) -> Response:
    """Show a case: to a blind reader without the model, to everyone else with the evidence."""
    with service.database.read() as session:
        case = cases.find(session, person, case_id)
        template, values = case_page.values(session, service, person, case)
    return page(request, template, **values)


@router.get("/cases/{case_id}/picture")
def picture(case_id: CaseId, service: Serves, person: Who) -> Response:
    """Return the small picture of a case."""
    with service.database.read() as session:
        case = cases.find(session, person, case_id)
    return Response(service.store.read(service.store.preview(case.image)), media_type="image/jpeg")


@router.post("/cases/{case_id}/reading")
async def read_case(request: Request, case_id: CaseId, service: Serves, person: Who) -> Response:
    """Keep a reader's answer, and show what the model says."""
    async with request.form(max_files=0, max_fields=_MOST_FIELDS) as form:
        said = _checked(ReadingIn, {**_fields(form, "label", "comment"), "confidence": _number(form, "confidence")})
        once = Once(person.id, _key(form), "read", case_id, said.model_dump_json())
    await run_in_threadpool(lambda: readings.add_reading(service, person, case_id, **said.model_dump(), once=once))
    return RedirectResponse(f"/cases/{case_id}", 303)


@router.post("/cases/{case_id}/decision")
async def decide_case(request: Request, case_id: CaseId, service: Serves, person: Who) -> Response:
    """Keep an adjudicator's label."""
    async with request.form(max_files=0, max_fields=_MOST_FIELDS) as form:
        said = _checked(DecisionIn, _fields(form, "label", "comment"))
        once = Once(person.id, _key(form), "decide", case_id, said.model_dump_json())
    await run_in_threadpool(lambda: readings.add_decision(service, person, case_id, **said.model_dump(), once=once))
    return RedirectResponse(f"/cases/{case_id}", 303)


@router.post("/cases/{case_id}/withdraw")
async def withdraw_case(request: Request, case_id: CaseId, service: Serves, person: Who) -> Response:
    """Withdraw a case, if the box that confirms it is ticked."""
    async with request.form(max_files=0, max_fields=_MOST_FIELDS) as form:
        if form.get("sure") != "yes":
            raise RefusedError(422, "tick the box to withdraw the case for good")
        once = Once(person.id, _key(form), "withdraw", case_id)
    await run_in_threadpool(cases.withdraw, service, person, case_id, once)
    return RedirectResponse("/", 303)


@router.get("/study")
def show_study(request: Request, service: Serves, person: Who) -> Response:
    """Show how the study stands."""
    person.require("study")
    with service.database.read() as session:
        figures, head = study(session, service.settings.readers), audit.head(session)
    return page(request, "study.html", study=figures, head=head, readers=service.settings.readers)


@router.get("/export")
def download(service: Serves, person: Who) -> Response:
    """Hand out the decided cases."""
    person.require("export")
    return export.response(service)


@router.get("/models")
def show_models(request: Request, service: Serves, person: Who) -> Response:
    """Show the models that are loaded."""
    person.require("manage")
    with service.database.read() as session:
        before = service.models.find(earlier(session) or "")
    return page(request, "models.html", models=service.models.all(), active=service.models.active, before=before)


@router.post("/models/promote")
async def promote(request: Request, service: Serves, person: Who) -> Response:
    """Make another model the active one."""
    async with request.form(max_files=0, max_fields=_MOST_FIELDS) as form:
        name, key = str(form.get("model", "")), _key(form)
    await run_in_threadpool(api.promote, name, service, person, key)
    return RedirectResponse("/models", 303)


@router.post("/models/rollback")
async def roll_back(request: Request, service: Serves, person: Who) -> Response:
    """Go back to the model before."""
    async with request.form(max_files=0, max_fields=_MOST_FIELDS) as form:
        key = _key(form)
    await run_in_threadpool(api.roll_back, service, person, key)
    return RedirectResponse("/models", 303)


def _fields(form: FormData, *names: str) -> dict[str, str]:
    return {name: str(form.get(name, "")) for name in names}


def _number(form: FormData, name: str) -> int | str:
    text = str(form.get(name, ""))
    return int(text) if text.isdecimal() and len(text) < 4 else text


def _key(form: FormData) -> str:
    return str(form.get("key", ""))[:150]


def _lesion(form: FormData) -> str | None:
    text = str(form.get("lesion", "")).strip()
    try:
        return TypeAdapter(Lesion).validate_python(text) if text else None
    except ValidationError as error:
        raise RefusedError(422, f"lesion: {error.errors()[0]['msg']}") from None


def _checked(kind: type[Checked], said: dict[str, Any]) -> Checked:
    try:
        return kind.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        raise RefusedError(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
