"""The pages as a browser without scripts gets them."""

from __future__ import annotations

import re

import pytest
from server_world import ADDRESS, picture


def form_key(html: str) -> str:
    found = re.search(r'name="key" value="([0-9a-f]+)"', html)
    assert found
    return found[1]


def test_somebody_unknown_is_led_to_the_login(world):
    client = world.client()
    client.headers["Accept"] = "text/html"
    for path in ("/", "/upload", "/study", "/cases/" + "0" * 32):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    wrong = client.post("/login", data={"name": "ada", "password": "x"}, headers={"Origin": ADDRESS})
    assert wrong.status_code == 401
    assert "do not go together" in wrong.text


def test_from_upload_to_decision_without_scripts(world):
    upload = world.browser("ada")
    files = [("images", (f"{i}.png", picture(seed=i), "image/png")) for i in range(2)]
    files.append(("images", ("bad.png", b"nothing", "image/png")))
    page = upload.get("/upload").text
    done = upload.post("/upload", files=files, data={"key": form_key(page), "lesion": " L 1 "})
    [first, second] = re.findall(r'/cases/([0-9a-f]{32})">case', done.text)
    assert "not taken" in done.text
    assert world.client("ada").get(f"/v1/cases/{first}").json()["lesion"] == "L 1"
    for name, label in (("rita", "amber"), ("rolf", "blue")):
        reader = world.browser(name)
        assert reader.get("/next").headers["location"] == f"/cases/{first}"
        blind = reader.get(f"/cases/{first}").text
        assert "Prediction" not in blind
        said = {"label": label, "confidence": "2", "comment": "hm", "key": form_key(blind)}
        answer = reader.post(f"/cases/{first}/reading", data=said)
        assert answer.headers["location"] == f"/cases/{first}"
        assert "Prediction: " in reader.get(f"/cases/{first}").text
        assert reader.get("/next").headers["location"] == f"/cases/{second}"
    judge = world.browser("anna")
    assert "readers differ" in judge.get("/").text
    page = judge.get(f"/cases/{first}").text
    assert "Readers differ" in page
    said = {"label": "blue", "comment": "", "key": form_key(page)}
    assert judge.post(f"/cases/{first}/decision", data=said).status_code == 303
    assert "Decided: blue" in judge.get(f"/cases/{first}").text
    study = judge.get("/study").text
    assert "ZIP" in study
    assert judge.get("/export").headers["content-type"] == "application/zip"


@pytest.mark.parametrize("data", [{}, {"label": "amber"}, {"label": "amber", "confidence": "x"}, {"confidence": "3"}])
def test_a_form_that_is_not_filled_in_is_told_on_a_page(world, data):
    case, reader = world.add_case(), world.browser("rita")
    answer = reader.post(f"/cases/{case}/reading", data={**data, "key": "k"})
    assert answer.status_code == 422
    assert 'role="alert"' in answer.text


def test_withdrawing_asks_to_be_sure(world):
    case, admin = world.add_case(), world.browser("ada")
    assert admin.post(f"/cases/{case}/withdraw", data={"key": "a"}).status_code == 422
    assert admin.post(f"/cases/{case}/withdraw", data={"key": "b", "sure": "yes"}).status_code == 303
    assert "was withdrawn" in admin.get(f"/cases/{case}").text
    assert f"/cases/{case}" in admin.get("/", params={"only": "withdrawn"}).text


def test_models_are_promoted_on_their_page(make_world):
    world = make_world(shadow=True)
    admin = world.browser("ada")
    page = admin.get("/models").text
    assert "/models/rollback" not in page  # nothing was promoted
    [shadow] = re.findall(r'name="model" value="([0-9a-f]{16})"', page)
    assert admin.post("/models/promote", data={"model": shadow, "key": form_key(page)}).status_code == 303
    assert world.service.models.active.row.id == shadow
    assert "/models/rollback" in admin.get("/models").text
    assert admin.post("/models/rollback", data={"key": "back"}).status_code == 303
    assert world.service.models.active.row.id != shadow


def test_a_case_whose_model_is_gone_still_has_its_evidence(make_world, tmp_path, model_files):
    from server_world import open_world

    world = make_world(folder=tmp_path / "s", login=False)
    case = world.add_case()
    other = open_world(tmp_path / "s", [model_files[1]], login=False)
    page = other.browser("local").get(f"/cases/{case}")
    assert page.status_code == 200
    assert "is not loaded now" in page.text
    other.service.close()


def test_unknown_filters_and_addresses_are_pages_too(world):
    browser = world.browser("ada")
    assert browser.get("/", params={"only": "nonsense"}).status_code == 422
    answer = browser.get("/nothing")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("path", ["/", "/upload", "/study", "/models", "/login", "/cases/{case}"])
def test_pages_can_be_used_by_keyboard_and_screen_reader(make_world, path):
    world = make_world(login=path == "/login")
    if path != "/login":
        path = path.format(case=world.add_case("ada"))
    client = world.browser("local") if path != "/login" else world.client(headers={"Accept": "text/html"})
    html = client.get(path).text
    assert 'lang="en"' in html
    assert len(re.findall("<h1", html)) == 1
    assert 'class="skip" href="#content"' in html
    for field in re.findall(r"<(?:input|textarea)[^>]*>", html):
        if 'type="hidden"' in field or 'type="radio"' in field or 'type="checkbox"' in field:
            continue  # the last two stand inside their labels
        name = re.search(r' id="(\w+)"', field)
        assert name, field
        assert f'for="{name[1]}"' in html
    for image in re.findall(r"<img[^>]*>", html):
        assert " alt=" in image
    assert "http://" not in html.replace(ADDRESS, "")
    assert "https://" not in html
