"""Answers for people and for programs: pages from templates, errors as a page or as JSON."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from tdumpra.report import kit
from tdumpra.server.refusals import RefusedError

TEMPLATES = Path(__file__).parent / "templates"

# Scripts by their hash alone: no text that somebody typed can become one.
POLICY = (
    "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; script-src {scripts}; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

_TITLES = {
    401: "Please log in",
    403: "Not allowed",
    404: "Not found",
    409: "Not possible now",
    413: "Too large",
    429: "Too many requests",
    503: "Not now",
    507: "No room",
}


def page(
    request: Request, template: str, *, status: int = 200, scripts: tuple[str, ...] = (), **values: Any
) -> HTMLResponse:
    """Return a page with its content security policy."""
    html, policy = kit.render_served(
        template,
        folder=TEMPLATES,
        policy=POLICY,
        scripts=scripts,
        person=getattr(request.state, "person", None),
        here=request.url.path,
        key=secrets.token_hex(16),  # of the page's form: sent twice, it counts once
        **values,
    )
    return HTMLResponse(html, status, headers={"Content-Security-Policy": policy})


def problem(request: Request, error: RefusedError) -> Response:
    """Return an error as a page to a browser that looks at pages, as JSON to everything else."""
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    response: Response
    if wants_page(request):
        title = _TITLES.get(error.status, "This did not work")
        response = page(request, "error.html", status=error.status, title=title, sentence=kit.sentence(str(error)))
    else:
        body = {"detail": str(error), "request_id": request.state.request_id}
        response = JSONResponse(body, error.status)
    response.headers.update(headers)
    return response


def wants_page(request: Request) -> bool:
    """Return whether a person looks at the answer."""
    path = request.url.path
    return not path.startswith(("/v1/", "/healthz", "/readyz", "/openapi")) and "text/html" in request.headers.get(
        "accept", ""
    )
