"""What the description of the API promises, tried with made-up requests, sound and unsound."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import uvicorn
from hypothesis import HealthCheck, given, settings
from served import free_port
from server_world import open_world

from sitegen import openapi
from tdumpra.server.run import listen

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

pytestmark = pytest.mark.services

OPERATIONS = [(path, method) for path, methods in json.loads(openapi.text())["paths"].items() for method in methods]


@pytest.fixture(scope="module")
def world(tmp_path_factory, model_files):
    folder = tmp_path_factory.mktemp("fuzzed") / "s"
    opened = open_world(folder, list(model_files), rate=1e9, burst=1e9, port=free_port())
    server = uvicorn.Server(uvicorn.Config(opened.app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listen(opened.service.settings)]})
    thread.start()
    yield opened
    server.should_exit = True
    thread.join()
    opened.service.close()


@pytest.fixture(scope="module")
def headers(world) -> dict[str, str]:
    return {"Authorization": f"Bearer {world.tokens['ada']}"}


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_answer_is_as_described(path, method, world, headers):
    schema = schemathesis.openapi.from_url(f"{world.service.settings.address}/openapi.json", headers=headers)

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(schema[path][method].as_strategy())
    def check(case: Any) -> None:
        # no schema can say which bytes are an image, or which texts are without control characters
        case.call_and_validate(headers=headers, excluded_checks=[checks.positive_data_acceptance])

    check()
