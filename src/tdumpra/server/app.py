"""The application: routes, guards, and what becomes of errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionError
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.responses import Response

from tdumpra import __version__
from tdumpra.errors import ArtifactError
from tdumpra.screen import printable
from tdumpra.server import api, login_pages, pages, views
from tdumpra.server.database import is_full
from tdumpra.server.guards import Guard, log
from tdumpra.server.refusals import RefusedError, disk_full
from tdumpra.server.schemas import Health
from tdumpra.server.service import Service

_WORDS = {404: "there is nothing at this address", 405: "this address does not take that method"}


def make_app(service: Service) -> FastAPI:
    """Return the application for a server's parts; it closes them at its end."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = _routes(lifespan=life)
    app.state.service = service
    service.metrics.watch(lambda: service.inference.under_way)
    app.add_middleware(Guard, service=service)
    return app


def openapi() -> dict[str, Any]:
    """Return the description of the API."""
    return _routes().openapi()


def _routes(**options: Any) -> FastAPI:
    app = FastAPI(
        title="tdumpra",
        version=__version__,
        description="A classifier, a bank of prototypes, a gate between them, and people who read the cases.",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        **options,
    )
    app.include_router(api.router)
    app.include_router(pages.router)
    app.include_router(login_pages.router)
    _add_health(app)
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return app


def _add_health(app: FastAPI) -> None:
    @app.get("/healthz")
    def healthz() -> Health:
        """Say that the server is alive."""
        return Health(status="ok", problems=[])

    @app.get("/readyz", responses={503: {"model": Health}})
    def readyz(request: Request) -> Response:
        """Say whether the server can answer: the database is there, the disk has room, the models are intact."""
        service: Service = request.app.state.service
        problems = service.problems()
        health = Health(status="not ready" if problems else "ok", problems=problems)
        return JSONResponse(health.model_dump(), 503 if problems else 200)


def _refused(request: Request, error: Any) -> Response:
    if error.status == 422:
        request.app.state.service.metrics.refused()
    return views.problem(request, error)


def _invalid(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    where = printable(".".join(str(part) for part in first["loc"][1:])) or "the body"  # names that a stranger gave
    return views.problem(request, RefusedError(422, f"{where}: {first['msg']}"))


def _http(request: Request, error: Any) -> Response:
    return views.problem(request, RefusedError(error.status_code, _WORDS.get(error.status_code, str(error.detail))))


def _form(request: Request, error: Any) -> Response:
    return views.problem(request, RefusedError(400, f"the form cannot be read: {error.message}"))


def _database(request: Request, error: Any) -> Response:
    if is_full(error):
        return views.problem(request, disk_full())
    log.error("%s the database failed: %s", request.state.request_id, type(getattr(error, "orig", error)).__name__)
    away = RefusedError(503, "the database does not answer: nothing was stored, try again", retry_after=5)
    return views.problem(request, away)


def _file(request: Request, error: Any) -> Response:
    if is_full(error):
        return views.problem(request, disk_full())
    raise error


_HANDLERS: dict[Any, Any] = {
    RefusedError: _refused,
    RequestValidationError: _invalid,
    HTTPException: _http,
    MultiPartException: _form,
    DBAPIError: _database,
    NoConnectionError: _database,  # every one is taken
    ArtifactError: _file,
    OSError: _file,
}
