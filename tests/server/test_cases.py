"""From an upload to a decided case, by the API: who may do what, and what each may know."""

from __future__ import annotations

import pytest
from server_world import picture


def test_readers_who_agree_decide_a_case(world):
    case = world.add_case("sam", lesion="lesion 7")
    assert world.read("rita", case, "amber").status_code == 201
    assert world.client("ada").get(f"/v1/cases/{case}").json()["decided"] is None
    assert world.read("rolf", case, "amber", comment="typical").status_code == 201
    found = world.client("ada").get(f"/v1/cases/{case}").json()
    assert found["decided"]["label"] == "amber"
    assert found["decided"]["agreed"] is True
    assert found["lesion"] == "lesion 7"
    assert [each["first"] for each in found["answers"]] == [True, True]


def test_readers_who_differ_wait_for_an_adjudicator(world):
    case = world.add_case()
    assert world.decide("anna", case, "blue").status_code == 409  # nobody has read it yet
    world.read("rita", case, "amber")
    world.read("rolf", case, "blue")
    only = {"only": "differing"}
    assert [each["id"] for each in world.client("anna").get("/v1/cases", params=only).json()["cases"]] == [case]
    assert world.decide("rita", case, "blue").status_code == 403
    assert world.decide("anna", case, "blue").status_code == 201
    assert world.client("anna").get("/v1/cases", params=only).json()["cases"] == []
    assert world.decide("anna", case, "cyan").status_code == 201  # anew
    decided = world.client("ada").get(f"/v1/cases/{case}").json()["decided"]
    assert (decided["label"], decided["agreed"]) == ("cyan", False)


def test_blind_readers_know_nothing_of_the_model_before_their_own_answer(world):
    case, reader = world.add_case(), world.client("rita")
    line = reader.get("/v1/cases").json()["cases"][0]
    whole = reader.get(f"/v1/cases/{case}").json()
    for found in (line, whole):
        assert [found[key] for key in ("label", "gate", "decision", "readings")] == [None] * 4
    assert whole["opinions"] is None
    for name in ("moved", "opened", "unfamiliar", "low", "shadow", "decided", "differing"):
        assert reader.get("/v1/cases", params={"only": name}).status_code == 403
    assert reader.post("/v1/predict", content=picture()).status_code == 403
    assert reader.get("/v1/export").status_code == 403
    assert reader.get("/study", headers={"Accept": "text/html"}).status_code == 403
    world.read("rita", case, "cyan")
    assert reader.get(f"/v1/cases/{case}").json()["opinions"][0]["label"]


def test_a_blind_reader_may_answer_again_with_the_model_and_both_are_kept(world):
    case = world.add_case()
    world.read("rita", case, "cyan")
    assert world.read("rita", case, "amber").json()["informed"] is True
    assert world.read("rita", case, "blue").status_code == 409
    answers = world.client("rita").get(f"/v1/cases/{case}").json()["answers"]
    assert [(each["label"], each["informed"], each["first"]) for each in answers] == [
        ("cyan", False, True),
        ("amber", True, False),
    ]
    world.read("rolf", case, "cyan")
    assert world.client("ada").get(f"/v1/cases/{case}").json()["decided"]["label"] == "cyan"  # the first answers


def test_readers_never_see_each_others_answers(world):
    case = world.add_case()
    world.read("rita", case, "amber", comment="my secret")
    world.read("rolf", case, "blue")
    assert "my secret" not in world.client("rolf").get(f"/v1/cases/{case}").text
    assert "my secret" not in world.browser("rolf").get(f"/cases/{case}").text
    assert world.decide("anna", case, "blue").status_code == 201
    assert world.client("rolf").get(f"/v1/cases/{case}").json()["decided"] is None  # it would tell who was right
    assert "Decided" not in world.browser("rolf").get(f"/cases/{case}").text
    seen = world.client("anna").get(f"/v1/cases/{case}").json()["answers"]
    assert [each["reader"] for each in seen] == [None, None]


def test_a_case_takes_no_more_readings_than_it_needs(make_world):
    world = make_world(readers=1)
    case = world.add_case()
    assert world.read("rita", case, "amber").status_code == 201
    assert world.read("rolf", case, "amber").status_code == 409


def test_a_label_that_the_model_does_not_know_is_refused_with_the_nearest(world):
    answer = world.read("rita", world.add_case(), "ambre")
    assert answer.status_code == 422
    assert "'amber'" in answer.json()["detail"]


@pytest.mark.parametrize("confidence", [0, 6, 2.5, "4", None])
def test_a_confidence_is_one_to_five(world, confidence):
    assert world.read("rita", world.add_case(), "amber", confidence=confidence).status_code == 422


def test_a_withdrawn_case_is_gone_from_everything_but_the_trail(world):
    case, other = world.add_case(lesion="a"), world.add_case(lesion="b")  # the same image twice
    for each in (case, other):
        world.read("rita", each, "amber")
        world.read("rolf", each, "amber")
    image = world.service.store.root / "images"
    assert world.client("anna").delete(f"/v1/cases/{case}").status_code == 403
    assert world.client("ada").delete(f"/v1/cases/{case}").status_code == 200
    assert world.client("ada").delete(f"/v1/cases/{case}").status_code == 409
    assert world.client("anna").get(f"/v1/cases/{case}").status_code == 404
    assert len(list(image.glob("*/*.png"))) == 1  # the other case still needs it
    assert world.client("ada").delete(f"/v1/cases/{other}").status_code == 200
    assert list(image.glob("*/*")) == []
    assert world.client("ada").get(f"/v1/cases/{case}/image").status_code == 404
    assert world.client("ada").get("/v1/export").status_code == 409
    assert world.browser("ada").get("/study").status_code == 200
    assert world.browser("ada").get(f"/cases/{case}").status_code == 200  # without its image


def test_a_flagged_queue_gives_readers_what_is_worth_a_second_look(make_world):
    world = make_world(queue="flagged")
    ids = [world.add_case(data=picture(colour, seed)) for seed in range(4) for colour in ("amber", "blue", "cyan")]
    everything = world.client("ada").get("/v1/cases").json()["cases"]
    flagged = {
        each["id"]
        for name in ("moved", "unfamiliar", "low")
        for each in world.client("ada").get("/v1/cases", params={"only": name}).json()["cases"]
    }
    assert 0 < len(flagged) < len(everything) == len(ids)
    assert {each["id"] for each in world.client("rita").get("/v1/cases").json()["cases"]} == flagged
    unflagged = next(each for each in ids if each not in flagged)
    assert world.read("rita", unflagged, "amber").status_code == 404


def test_lists_go_on_where_they_ended(world):
    for seed in range(5):
        world.add_case(data=picture(seed=seed))
    client = world.client("ada")
    first = client.get("/v1/cases", params={"limit": 3}).json()
    rest = client.get("/v1/cases", params={"limit": 3, "below": first["next"]}).json()
    assert [each["number"] for each in first["cases"] + rest["cases"]] == [5, 4, 3, 2, 1]
    assert rest["next"] is None
