"""Accounts by the command line: the way in, and the way back in."""

from __future__ import annotations

import json
import sqlite3

import pytest
from server_world import ADDRESS

from tdumpra.server.settings import Settings

PASSWORD = "a long enough password"


@pytest.fixture
def account(tdumpra, tmp_path, monkeypatch):
    monkeypatch.setenv("TDUMPRA_PASSWORD", PASSWORD)
    return lambda *words: tdumpra("account", *words, "--folder", tmp_path / "s")


def listed(account) -> list[dict[str, object]]:
    return [{**each} for each in json.loads(account("list", "--json").out)]


def test_accounts_are_made_listed_and_shut_out(account):
    assert account("add", "ada", "--role", "admin").code == 0
    assert "tdumpra_" in account("add", "robot", "--role", "service").out  # the token, shown once
    assert account("disable", "robot").code == 0
    assert listed(account) == [
        {"name": "ada", "role": "admin", "active": True},
        {"name": "robot", "role": "service", "active": False},
    ]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("add", "ada", "--role", "admim"), "admin"),
        (("add", "local", "--role", "admin"), "cannot be a name"),
        (("add", "<b>", "--role", "reader"), "cannot be a name"),
        (("add", "ada", "--role", "admin", "--password", "short"), "10 to"),
        (("password", "nobody"), "no account"),
        (("token", "nobody"), "no account"),
        (("disable", "local"), "no account"),
    ],
)
def test_mistakes_are_one_sentence(account, words, hint):
    account("add", "someone", "--role", "reader")
    done = account(*words)
    assert done.code == 2
    assert hint in done.err
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [("ada", "--role", "admim"), ("<b>", "--role", "reader")])
def test_a_mistake_is_told_before_a_password_is_asked_for(account, monkeypatch, words):
    monkeypatch.delenv("TDUMPRA_PASSWORD")
    done = account("add", *words)
    assert done.code == 2
    assert "Password" not in done.out + done.err


def test_a_lone_administrator_who_was_shut_out_gets_back_in(account, make_world, tmp_path):
    account("add", "solo", "--role", "admin")
    account("disable", "solo")
    assert account("add", "solo", "--role", "admin").code == 2  # there is one already
    world = make_world(folder=tmp_path / "s")
    client = world.client()
    client.headers["Origin"] = ADDRESS
    said = {"name": "solo", "password": PASSWORD}
    assert client.post("/login", data=said).status_code == 401
    assert account("password", "solo").code == 0
    assert client.post("/login", data=said).status_code == 303
    assert client.get("/v1/cases").status_code == 200
    account("disable", "solo")
    assert client.get("/v1/cases").status_code == 401  # the login ended with it


def test_a_token_ends_with_its_account(account, make_world, tmp_path):
    token = account("add", "robot", "--role", "service").out.split()[-1]
    world = make_world(folder=tmp_path / "s")
    headers = {"Authorization": f"Bearer {token}"}
    assert world.client().get("/v1/models", headers=headers).status_code == 200
    account("disable", "robot")
    assert world.client().get("/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize(
    "words",
    [
        *(("--host", host) for host in ("0.0.0.0", "::", "192.168.1.5", "example.org")),
        ("--origin", "https://reader.example.org"),  # a proxy hands everyone's requests on from this machine
    ],
)
def test_nobody_else_is_served_without_accounts(tdumpra, tmp_path, model_files, words):
    done = tdumpra("serve", model_files[0], "--folder", tmp_path / "s", *words)
    assert done.code == 2
    assert "account add" in done.err


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("10.0.0.1", False)]
)
def test_what_only_this_machine_reaches(host, loopback):
    assert Settings(host=host).is_loopback is loopback


@pytest.mark.parametrize("origin", ["reader.example.org", "ftp://x", "https://", ""])
def test_an_origin_is_an_address(origin):
    with pytest.raises(ValueError, match="origin"):
        Settings(origin=origin)


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense", "postgresql://nobody:hush@127.0.0.1:9/none"])
def test_a_database_that_cannot_be_opened_is_one_sentence_without_its_password(tdumpra, url):
    done = tdumpra("account", "list", "--database", url)
    assert done.code == 2
    assert "hush" not in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_folder_without_a_server_is_not_taken_for_an_empty_one(tdumpra, tmp_path):
    for words in (("audit", "verify"), ("audit", "head"), ("audit", "replay"), ("account", "list")):
        done = tdumpra(*words, "--folder", tmp_path / "typo")
        assert done.code == 2
        assert "--folder" in done.err
    assert not (tmp_path / "typo").exists()


def test_tables_of_a_newer_version_and_a_damaged_file_are_one_sentence(account, tdumpra, tmp_path):
    account("add", "ada", "--role", "admin")
    with sqlite3.connect(tmp_path / "s" / "cases.sqlite") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    for _ in range(2):
        done = account("list")
        assert done.code == 2
        assert "cannot open the database" in done.err
        (tmp_path / "s" / "cases.sqlite").write_bytes(b"no database" * 100)


def test_the_audit_commands(tdumpra, make_world, tmp_path):
    world = make_world(folder=tmp_path / "s", login=False)
    case = world.add_case()
    here = ("--folder", tmp_path / "s")
    head = tdumpra("audit", "head", *here).out.strip()
    world.read("local", case, "amber")
    assert tdumpra("audit", "verify", "--head", head, *here).code == 0
    assert tdumpra("audit", "replay", "--trust-code", "tiny_networks:plain", *here).code == 0
    assert tdumpra("audit", "replay", 7, *here).code == 2  # there is no such case
    assert tdumpra("audit", "verify", "--head", "nonsense", *here).code == 2
    document = json.loads(tdumpra("audit", "verify", "--json", *here).out)
    assert document["faults"] == []
    world.service.store.image(next((tmp_path / "s" / "images").glob("*/*.png")).stem).write_bytes(b"x")
    done = tdumpra("audit", "verify", *here)
    assert done.code == 2
    assert "image of case 1" in done.out
