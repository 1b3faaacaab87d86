"""A small provider of logins on this machine: it publishes its keys, and exchanges codes for ID tokens."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "tdumpra:reader", "a secret/with+signs"
TIMES = ("exp", "iat", "nbf", "auth_time")


class OidcProvider:
    """A provider; what it says can be changed, as an attacker or a broken one would."""

    def __init__(self, *, host: str = "127.0.0.1") -> None:
        self.key = RSAKey.generate_key(2048, parameters={"kid": "k1"})
        self.header = {"alg": "RS256", "kid": "k1"}
        self.reset()
        self._codes: dict[str, dict[str, str]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.issuer = f"http://{host}:{self._server.server_port}"

    def reset(self) -> None:
        """Be an honest provider again."""
        self.claims: dict[str, Any] = {}  # that replace the usual ones; times are seconds from now, None removes
        self.make: Callable[[dict[str, Any]], str] | None = None  # the token, in another way
        self.metadata: dict[str, Any] = {}
        self.subject = "person-1"
        self.asked: list[str] = []  # paths

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def authorize(self, address: str) -> dict[str, str]:
        """Let the person in who was sent to an address; return what their browser brings back."""
        query = dict(parse_qsl(urlsplit(address).query))
        assert address.startswith(f"{self.issuer}/authorize?")
        assert (query["response_type"], query["client_id"]) == ("code", CLIENT)
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        return {"code": code, "state": query["state"]}

    def answer(self, path: str, headers: Any, body: bytes) -> tuple[int, Any, dict[str, str]]:
        self.asked.append(path)
        where = urlsplit(path)
        if where.path == "/.well-known/openid-configuration":
            places = {name: f"{self.issuer}/{path}" for name, path in PLACES.items()}
            return 200, {"issuer": self.issuer, **places, **self.metadata}, {}
        if where.path == "/keys":
            return 200, {"keys": [self.key.as_dict(private=False)]}, {}
        if where.path == "/authorize":  # for a browser: there is only one person here
            back = self.authorize(f"{self.issuer}{path}")
            target = self._codes[back["code"]]["redirect_uri"]
            return 302, {}, {"Location": f"{target}?code={back['code']}&state={back['state']}"}
        return self._exchange({name: values[0] for name, values in parse_qs(body.decode()).items()}, headers)

    def _exchange(self, form: dict[str, str], headers: Any) -> tuple[int, Any, dict[str, str]]:
        pair = base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode().split(":")
        asked = self._codes.pop(form.get("code", ""), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        known = asked is not None and asked["redirect_uri"] == form["redirect_uri"]
        if not known or asked is None or [unquote(each) for each in pair] != [CLIENT, SECRET]:
            return 400, {"error": "invalid_grant"}, {}
        if asked["code_challenge"] != challenge.decode():
            return 400, {"error": "invalid_grant"}, {}
        return 200, {"access_token": "x", "token_type": "Bearer", "id_token": self.token(asked["nonce"])}, {}

    def token(self, nonce: str) -> str:
        claims = {"iss": self.issuer, "sub": self.subject, "aud": CLIENT, "nonce": nonce, "exp": 300, "iat": 0}
        claims |= self.claims
        now = int(time.time())
        said = {name: now + each if name in TIMES and isinstance(each, int) else each for name, each in claims.items()}
        said = {name: each for name, each in said.items() if each is not None}
        return self.make(said) if self.make is not None else jwt.encode(self.header, said, self.key)


PLACES = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}


def _handler(provider: OidcProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(b"")

        def do_POST(self) -> None:
            self._reply(self.rfile.read(int(self.headers["Content-Length"])))

        def _reply(self, body: bytes) -> None:
            status, content, headers = provider.answer(self.path, self.headers, body)
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    return Handler


@contextmanager
def oidc_provider(**options: Any) -> Iterator[OidcProvider]:
    """A provider that answers, and ends with the block."""
    provider = OidcProvider(**options)
    thread = threading.Thread(target=provider.serve, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.close()
        thread.join()
