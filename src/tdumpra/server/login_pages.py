"""The ways in and out: a name and a password, or a provider of logins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from tdumpra.server import accounts
from tdumpra.server.api import Serves
from tdumpra.server.guards import COOKIE
from tdumpra.server.refusals import RefusedError, not_found
from tdumpra.server.service import Service
from tdumpra.server.settings import CALLBACK
from tdumpra.server.views import page

if TYPE_CHECKING:
    from tdumpra.server.oidc import Provider

STARTED = "tdumpra_started"  # the cookie of a login that was begun at a provider
_MOST_FIELDS = 20

router = APIRouter(include_in_schema=False)


@router.get("/login")
def login_form(request: Request, service: Serves) -> Response:
    """Ask for name and password, and offer the provider."""
    if service.local is not None:
        return RedirectResponse("/", 303)
    return _form(request, service)


@router.post("/login")
async def log_in(request: Request, service: Serves) -> Response:
    """Let somebody in who knows the password."""
    async with request.form(max_files=0, max_fields=_MOST_FIELDS) as form:
        name, password = str(form.get("name", ""))[:80], str(form.get("password", ""))
    secret = await run_in_threadpool(_log_in, service, name, password)
    if secret is None:
        refused = _form(request, service, status=401, problem="Name and password do not go together.")
        refused.background = BackgroundTask(accounts.note_wrong_password, service.database, name)
        return refused
    response = RedirectResponse("/", 303)
    _keep(response, service, secret)
    return response


@router.get("/login/start")
def start(service: Serves) -> Response:
    """Send a browser to the provider, with a cookie to come back with."""
    begun = _provider(service).start()
    response = RedirectResponse(begun.address, 303)
    response.set_cookie(
        STARTED, begun.cookie, max_age=600, path=CALLBACK, httponly=True, secure=service.settings.is_secure,
        samesite="lax",  # the way back begins at another site
    )  # fmt: skip
    return response


@router.get(CALLBACK)
def come_back(request: Request, service: Serves) -> Response:
    """Let somebody in whom the provider vouches for, if an account was linked to them."""
    provider = _provider(service)
    subject = provider.finish(request.cookies.get(STARTED, ""), dict(request.query_params))
    with service.database.write() as session:
        secret = accounts.log_in_known(session, provider.issuer, subject, hours=service.settings.session_hours)
    if secret is None:
        said = f"no account here is yours: ask whoever runs this server to link one to {subject!r} of {provider.name}"
        raise RefusedError(403, said)
    # A page and no redirect: after one from another site, browsers keep a strict cookie back.
    response = page(request, "welcome.html")
    _keep(response, service, secret)
    response.delete_cookie(STARTED, path=CALLBACK)
    return response


@router.post("/logout")
def log_out(request: Request, service: Serves) -> Response:
    """End a login."""
    with service.database.write() as session:
        accounts.log_out(session, request.cookies.get(COOKIE, ""))
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE)
    return response


def _form(request: Request, service: Service, *, status: int = 200, problem: str | None = None) -> Response:
    provider = None if service.oidc is None else service.oidc.name
    return page(request, "login.html", status=status, problem=problem, provider=provider)


def _log_in(service: Service, name: str, password: str) -> str | None:
    with service.attempts.one(name) as forgive:
        secret = accounts.log_in(service.database, name, password, hours=service.settings.session_hours)
        if secret is not None:
            forgive()
    return secret


def _keep(response: Response, service: Service, secret: str) -> None:
    response.set_cookie(
        COOKIE, secret, max_age=round(3600 * service.settings.session_hours), httponly=True, samesite="strict",
        secure=service.settings.is_secure,
    )  # fmt: skip


def _provider(service: Service) -> Provider:
    if service.oidc is None:
        raise not_found("address")
    return service.oidc
