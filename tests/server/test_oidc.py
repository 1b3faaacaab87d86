"""Logins at a provider: who is let in, and every way of getting in that must not work."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey
from oidc_provider import CLIENT, SECRET, OidcProvider, oidc_provider
from server_world import ADDRESS, World, open_world
from starlette.testclient import TestClient

from tdumpra.server import accounts, audit
from tdumpra.server.oidc import LIFETIME
from tdumpra.server.settings import OidcSettings


@pytest.fixture(scope="module")
def running() -> Iterator[OidcProvider]:
    with oidc_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def world(running, tmp_path_factory, model_files) -> Iterator[World]:
    """A server where rita logs in at the provider."""
    made = open_world(tmp_path_factory.mktemp("oidc") / "s", [model_files[0]], oidc=settings_of(running))
    link(made, "rita", running.issuer, "person-1")
    yield made
    made.service.close()


@pytest.fixture
def provider(running, world) -> OidcProvider:
    """The provider as it is, with nothing that an earlier test changed, and unknown to the server."""
    running.reset()
    world.service.oidc._metadata = None
    return running  # type: ignore[no-any-return]


def settings_of(provider: OidcProvider) -> OidcSettings:
    return OidcSettings(issuer=provider.issuer, client_id=CLIENT, secret=SECRET)


def link(world: World, name: str, issuer: str, subject: str) -> None:
    with world.service.database.write() as session:
        accounts.link(session, name, issuer, subject)


def browser(world: World) -> TestClient:
    client = world.client()
    client.headers |= {"Origin": ADDRESS, "Accept": "text/html"}
    return client


def begin(client: TestClient) -> str:
    answer = client.get("/login/start")
    assert answer.status_code == 303
    return str(answer.headers["location"])


def come_back(client: TestClient, query: dict[str, str]) -> Any:
    return client.get("/login/callback", params=query)


def is_in(client: TestClient) -> bool:
    return bool(client.get("/").status_code == 200)


def refused(client: TestClient, answer: Any, status: int = 403) -> None:
    """A page with one sentence, and nobody is logged in."""
    assert answer.status_code == status, answer.text
    assert "<h1>" in answer.text
    assert 'role="alert"' in answer.text
    assert not is_in(client)


def test_a_person_who_was_linked_gets_in_and_out(world, provider):
    client = browser(world)
    assert "127.0.0.1" in client.get("/login").text
    answer = come_back(client, provider.authorize(begin(client)))
    assert answer.status_code == 200
    assert 'content="0;url=/"' in answer.text  # a redirect would lose the strict cookie
    cookie = next(each for each in answer.headers.get_list("set-cookie") if each.startswith("tdumpra_login"))
    assert "samesite=strict" in cookie.lower()
    assert "httponly" in cookie.lower()
    assert "Log out rita" in client.get("/").text
    assert client.post("/logout").status_code == 303
    assert not is_in(client)


def test_what_is_asked_of_the_provider_is_bound_to_this_login(world, provider):
    client = browser(world)
    first, second = (dict(parse_qsl(urlsplit(begin(client)).query)) for _ in range(2))
    assert first["redirect_uri"] == f"{ADDRESS}/login/callback"
    assert first["scope"] == "openid"
    for name in ("state", "nonce", "code_challenge"):
        assert len(first[name]) >= 43
        assert first[name] != second[name]


def test_nobody_gets_in_or_gets_a_role_by_logging_in(world, provider):
    provider.subject, provider.claims = "person-2", {"role": "admin", "groups": ["admin"]}
    client = browser(world)
    answer = come_back(client, provider.authorize(begin(client)))
    refused(client, answer)
    assert "person-2" in answer.text  # what the administrator needs to know
    provider.subject = "person-1"
    come_back(client, provider.authorize(begin(client)))
    assert client.get("/models").status_code == 403


def test_the_same_subject_of_another_issuer_is_somebody_else(world, provider):
    provider.subject = "person-3"
    link(world, "ada", "https://other.example.org", "person-3")
    client = browser(world)
    refused(client, come_back(client, provider.authorize(begin(client))))


def test_an_account_that_was_shut_out_stays_out_and_its_logins_end(world, provider):
    link(world, "rolf", provider.issuer, "person-4")
    provider.subject = "person-4"
    client = browser(world)
    come_back(client, provider.authorize(begin(client)))
    assert is_in(client)
    with world.service.database.write() as session:
        accounts.disable(session, "rolf")
    assert not is_in(client)
    refused(client, come_back(client, provider.authorize(begin(client))))
    with world.service.database.read() as session:
        assert audit.verify(session).faults == []


@pytest.mark.parametrize(
    ("claims", "let_in"),
    [
        ({}, True),
        ({"aud": [CLIENT]}, True),
        ({"aud": "another server"}, False),
        ({"aud": ["another server"]}, False),
        ({"aud": [CLIENT, "another server"]}, False),  # nobody says for whom it was made
        ({"aud": [CLIENT, "another server"], "azp": CLIENT}, True),
        ({"azp": "another server"}, False),
        ({"aud": None}, False),
        ({"iss": "https://evil.example.org"}, False),
        ({"iss": None}, False),
        ({"exp": -3600}, False),
        ({"exp": None}, False),
        ({"exp": "soon"}, False),
        ({"iat": 3600}, False),
        ({"iat": None}, False),
        ({"nbf": 3600}, False),
        ({"nonce": "of another login"}, False),
        ({"nonce": None}, False),
        ({"sub": None}, False),
        ({"sub": ""}, False),
        ({"sub": 7}, False),
        ({"sub": ["person-1"]}, False),
        ({"sub": "x" * 300}, False),
    ],
)
def test_claims(world, provider, claims, let_in):
    provider.claims = claims
    client = browser(world)
    answer = come_back(client, provider.authorize(begin(client)))
    if let_in:
        assert is_in(client)
    else:
        refused(client, answer)


def encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def with_a_shared_key(claims: dict[str, Any], key: bytes, **header: str) -> str:
    text = f"{encoded({'alg': 'HS256', **header})}.{encoded(claims)}"
    mark = hmac.new(key, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(mark).rstrip(b'=').decode()}"


def unsigned(_: OidcProvider, claims: dict[str, Any]) -> str:
    return f"{encoded({'alg': 'none'})}.{encoded(claims)}."


def signed_with_the_public_key(provider: OidcProvider, claims: dict[str, Any]) -> str:
    return with_a_shared_key(claims, provider.key.as_pem(private=False), kid="k1")


def signed_with_the_clients_secret(_: OidcProvider, claims: dict[str, Any]) -> str:
    return with_a_shared_key(claims, SECRET.encode())


def signed_by_somebody_else(_: OidcProvider, claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "RS256", "kid": "k1"}, claims, RSAKey.generate_key(2048))


def brings_its_own_key(_: OidcProvider, claims: dict[str, Any]) -> str:
    key = RSAKey.generate_key(2048)
    return jwt.encode({"alg": "RS256", "jwk": key.as_dict(private=False)}, claims, key)


def changed_afterwards(provider: OidcProvider, claims: dict[str, Any]) -> str:
    head, _, mark = jwt.encode(provider.header, {**claims, "sub": "person-2"}, provider.key).split(".")
    return f"{head}.{encoded(claims)}.{mark}"


def no_token(_: OidcProvider, __: dict[str, Any]) -> str:
    return "a.b"


@pytest.mark.parametrize(
    "forge",
    [
        unsigned, signed_with_the_public_key, signed_with_the_clients_secret, signed_by_somebody_else,
        brings_its_own_key, changed_afterwards, no_token,
    ],
)  # fmt: skip
def test_forged_tokens(world, provider, forge):
    provider.make = lambda claims: forge(provider, claims)
    client = browser(world)
    refused(client, come_back(client, provider.authorize(begin(client))))


def test_a_login_comes_back_to_the_browser_that_began_it_once(world, provider):
    mine, other = browser(world), browser(world)
    query = provider.authorize(begin(mine))
    begin(other)
    refused(other, come_back(other, query))  # somebody is handed the attacker's login
    kept = {each.name: each.value for each in mine.cookies.jar}
    assert come_back(mine, query).status_code == 200
    mine.post("/logout")
    fresh = provider.authorize(begin(browser(world)))
    for name, value in kept.items():
        mine.cookies.set(name, str(value), path="/login/callback")
    refused(mine, come_back(mine, {**query, "code": fresh["code"]}))  # the cookie and the state of before


@pytest.mark.parametrize("change", [{"state": ""}, {"state": "ü"}, {"code": ""}, {"iss": "https://evil.example.org"}])
def test_queries_that_do_not_fit(world, provider, change):
    client = browser(world)
    answer = come_back(client, {**provider.authorize(begin(client)), **change})
    refused(client, answer, 400 if "code" in change else 403)
    assert "/token" not in provider.asked


def test_a_cookie_that_was_changed_or_is_old_is_not_taken(world, provider, monkeypatch):
    client = browser(world)
    query = provider.authorize(begin(client))
    (cookie,) = client.cookies.jar
    real = str(cookie.value)
    for value in ("", "x", real.replace(".", "A."), f"{real[:-1]}{'0' if real[-1] != '0' else '1'}"):
        client.cookies.clear()
        client.cookies.set("tdumpra_started", value, path="/login/callback")
        refused(client, come_back(client, query))
    client.cookies.set("tdumpra_started", real, path="/login/callback")
    later = time.time() + LIFETIME + 1
    monkeypatch.setattr("tdumpra.server.oidc.time.time", lambda: later)
    refused(client, come_back(client, query))


def test_nobody_is_sent_elsewhere(world, provider):
    client = browser(world)
    elsewhere = dict.fromkeys(("next", "redirect_uri", "return_to", "url"), "https://evil.example.org")
    answer = client.get("/login/start", params=elsewhere)
    assert "evil" not in answer.headers["location"]
    answer = come_back(client, {**provider.authorize(answer.headers["location"]), **elsewhere})
    assert answer.status_code == 200
    assert "evil" not in answer.text + str(answer.headers)


def test_a_code_of_somebody_elses_login_is_worth_nothing(world, provider):
    """Without the verifier, which never left the victim's browser, the provider gives no token for it."""
    victim, attacker = browser(world), browser(world)
    code = provider.authorize(begin(victim))["code"]
    own = provider.authorize(begin(attacker))
    refused(attacker, come_back(attacker, {**own, "code": code}))


def test_what_the_provider_complains_about_is_told_without_its_markup(world, provider):
    client = browser(world)
    state = provider.authorize(begin(client))["state"]
    answer = come_back(client, {"state": state, "error": "access_denied"})
    refused(client, answer)
    assert "access_denied" in answer.text
    state = provider.authorize(begin(client))["state"]
    assert "<script>x" not in come_back(client, {"state": state, "error": "<script>x"}).text


def test_a_provider_that_is_away_is_told_and_passwords_go_on(make_world):
    with oidc_provider() as gone:
        settings = settings_of(gone)
    client = browser(make_world(oidc=settings))
    answer = client.get("/login/start")
    refused(client, answer, 503)
    assert answer.headers["retry-after"] == "30"
    assert client.post("/login", data={"name": "ada", "password": "correct horse battery"}).status_code == 303


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example.org"},
        {"authorization_endpoint": "http://evil.example.org/"},  # anyone on the way could listen
        {"token_endpoint": "file:///etc/passwd"},
        {"jwks_uri": None},
        {"token_endpoint_auth_methods_supported": 7},
    ],
)
def test_a_provider_that_says_odd_things_is_not_followed(world, provider, metadata):
    provider.metadata = metadata
    client = browser(world)
    refused(client, client.get("/login/start"), 502)


def test_without_a_provider_there_is_no_such_way_in(make_world):
    client = browser(make_world())
    assert client.get("/login/start").status_code == 404
    assert client.get("/login/callback").status_code == 404
    assert "/login/start" not in client.get("/login").text


@pytest.mark.parametrize("issuer", ["http://login.example.org", "ftp://x", "login.example.org", "https://x/?a=b", ""])
def test_issuers_that_are_no_safe_address(issuer):
    with pytest.raises(ValueError, match="issuer"):
        OidcSettings(issuer=issuer, client_id="x", secret="y")


def test_the_secret_is_in_no_text_of_the_settings():
    assert "hush" not in repr(OidcSettings(issuer="https://x", client_id="x", secret="hush"))


def test_links_by_the_command_line(tdumpra, tmp_path, monkeypatch):
    monkeypatch.setenv("TDUMPRA_PASSWORD", "a long enough password")

    def account(*words: str) -> Any:
        return tdumpra("account", *words, "--folder", tmp_path / "s")

    issuer = ("--issuer", "https://login.example.org")
    for name, role in (("rita", "reader"), ("rolf", "reader"), ("sam", "service")):
        assert account("add", name, "--role", role, *(["--no-password"] if name == "rita" else [])).code == 0
    assert account("link", "rita", "s-1", *issuer).code == 0
    assert account("link", "rita", "s-1", *issuer).code == 0  # again is the same
    assert account("link", "rolf", "s-1", *issuer).code == 2
    assert account("link", "sam", "s-2", *issuer).code == 2
    assert account("link", "nobody", "s-2", *issuer).code == 2
    assert account("link", "rolf", "s-2", "--issuer", "ftp://login.example.org").code == 2
    assert account("unlink", "rita").code == 0
    assert account("link", "rolf", "s-1", *issuer).code == 0


def test_only_what_is_missing_of_a_provider_is_named(tdumpra, monkeypatch):
    monkeypatch.delenv("TDUMPRA_OIDC_SECRET", raising=False)
    told = tdumpra("serve", "no-model", "--oidc-client", "x").err
    assert "--oidc-issuer" in told
    assert "--oidc-secret-file" in told
    assert "--oidc-client" not in told


@pytest.mark.parametrize(
    "words",
    [
        ("--oidc-issuer", "https://login.example.org"),
        ("--oidc-issuer", "https://login.example.org", "--oidc-client", "x"),
        ("--oidc-issuer", "https://login.example.org", "--oidc-client", "x", "--oidc-secret-file", "missing"),
        ("--oidc-issuer", "http://login.example.org", "--oidc-client", "x", "--oidc-secret-file", "secret"),
    ],
)
def test_half_of_a_provider_is_told_at_the_start(tdumpra, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    Path("secret").write_text("hush\n")
    done = tdumpra("serve", "no-model", *words)
    assert done.code == 2
    assert len(done.err.strip().splitlines()) == 1
    assert "hush" not in done.err
