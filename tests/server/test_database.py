"""The database and the disk: tables that are current, and clear answers where one of them fails."""

from __future__ import annotations

import errno
import shutil
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from served import free_port
from server_world import ADDRESS, TRUSTED, open_world, picture
from small_disk import SmallDisk, small_disk
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from tdumpra.errors import ArtifactError
from tdumpra.server import audit
from tdumpra.server.database import Database
from tdumpra.server.tables import Base


def test_the_steps_lead_to_the_tables(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'a' / 'cases.sqlite'}")
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    database.close()
    Database(f"sqlite:///{tmp_path / 'a' / 'cases.sqlite'}").close()  # again, on tables that are there


def test_a_write_that_fails_leaves_nothing(world, monkeypatch):
    before = world.client("ada").get("/v1/audit/head").json()
    monkeypatch.setattr("tdumpra.server.answers.Once.keep", _fail(OperationalError("", {}, Exception("away"))))
    answer = world.client("ada").post("/v1/cases", content=picture(), headers={"Idempotency-Key": "k"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert "database" in answer.json()["detail"]
    monkeypatch.undo()
    assert world.client("ada").get("/v1/cases").json()["cases"] == []
    assert world.client("ada").get("/v1/audit/head").json() == before
    assert world.client("ada").post("/v1/cases", content=picture(), headers={"Idempotency-Key": "k"}).status_code == 201


def test_a_database_that_went_away_is_told_before_anything_is_read(world, monkeypatch):
    monkeypatch.setattr(world.service.database, "read", _fail(OperationalError("", {}, Exception("secret host"))))
    answer = world.client("ada").post("/v1/cases", content=picture())
    assert answer.status_code == 503
    assert "secret" not in answer.text
    assert world.client().get("/healthz").status_code == 200
    assert world.client().get("/readyz").json()["problems"] == ["the database does not answer"]


@pytest.mark.parametrize(
    "problem",
    [
        ArtifactError("cannot write x: No space left on device"),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OperationalError("", {}, Exception("database or disk is full")),
    ],
)
def test_a_full_disk_is_told_and_forgotten_once_there_is_room(world, monkeypatch, problem):
    monkeypatch.setattr("tdumpra.server.store.write_bytes", _fail(problem))
    answer = world.client("ada").post("/v1/cases", content=picture())
    assert answer.status_code == 507
    assert "nothing was stored" in answer.json()["detail"]
    monkeypatch.undo()
    assert world.client("ada").get("/v1/cases").json()["cases"] == []
    assert world.client("ada").post("/v1/cases", content=picture()).status_code == 201


def test_requests_that_find_every_connection_taken_are_told_to_come_again(world, monkeypatch):
    pool = world.service.database.engine.pool
    monkeypatch.setattr(pool, "_timeout", 0.01)
    taken = [world.service.database.engine.connect() for _ in range(pool.size() + pool._max_overflow)]
    answers = [world.client("ada").get("/v1/cases"), world.client().post("/login", headers={"Origin": ADDRESS})]
    for each in taken:
        each.close()
    assert [(each.status_code, "retry-after" in each.headers) for each in answers] == [(503, True)] * 2
    assert world.client("ada").get("/v1/cases").status_code == 200


def test_an_export_for_which_there_is_no_room_is_told(world, monkeypatch):
    case = world.add_case()
    for name in ("rita", "rolf"):
        assert world.read(name, case, "amber").status_code == 201

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tdumpra.server.export.write", full)
        assert world.client("ada").get("/v1/export").status_code == 507
    assert world.client("ada").get("/v1/export").content[:2] == b"PK"


def test_a_withdrawal_that_the_disk_did_not_take_loses_no_image(world):
    """Whoever withdraws cases to make room on a full disk must not be left with cases without images."""
    case, engine, key = world.add_case(), world.service.database.engine, {"Idempotency-Key": "once"}

    def fail(_: object) -> None:
        raise OperationalError("COMMIT", {}, Exception("database or disk is full"))

    event.listen(engine, "commit", fail)
    assert world.client("ada").delete(f"/v1/cases/{case}", headers=key).status_code == 507
    event.remove(engine, "commit", fail)
    assert world.client("ada").get(f"/v1/cases/{case}").json()["withdrawn"] is False
    assert world.client("ada").get(f"/v1/cases/{case}/image").status_code == 200
    assert world.client("ada").delete(f"/v1/cases/{case}", headers=key).status_code == 200
    assert not [path for path in (world.service.store.root / "images").glob("*/*") if path.is_file()]


def test_a_disk_that_is_nearly_full_takes_no_image(world, monkeypatch):
    usage = shutil.disk_usage(".")
    monkeypatch.setattr("tdumpra.server.store.shutil.disk_usage", lambda _: usage._replace(free=1000))
    assert world.client("ada").post("/v1/cases", content=picture()).status_code == 507
    assert world.client().get("/readyz").json()["problems"] == ["the disk is full"]


@pytest.fixture
def disk(tmp_path, monkeypatch) -> Iterator[SmallDisk]:
    """A real disk, which a server may use to its last byte."""
    monkeypatch.setattr("tdumpra.server.store._LEAST_FREE", -1)
    with small_disk(tmp_path / "disk", 24) as made:
        yield made


def test_on_a_disk_that_is_really_full(disk, make_world):
    world = make_world(folder=disk.place / "s")
    case, program, person = world.add_case(), world.client("ada"), world.browser("ada")
    disk.fill()
    for answer in (
        program.post("/v1/cases", content=picture("blue", size=300), headers={"Idempotency-Key": "k"}),
        program.post("/v1/predict", content=picture("blue", size=300)),
        world.read("rita", case, "amber", comment="long " * 300),
    ):
        assert answer.status_code == 507
        assert answer.headers["retry-after"] == "60"
        assert "disk" in answer.json()["detail"]
    page = person.post("/upload", files={"images": ("a.png", picture("blue", size=300))}, data={"key": "form"})
    assert "disk is full" in page.text
    assert person.get(f"/cases/{case}").status_code == 200  # what is there can be read
    disk.free()
    assert program.post("/v1/cases", content=picture("blue"), headers={"Idempotency-Key": "k"}).status_code == 201
    assert world.read("rita", case, "amber").status_code == 201
    assert program.get("/readyz").status_code == 200
    assert len(program.get("/v1/cases").json()["cases"]) == 2
    assert list(world.service.store.incoming.iterdir()) == []
    with world.service.database.read() as session:
        assert audit.verify(session).faults == []
        assert list(audit.changed_images(session, world.service.store)) == []


@pytest.mark.parametrize("before", [False, True], ids=["first start", "another start"])
def test_a_start_on_a_full_disk_is_one_sentence(disk, tdumpra, model_files, before):
    if before:
        open_world(disk.place / "s", [model_files[0]], login=False).service.close()
    disk.fill()
    call = ("serve", model_files[0], "--folder", disk.place / "s", "--port", free_port(), "--trust-code", *TRUSTED)
    done = tdumpra(*call)
    assert done.code == 2
    assert len(done.err.strip().splitlines()) == 1


def test_what_a_killed_server_left_behind_is_swept(make_world, tmp_path):
    world = make_world(folder=tmp_path / "s", login=False)
    case = world.add_case()
    store = world.service.store
    store.put(picture("blue"), b"preview")  # an image that no case came to name
    (store.incoming / "half").write_bytes(b"an upload that was cut short")
    world = make_world(folder=tmp_path / "s", login=False)
    assert len(list((tmp_path / "s" / "images").glob("*/*.png"))) == 1
    assert list(store.incoming.iterdir()) == []
    assert world.client().get(f"/v1/cases/{case}/image").status_code == 200


def test_figures_for_prometheus_name_nobody(make_world):
    world = make_world()
    case = world.add_case(lesion="Jane Doe")
    world.client("ada").get(f"/v1/cases/{case}")
    world.client("ada").post("/v1/cases", content=b"nothing")
    figures = world.service.metrics.text()
    assert 'tdumpra_requests_total{method="POST",route="/v1/cases",status="201"} 1.0' in figures
    assert "tdumpra_uploads_refused_total 1.0" in figures
    assert "tdumpra_images_under_way 0.0" in figures
    assert not any(word in figures for word in (case, "Doe", "ada"))


def _fail(error: Exception) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_figures_whose_port_is_taken_are_told_in_a_sentence(tdumpra, tmp_path, model_files):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("--port", free_port(), "--metrics-port", port, *(f"--trust-code={each}" for each in TRUSTED))
        done = tdumpra("serve", model_files[0], "--folder", tmp_path / "s", *words)
    assert done.code == 2
    assert f"port {port}" in done.err
    assert len(done.err.strip().splitlines()) == 1
