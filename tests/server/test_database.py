"""The database and the disk: tables that are current, and clear answers where one of them fails."""

from __future__ import annotations

import errno
import shutil
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from server_world import picture
from sqlalchemy.exc import OperationalError

from tdumpra.errors import ArtifactError
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


def test_a_disk_that_is_nearly_full_takes_no_image(world, monkeypatch):
    usage = shutil.disk_usage(".")
    monkeypatch.setattr("tdumpra.server.store.shutil.disk_usage", lambda _: usage._replace(free=1000))
    assert world.client("ada").post("/v1/cases", content=picture()).status_code == 507
    assert world.client().get("/readyz").json()["problems"] == ["the disk is full"]


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
