"""The description of the API in the repository is that of the code, and a stranger's client may rely on it."""

from __future__ import annotations

import json

import pytest
from server_world import picture

from sitegen import openapi


@pytest.fixture
def described():
    return json.loads(openapi.text())


def test_the_document_in_the_repository_is_current():
    assert openapi.PLACE.read_text(encoding="utf-8") == openapi.text(), "write it anew:  python -m sitegen.openapi"


def test_every_write_takes_a_key_and_every_address_may_refuse(described):
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if path.startswith("/v1/"):
                assert {"401", "403", "404", "422", "429", "503"} <= operation["responses"].keys()
            if method in ("post", "delete") and path != "/v1/predict":
                assert "Idempotency-Key" in {each["name"] for each in operation["parameters"]}


def test_pages_are_not_part_of_the_api(described):
    assert all(path.startswith("/v1/") or path in ("/healthz", "/readyz") for path in described["paths"])


@pytest.mark.parametrize("path", ["/v1/models", "/v1/nothing", "/healthz", "/login", "/v1/cases"])
def test_every_answer_names_model_bank_settings_and_request(world, path):
    headers = world.client("ada").get(path).headers
    row = world.service.models.active.row
    assert [headers[f"x-{name}"] for name in ("model", "bank", "settings")] == [row.id, row.bank, row.settings]
    assert headers["x-request-id"] != world.client("ada").get(path).headers["x-request-id"]


def test_a_prediction_says_where_it_comes_from_and_stores_nothing(world):
    answer = world.client("sam").post("/v1/predict", content=picture(), params={"evidence": "true"})
    body = answer.json()
    assert body["request_id"] == answer.headers["x-request-id"]
    assert body["fingerprints"]["model"] == answer.headers["x-model"]
    assert sum(body["probabilities"].values()) == pytest.approx(1)
    assert body["label"] == max(body["probabilities"], key=body["probabilities"].__getitem__)
    assert body["evidence"]["class_names"] == ["amber", "blue", "cyan"]
    assert list(world.service.store.root.glob("images/*/*")) == []
    assert world.client("ada").get("/v1/cases").json()["cases"] == []


def test_health_needs_no_login_and_tells_when_something_is_wrong(world):
    client = world.client()
    assert client.get("/healthz").json() == {"status": "ok", "problems": []}
    assert client.get("/readyz").status_code == 200
    world.service.models.active.path.write_bytes(b"swapped")
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert len(answer.json()["problems"]) == 1
