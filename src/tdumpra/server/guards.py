"""What stands before every request: limits, the right host, who asks, where from, and the headers of every answer.

Nothing of a body is read before it is known who sends it and how large it says it is.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tdumpra.server import accounts, views
from tdumpra.server.accounts import LOCAL, Person
from tdumpra.server.refusals import RefusedError
from tdumpra.server.service import Service
from tdumpra.server.settings import CALLBACK

COOKIE = "tdumpra_login"
HEALTH = frozenset({"/healthz", "/readyz"})
PUBLIC = HEALTH | {"/login", "/login/start", CALLBACK}
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FIXED = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"same-origin",  # with none, browsers would call the origin of our own forms "null"
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
    b"cache-control": b"no-store",
}
_POLICY = b"content-security-policy"
_CLOSED = b"default-src 'none'; frame-ancestors 'none'"  # the policy of whatever is no page
_LONGEST_PATH = 2048
_LONGEST_CALLBACK = 8192  # providers of logins send long codes
_MOST_BUCKETS = 10_000
_SLOW = 1.0  # seconds for the few bytes of a login, where others wait for its place
_OURS = str(Path(__file__).parents[1])

log = logging.getLogger("tdumpra.server")


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service, self._settings = app, service, service.settings
        self._hosts = service.settings.hosts
        self._rates = _Rates(service.settings.rate, service.settings.burst)
        self._open = 0  # requests under way
        self._strangers: dict[str, _Limited] = {}  # those of nobody who is known, the longest first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, began = secrets.token_hex(8), time.monotonic()
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(send, self._headers(request_id))
        self._open += 1
        try:
            incoming = _Limited(receive, self._most_bytes(scope), self._settings.body_seconds)
            response = await self._refusal(scope, incoming)
            if response is None:
                await self._attempt(scope, incoming, answer)
            else:
                await response(scope, receive, answer)
        finally:
            self._open -= 1
            self._strangers.pop(request_id, None)
            self._note(scope, request_id, answer.status, time.monotonic() - began)

    async def _attempt(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Let the application answer. What it did not foresee is logged by its place: its text may hold names."""
        try:
            await self._app(scope, receive, answer)
        except Exception as error:
            request_id = scope["state"]["request_id"]
            ours = [each for each in traceback.extract_tb(error.__traceback__) if _OURS in each.filename]
            places = " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(ours))
            log.error("%s failed with %s at %s", request_id, type(error).__name__, places)
            if not answer.began:
                failed = RefusedError(500, f"the server failed; its log names the place beside {request_id}")
                await views.problem(Request(scope), failed)(scope, receive, answer)

    async def _refusal(self, scope: Scope, incoming: _Limited) -> Response | None:
        """Return the answer to a request that goes no further; the person who asks is in the scope otherwise."""
        request = Request(scope)
        try:
            if self._open > self._settings.open_requests:
                raise RefusedError(503, "too many requests at once: try again", retry_after=1)
            self._check_shape(scope, request.headers)
            person = None
            if scope["path"] not in HEALTH:  # without logins it is one person, and no thread need look them up
                person = self._service.local or await run_in_threadpool(self._who, request.headers)
            scope["state"]["person"] = person
            self._rates.take(person.id if person else (scope.get("client") or ("",))[0])
            if person is None and scope["path"] not in PUBLIC:
                if scope["method"] == "GET" and views.wants_page(request):
                    return RedirectResponse("/login", 303)
                raise RefusedError(401, "this needs a login or a token")
            if person is None and scope["path"] not in HEALTH:
                self._admit_stranger(scope["state"]["request_id"], incoming)
            self._check_origin(scope, request.headers, person)
            self._check_length(scope, request.headers)
        except RefusedError as error:
            return views.problem(request, error)
        except (DBAPIError, NoConnectionError):  # the latter where every connection is taken
            away = RefusedError(503, "the database does not answer: try again", retry_after=5)
            return views.problem(request, away)
        return None

    def _admit_stranger(self, request_id: str, incoming: _Limited) -> None:
        """Leave most places to people who are known. A stranger who sends a login slowly makes room for the next."""
        if len(self._strangers) >= max(1, self._settings.open_requests // 4):
            slow = next((name for name, each in self._strangers.items() if each.is_slow()), None)
            if slow is None:
                raise RefusedError(503, "too many people log in at once: try again", retry_after=1)
            self._strangers.pop(slow).end()
        self._strangers[request_id] = incoming

    def _check_shape(self, scope: Scope, headers: Headers) -> None:
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if len(scope["headers"]) > self._settings.headers or size > self._settings.header_bytes:
            raise RefusedError(431, "the request has too many headers, or too large ones")
        most = _LONGEST_CALLBACK if scope["path"] == CALLBACK else _LONGEST_PATH
        if len(scope["path"]) + len(scope["query_string"]) > most:
            raise RefusedError(414, "the address is too long")
        if len(headers.getlist("host")) != 1 or headers["host"].lower() not in self._hosts:
            raise RefusedError(421, "this server does not answer under that name")

    def _who(self, headers: Headers) -> Person | None:
        kind, _, secret = headers.get("authorization", "").partition(" ")
        with self._service.database.read() as session:
            if kind.lower() == "bearer" and secret:
                return accounts.by_token(session, secret.strip())
            cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE)
            return None if cookie is None else accounts.by_cookie(session, cookie)

    def _check_origin(self, scope: Scope, headers: Headers, person: Person | None) -> None:
        """Refuse what a page of another site made a browser send."""
        if scope["method"] in SAFE or (person is not None and not person.by_cookie):
            return
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is None and site is None and person is not None and person.role == LOCAL:
            return  # a program on this machine: browsers say where a write comes from
        ours = origin is not None and self._is_ours(origin)
        if not (ours or (origin is None and site == "same-origin")):
            raise RefusedError(403, "this came from a page of another site")

    def _is_ours(self, origin: str) -> bool:
        scheme, _, host = origin.lower().partition("://")
        return scheme == urlsplit(self._settings.address).scheme and host in self._hosts

    def _check_length(self, scope: Scope, headers: Headers) -> None:
        said = headers.get("content-length")
        if said is None:
            return
        most = self._most_bytes(scope)
        if not said.isdecimal() or int(said) > most:
            raise RefusedError(413, f"the request has more than the {most:,} bytes that are taken")

    def _most_bytes(self, scope: Scope) -> int:
        settings = self._settings
        if scope["method"] == "POST" and scope["path"] in ("/v1/predict", "/v1/cases"):
            return settings.image_bytes
        if scope["method"] == "POST" and scope["path"] == "/upload":
            return settings.form_bytes
        return settings.text_bytes

    def _headers(self, request_id: str) -> dict[bytes, bytes]:
        row = self._service.models.active.row
        headers = _FIXED | {
            b"x-request-id": request_id.encode(), b"x-model": row.id.encode(), b"x-bank": row.bank.encode(),
            b"x-settings": row.settings.encode(),
        }  # fmt: skip
        if self._settings.is_secure:
            headers[b"strict-transport-security"] = b"max-age=31536000"
        return headers

    def _note(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        """Log and count a request by its route: addresses may hold ids and names, so they are not written."""
        route: Any = scope.get("route")
        path = getattr(route, "path", "other")
        self._service.metrics.request(scope["method"] if path != "other" else "other", path, status, seconds)
        log.info("%s %s %s %d %.0f ms", request_id, scope["method"][:10], path, status, 1000 * seconds)


class _Answer:
    """Adds headers to an answer on its way out."""

    def __init__(self, send: Send, headers: dict[bytes, bytes]) -> None:
        self._send, self._headers, self.status, self.began = send, headers, 500, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.began = message["status"], True
            kept = [each for each in message.get("headers", ()) if each[0].lower() not in self._headers]
            message["headers"] = [*kept, *self._headers.items()]
            if not any(name.lower() == _POLICY for name, _ in kept):
                message["headers"].append((_POLICY, _CLOSED))
        await self._send(message)


class _Limited:
    """Hands on a body up to a size, and for a time."""

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self._receive, self._left, self._most = receive, most, most
        self._began = asyncio.get_running_loop().time()
        self._until = self._began + seconds
        self._timeout: asyncio.Timeout | None = None  # while a piece is waited for
        self._done = False

    async def __call__(self) -> Message:
        if self._done:  # only the end of the connection can come
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until) as self._timeout:  # without a task of its own for each piece
                message = await self._receive()
        except TimeoutError:
            raise RefusedError(408, "the request took too long to arrive") from None
        finally:
            self._timeout = None
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            self._done = not message.get("more_body", False)
            if self._left < 0:
                raise RefusedError(413, f"the request has more than the {self._most:,} bytes that are taken")
        return message

    def is_slow(self) -> bool:
        """Return whether the body should have been here by now: a form comes with its headers."""
        return self._timeout is not None and asyncio.get_running_loop().time() - self._began > _SLOW

    def end(self) -> None:
        """Wait no longer."""
        self._until = asyncio.get_running_loop().time()
        if self._timeout is not None:
            self._timeout.reschedule(self._until)


class _Rates:
    """A bucket of requests for each account or address, which fills again at a steady rate."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst, self._lock = rate, burst, threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, who: str) -> None:
        """Take one request, or raise ``RefusedError`` if there is none left."""
        now = time.monotonic()
        with self._lock:
            if len(self._buckets) > _MOST_BUCKETS:
                self._buckets.clear()
            left, at = self._buckets.get(who, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._rate)
            if left < 1:
                raise RefusedError(429, "too many requests: slow down", retry_after=max(1, round(1 / self._rate)))
            self._buckets[who] = (left - 1, now)
