"""The same on a real PostgreSQL: a study, the audit trail, many writers, and a database that goes away."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from private_postgres import PROGRAMS, Cluster, cluster
from server_world import TRUSTED, World, open_world, picture
from sqlalchemy import text

from tdumpra.errors import InputFileError
from tdumpra.server import audit
from tdumpra.server.database import Database
from tdumpra.server.replay import replay
from tdumpra.server.tables import Base

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(not PROGRAMS, reason="PostgreSQL is not installed (Debian: apt-get install postgresql)"),
]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="tdumpra-postgres-"))  # pytest's own folders are closed to other users
    folder.chmod(0o755)
    with cluster(folder) as running:
        yield running


@pytest.fixture
def world(postgres, tmp_path, model_files) -> Iterator[World]:
    empty(postgres.url)
    opened = open_world(tmp_path / "s", list(model_files), database=postgres.url)
    yield opened
    opened.service.close()


def empty(url: str) -> None:
    database = Database(url)
    with database.engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    database.close()


def faults(world: World) -> list[str]:
    with world.service.database.read() as session:
        return audit.verify(session).faults


def test_a_study_from_upload_to_export(world):
    case = world.add_case("sam", lesion="ü lesion")
    world.read("rita", case, "amber", comment="typical … 'quoted'")
    world.read("rolf", case, "blue")
    assert world.decide("anna", case, "blue").status_code == 201
    assert world.client("anna").get("/v1/cases", params={"only": "decided"}).json()["cases"][0]["decision"] == "blue"
    assert world.browser("anna").get("/study").status_code == 200
    assert world.client("anna").get("/v1/export").status_code == 200
    assert faults(world) == []
    assert all(each.fault is None for each in replay(world.service.database, world.service.store, trusted=TRUSTED))


def test_the_steps_lead_to_the_tables(world):
    with world.service.database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_many_writers_make_one_chain(world):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: world.add_case(data=picture(seed=seed)), range(24)))
        keyed = [{"Idempotency-Key": f"k{i % 3}"} for i in range(12)]
        answers = list(
            pool.map(lambda key: world.client("ada").post("/v1/cases", content=picture("blue"), headers=key), keyed)
        )
    assert {each.status_code for each in answers} == {201}
    assert len({each.json()["id"] for each in answers}) == 3
    assert len(world.client("ada").get("/v1/cases", params={"limit": 500}).json()["cases"]) == 27
    assert faults(world) == []


def test_an_edit_by_another_client_is_found(world):
    case = world.add_case()
    world.read("rita", case, "amber")
    with world.service.database.engine.begin() as connection:
        connection.execute(text("UPDATE readings SET label = 'blue'"))
    assert faults(world)


def test_a_database_that_goes_away_and_comes_back(world, postgres):
    key = {"Idempotency-Key": "while-away"}
    case, person = world.add_case(), world.browser("rita")
    postgres.stop()
    try:
        answer = world.client("ada").post("/v1/cases", content=picture("blue"), headers=key)
        assert answer.status_code == 503
        assert "retry-after" in answer.headers
        for shown in (person.get("/"), person.post(f"/cases/{case}/reading", data={"label": "amber"})):
            assert shown.status_code == 503
            assert "retry-after" in shown.headers
            assert "database does not answer" in shown.text
        with pytest.raises(InputFileError, match="cannot open the database"):  # as a start at this moment would
            Database(postgres.url)
        assert world.client().get("/healthz").status_code == 200
        assert world.client().get("/readyz").status_code == 503
    finally:
        postgres.start()
    assert world.client("ada").post("/v1/cases", content=picture("blue"), headers=key).status_code == 201
    assert person.get(f"/cases/{case}").status_code == 200  # still logged in
    assert world.client().get("/readyz").status_code == 200
    assert faults(world) == []
