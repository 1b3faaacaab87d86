"""What the description of the API promises, tried with thousands of made-up requests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from server_world import open_world

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def world(tmp_path_factory, model_files):
    opened = open_world(tmp_path_factory.mktemp("fuzzed") / "s", list(model_files), rate=1e9, burst=1e9)
    for _ in range(3):
        opened.add_case()
    yield opened
    opened.service.close()


@pytest.fixture
def api(world):
    return schemathesis.openapi.from_asgi(
        "/openapi.json", world.app, headers={"Authorization": f"Bearer {world.tokens['ada']}", "Host": "127.0.0.1:8000"}
    )


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_described(case, world):
    headers = {"Authorization": f"Bearer {world.tokens['ada']}", "Host": "127.0.0.1:8000"}
    case.call_and_validate(headers=headers)
