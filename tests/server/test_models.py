"""Two models side by side, promotion and its undoing, and a file that is swapped under the server."""

from __future__ import annotations

import shutil

import pytest
from server_world import TRUSTED, open_world, picture

from tdumpra.errors import InputFileError
from tdumpra.server.models import current
from tdumpra.server.service import open_service
from tdumpra.server.settings import Settings


def names(world) -> list[str]:
    return [each["fingerprints"]["model"] for each in world.client("ada").get("/v1/models").json()["models"]]


def test_each_case_keeps_what_each_model_said(make_world):
    world = make_world(shadow=True)
    before = names(world)
    first = world.add_case()
    assert world.client("ada").post(f"/v1/models/{before[1]}/promote").status_code == 200
    assert names(world) == before[::-1]
    second = world.add_case(data=picture("blue"))
    for case, order in ((first, before), (second, before[::-1])):
        opinions = world.client("ada").get(f"/v1/cases/{case}").json()["opinions"]
        assert [each["fingerprints"]["model"] for each in opinions] == order
        assert [each["active"] for each in opinions] == [True, False]


def test_a_promotion_is_undone_and_outlives_a_restart(make_world, tmp_path):
    world = make_world(shadow=True, folder=tmp_path / "s", login=False)
    before = names(world)
    client = world.client()
    assert client.post("/v1/models/rollback").status_code == 409  # there was none before
    assert client.post(f"/v1/models/{before[0]}/promote").status_code == 409  # is active
    assert client.post("/v1/models/0123456789abcdef/promote").status_code == 404
    assert client.post(f"/v1/models/{before[1]}/promote", headers={"Idempotency-Key": "p"}).status_code == 200
    assert client.post(f"/v1/models/{before[1]}/promote", headers={"Idempotency-Key": "p"}).status_code == 200
    again = make_world(shadow=True, folder=tmp_path / "s", login=False)
    assert names(again) == before[::-1]
    assert again.client().post("/v1/models/rollback").status_code == 200
    assert names(again) == before


def test_each_step_back_undoes_one_more_promotion(make_world):
    world = make_world(shadow=True)
    [first, second] = names(world)
    client = world.client("ada")
    for name in (second, first, second):
        assert client.post(f"/v1/models/{name}/promote").status_code == 200
    for active in (first, second, first):
        assert client.post("/v1/models/rollback").status_code == 200
        assert names(world)[0] == active
    assert client.post("/v1/models/rollback").status_code == 409  # to where it began, and no further
    assert names(world)[0] == first


def test_answers_name_the_model_that_is_active(make_world):
    world = make_world(shadow=True)
    [first, second] = names(world)
    assert world.client("sam").post("/v1/predict", content=picture()).json()["fingerprints"]["model"] == first
    world.client("ada").post(f"/v1/models/{second}/promote")
    answer = world.client("sam").post("/v1/predict", content=picture())
    assert answer.json()["fingerprints"]["model"] == answer.headers["x-model"] == second
    one, other = (each.row for each in world.service.models.all())
    assert (one.bank == other.bank, one.settings == other.settings) == (True, False)  # a threshold differs


def test_a_model_that_is_swapped_under_the_server_is_noticed(world, model_files):
    path, original = world.service.models.active.path, model_files[0].read_bytes()
    path.write_bytes(model_files[1].read_bytes())
    for send in ("/v1/predict", "/v1/cases"):
        answer = world.client("sam").post(send, content=picture())
        assert answer.status_code == 503
        assert "not the one that was loaded" in answer.json()["detail"]
    assert world.client("ada").get("/v1/models").json()["models"][0]["intact"] is False
    path.write_bytes(original)
    assert world.client("sam").post("/v1/predict", content=picture()).status_code == 200


def test_the_file_that_was_named_may_go(make_world, tmp_path, model_files):
    """The server works from a copy of its own, so that what it said can be replayed."""
    named = tmp_path / "model.safetensors"
    shutil.copy(model_files[0], named)
    world = open_world(tmp_path / "copied", [named])
    named.write_bytes(b"overwritten by the next training")
    assert world.client("sam").post("/v1/predict", content=picture()).status_code == 200
    world.service.close()


def test_models_of_two_tasks_do_not_go_side_by_side(tmp_path, model_files):
    from dataclasses import replace

    from tdumpra.networks.model_file import Model

    other = replace(Model.read(model_files[0]), class_names=("x", "y", "z"))
    other.write(tmp_path / "other.safetensors")
    with pytest.raises(InputFileError, match="other classes"):
        open_service(Settings(folder=tmp_path / "s"), [model_files[0], tmp_path / "other.safetensors"], trusted=TRUSTED)


def test_of_two_promotions_at_once_the_later_one_is_served(make_world):
    """Who promoted first may look last at what is active, with what was read before."""
    world = make_world(shadow=True)
    before = names(world)
    assert world.client("ada").post(f"/v1/models/{before[1]}/promote").status_code == 200
    with world.service.database.read() as early:
        assert current(early) == before[1]
        assert world.client("anna").post(f"/v1/models/{before[0]}/promote").status_code == 403
        assert world.client("ada").post(f"/v1/models/{before[0]}/promote").status_code == 200
        world.service.models.follow(early)
    assert names(world) == before
