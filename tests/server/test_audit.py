"""The audit trail finds whatever is done behind its back, and past predictions can be computed again."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest
from server_world import ADDRESS, TRUSTED, picture
from sqlalchemy import select, text

from tdumpra.errors import InputFileError
from tdumpra.server import audit
from tdumpra.server.audit import Head
from tdumpra.server.replay import replay
from tdumpra.server.tables import Account, Entry


@pytest.fixture
def full(make_world):
    """A server where everything that is recorded has happened."""
    world = make_world(shadow=True)
    for seed in range(2):
        case = world.add_case(data=picture(seed=seed), lesion=f"lesion {seed}")
        world.read("rita", case, "amber")
        world.read("rolf", case, "blue")
        world.decide("anna", case, "blue")
    shadow = world.client("ada").get("/v1/models").json()["models"][1]["fingerprints"]["model"]
    assert world.client("ada").post(f"/v1/models/{shadow}/promote").status_code == 200
    return world


def faults(world, head: Head | None = None) -> list[str]:
    with world.service.database.read() as session:
        return audit.verify(session, head).faults


def tamper(world, statement: str) -> None:
    """Do what somebody with access to the database could."""
    with sqlite3.connect(world.service.store.root / "cases.sqlite") as connection:
        assert connection.execute(statement).rowcount != 0, statement
    connection.close()


def head_of(world) -> Head:
    with world.service.database.read() as session:
        return audit.head(session)


def test_what_nobody_touched_verifies(full):
    assert faults(full) == []
    assert faults(full, head_of(full)) == []
    with full.service.database.read() as session:
        kinds = set(session.scalars(select(Entry.kind)))
    assert kinds == {"accounts", "tokens", "models", "promotions", "cases", "opinions", "readings", "decisions"}


def test_logins_are_in_the_trail_and_what_strangers_type_is_not(world):
    stranger = world.client()
    stranger.headers["Origin"] = ADDRESS
    for name in ("rita", "my secret password"):
        assert stranger.post("/login", data={"name": name, "password": "wrong"}).status_code == 401
    assert world.browser("rita").post("/logout", headers={"Origin": ADDRESS}).status_code == 303
    with world.service.database.read() as session:
        rita = session.scalars(select(Account).where(Account.name == "rita")).one().id
        entries = session.execute(select(Entry.actor, Entry.action, Entry.subject).order_by(Entry.number)).all()
    assert [tuple(each) for each in entries[-3:]] == [
        ("stranger", "wrong password", rita), (rita, "log in", rita), (rita, "log out", rita)
    ]  # fmt: skip
    assert faults(world) == []


@pytest.mark.parametrize("column", ["at", "actor", "action", "kind", "subject", "digest", "previous", "hash"])
def test_an_edited_entry_is_found(full, column):
    tamper(full, f"UPDATE audit SET {column} = replace({column}, substr({column}, 1, 1), 'z') WHERE number = 9")
    assert any("9" in fault or "10" in fault for fault in faults(full))


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM audit WHERE number = 7",
        "DELETE FROM audit WHERE number <= 3",
        "UPDATE audit SET number = number + 1000 WHERE number = 7",
        "INSERT INTO audit SELECT 99, at, actor, action, kind, subject, digest, previous, hash FROM audit LIMIT 1",
    ],
)
def test_deletion_and_insertion_are_found(full, statement):
    tamper(full, statement)
    assert faults(full)


def test_reordering_is_found(full):
    tamper(full, "UPDATE audit SET number = -1 WHERE number = 7")
    tamper(full, "UPDATE audit SET number = 7 WHERE number = 8")
    tamper(full, "UPDATE audit SET number = 8 WHERE number = -1")
    assert len(faults(full)) >= 2


def test_a_cut_at_the_end_is_found_by_a_head_that_was_kept(full):
    head = head_of(full)
    tamper(full, f"DELETE FROM audit WHERE number > {head.number - 1}")
    tamper(full, "DELETE FROM promotions WHERE number = 2")  # and the row that it spoke of
    assert faults(full) == []  # nothing else tells
    assert faults(full, head)
    full.add_case(data=picture(seed=9))  # the trail grows past the head again
    assert faults(full, head)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE accounts SET role = 'admin' WHERE name = 'rita'",
        "UPDATE accounts SET password = 'x' WHERE name = 'ada'",
        "UPDATE tokens SET revoked_at = NULL, digest = 'x' WHERE rowid = 1",
        "UPDATE models SET bank = 'x'",
        "UPDATE promotions SET by = 'x' WHERE number = 2",
        "UPDATE cases SET lesion = 'another' WHERE number = 1",
        "UPDATE opinions SET label = 'cyan' WHERE active",
        "UPDATE opinions SET confidence = confidence + 1e-12",
        "UPDATE readings SET label = 'blue' WHERE label = 'amber'",
        "UPDATE decisions SET label = 'amber'",
        "DELETE FROM readings WHERE label = 'amber'",
        "DELETE FROM decisions",
        "INSERT INTO readings SELECT 'x', case_id, reader_id, 1, 0, label, 5, '', created_at FROM readings LIMIT 1",
    ],
)
def test_an_edit_of_the_tables_behind_the_trail_is_found(full, statement):
    tamper(full, statement)
    assert faults(full)


def test_an_image_that_was_exchanged_is_found(full):
    store = full.service.store
    with full.service.database.read() as session:
        assert list(audit.changed_images(session, store)) == []
        [one, other] = sorted(store.root.glob("images/*/*.png"))
        one.write_bytes(other.read_bytes())
        assert len(list(audit.changed_images(session, store))) == 1


def test_predictions_come_out_again(full):
    found = replay(full.service.database, full.service.store, trusted=TRUSTED)
    assert [(each.case, each.fault) for each in found] == [(1, None)] * 2 + [(2, None)] * 2
    assert all(each.difference == 0 for each in found)
    assert {each.model for each in found} == {each.row.id for each in full.service.models.all()}


def test_a_prediction_that_never_was_is_found_by_replaying(full):
    tamper(full, "UPDATE opinions SET evidence = replace(evidence, '\"p\": [0.', '\"p\": [0.0') WHERE active")
    found = replay(full.service.database, full.service.store, numbers=[1], trusted=TRUSTED)
    assert len(found) == 2
    assert sum(each.fault is not None for each in found) == 1


def test_replaying_without_the_model_or_the_image_says_so(full):
    active = full.service.models.active
    active.path.write_bytes(b"another model")
    next(full.service.store.root.glob("images/*/*.png")).unlink()
    found = replay(full.service.database, full.service.store, trusted=TRUSTED)
    assert sum("model's file" in (each.fault or "") for each in found) == 2
    assert sum("image is missing" in (each.fault or "") for each in found) == 1


@pytest.mark.parametrize("said", ["", "7", "7:xyz", "x:" + "0" * 64])
def test_what_is_no_head_is_refused(said):
    with pytest.raises(InputFileError, match="NUMBER:HASH"):
        Head.parse(said)


def test_a_chain_is_written_one_entry_after_the_other_by_many_threads(world):
    with ThreadPoolExecutor(6) as pool:
        ids = list(pool.map(lambda seed: world.add_case(data=picture(seed=seed)), range(12)))
    assert len(set(ids)) == 12
    assert faults(world) == []
    with world.service.database.read() as session:
        assert sorted(session.execute(text("SELECT number FROM cases")).scalars()) == list(range(1, 13))
