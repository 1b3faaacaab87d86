"""Logins at a provider by OpenID Connect: the authorization code flow with PKCE.

The provider says who somebody is, and nothing else: what an account may do was said by whoever made it, and a person
whom no account was linked to is turned away. What a login must come back with (state, nonce, verifier) lies in a signed
cookie of the browser that began it, for a few minutes and for one use.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from tdumpra.limits import MIB
from tdumpra.server.accounts import LONGEST_SUBJECT
from tdumpra.server.refusals import RefusedError
from tdumpra.server.settings import OidcSettings, is_guarded

ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")  # of signatures with a private key that only the provider has
LIFETIME = 600  # seconds from the first page of the provider to the way back
_LEEWAY = 60  # seconds that two clocks may differ
_PATIENCE = 10  # seconds for an answer of the provider
_AT_ONCE = 4  # conversations with the provider: one that hangs must not hold every thread of the server
_MOST_BYTES = MIB
_REMEMBERED = 3600  # seconds for which the provider's addresses are not asked for again
_MOST_USED = 10_000


class Started(NamedTuple):
    """A login that was begun: where the browser goes, and the cookie with which it comes back."""

    address: str
    cookie: str


class Provider:
    """The provider of logins, asked when somebody logs in."""

    def __init__(self, settings: OidcSettings, redirect: str) -> None:
        self._settings, self._redirect = settings, redirect
        self._key = hashlib.sha256(b"tdumpra login\0" + settings.secret.encode()).digest()
        self._opener = build_opener(_NoRedirects)
        self._places, self._lock = threading.Semaphore(_AT_ONCE), threading.Lock()
        self._metadata: tuple[float, dict[str, Any]] | None = None
        self._used: dict[str, float] = {}  # states that came back, until they run out

    @property
    def issuer(self) -> str:
        """The provider's own name for itself, an address."""
        return self._settings.issuer

    @property
    def name(self) -> str:
        """What people are told: the provider's host."""
        return urlsplit(self._settings.issuer).hostname or self._settings.issuer

    def start(self) -> Started:
        """Begin a login."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        address = prepare_grant_uri(
            self._known()["authorization_endpoint"], self._settings.client_id, "code", redirect_uri=self._redirect,
            scope="openid", state=state, nonce=nonce, code_challenge=create_s256_code_challenge(verifier),
            code_challenge_method="S256",
        )  # fmt: skip
        return Started(address, self._sign([state, nonce, verifier, round(time.time()) + LIFETIME]))

    def finish(self, cookie: str, query: dict[str, str]) -> str:
        """Return the subject who comes back from the provider, or raise ``RefusedError``."""
        state, nonce, verifier = self._opened(cookie)
        if not hmac.compare_digest(query.get("state", "").encode(), state.encode()):
            raise RefusedError(403, "this login was not begun in this browser: log in again")
        self._use(state)
        if query.get("iss", self.issuer) != self.issuer:
            raise RefusedError(403, "this login comes from another provider")
        if "error" in query:
            raise RefusedError(403, f"{self.name} let nobody in ({_word(query['error'])}): log in again")
        if not query.get("code"):
            raise RefusedError(400, f"{self.name} sent nothing to log in with")
        return self._subject(self._token(query["code"], verifier), nonce)

    def _token(self, code: str, verifier: str) -> str:
        """Exchange the code for an ID token."""
        known, settings = self._known(), self._settings
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": self._redirect, "code_verifier": verifier,
        }  # fmt: skip
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        ways = known.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if "client_secret_basic" in ways:
            pair = f"{quote(settings.client_id, safe='')}:{quote(settings.secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": settings.client_id, "client_secret": settings.secret}
        answer = self._ask(Request(known["token_endpoint"], urlencode(form).encode(), headers), "code")
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise self._broken("an answer without an ID token")
        return token

    def _subject(self, token: str, nonce: str) -> str:
        """Check an ID token, and return whom it names."""
        keys = self._ask(Request(self._known()["jwks_uri"]), "keys")
        ours = {"iss": self.issuer, "aud": self._settings.client_id}
        options = {name: {"essential": True, "value": value} for name, value in ours.items()}
        try:
            found = jwt.decode(token, KeySet.import_key_set(keys), algorithms=[*ALGORITHMS])  # type: ignore[arg-type]
            claims = CodeIDToken(
                found.claims, found.header, options, {"nonce": nonce, "client_id": self._settings.client_id}
            )
            claims.validate(leeway=_LEEWAY)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RefusedError(403, f"the login is not taken: its token is not for it ({_reason(error)})") from None
        subject = claims["sub"]
        if not isinstance(subject, str) or not 1 <= len(subject) <= LONGEST_SUBJECT:
            raise RefusedError(403, "the login is not taken: its token names nobody")
        return subject

    def _known(self) -> dict[str, Any]:
        """Return the provider's addresses, as it publishes them."""
        kept = self._metadata
        if kept is not None and time.monotonic() < kept[0]:
            return kept[1]
        found = self._ask(Request(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"), "addresses")
        if found.get("issuer") != self.issuer:
            raise self._broken("another issuer than the one that the server was started with")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not isinstance(found.get(name), str) or not is_guarded(found[name]):
                raise self._broken(f"no {name} that begins with https://")
        if not isinstance(found.get("token_endpoint_auth_methods_supported", []), list):
            raise self._broken("a list that is none")
        self._metadata = (time.monotonic() + _REMEMBERED, found)
        return found

    def _ask(self, request: Request, what: str) -> dict[str, Any]:
        """Return the JSON object that the provider answers."""
        if not self._places.acquire(blocking=False):
            raise RefusedError(503, f"{self.name} is slow, and others wait for it: try again", retry_after=2)
        try:
            with self._opener.open(request, timeout=_PATIENCE) as answer:
                data = answer.read(_MOST_BYTES + 1)
        except HTTPError as error:
            error.close()
            if what == "code" and error.code in (400, 401):
                raise RefusedError(403, f"{self.name} does not take this login: log in again") from None
            raise self._away() from None
        except (OSError, HTTPException):
            raise self._away() from None
        finally:
            self._places.release()
        try:
            found = json.loads(data) if len(data) <= _MOST_BYTES else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._broken(f"no {what} that can be read")
        return found

    def _away(self) -> RefusedError:
        return RefusedError(503, f"{self.name}, where people log in, does not answer: try again", retry_after=30)

    def _broken(self, what: str) -> RefusedError:
        return RefusedError(502, f"{self.name}, where people log in, sent {what}")

    def _use(self, state: str) -> None:
        """Take a state that comes back, or raise if it did before."""
        now = time.time()
        with self._lock:
            self._used = {each: until for each, until in self._used.items() if until > now}
            if len(self._used) >= _MOST_USED:  # the provider takes a code once, too
                self._used.pop(next(iter(self._used)))
            if state in self._used:
                raise RefusedError(403, "this login was used before: log in again")
            self._used[state] = now + LIFETIME

    def _sign(self, values: list[Any]) -> str:
        text = base64.urlsafe_b64encode(json.dumps(values).encode()).decode()
        return f"{text}.{self._mac(text)}"

    def _opened(self, cookie: str) -> tuple[str, str, str]:
        """Return the state, nonce and verifier of a cookie that we signed a moment ago."""
        text, _, mac = cookie.partition(".")
        if not hmac.compare_digest(self._mac(text).encode(), mac.encode("utf-8", "replace")):
            raise RefusedError(403, "this login was not begun in this browser: log in again")
        state, nonce, verifier, until = json.loads(base64.urlsafe_b64decode(text))
        if time.time() > until:
            raise RefusedError(403, "this login took too long: log in again")
        return state, nonce, verifier

    def _mac(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


class _NoRedirects(HTTPRedirectHandler):
    """A provider that sends us elsewhere would get our secret sent there."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none."""
        return


def _word(text: str) -> str:
    return text if len(text) <= 40 and text.replace("_", "").isalnum() and text.isascii() else "no reason"


def _reason(error: Exception) -> str:
    claim = getattr(error, "claim", None)
    return str(claim) if isinstance(claim, str) else str(getattr(error, "error", "") or "no token")
