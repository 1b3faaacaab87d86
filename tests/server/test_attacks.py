"""Each promise of safety, tried as someone would who wants to break it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hostile_images import large_and_blank, many_scans, png
from PIL import Image
from server_world import ADDRESS, PASSWORD, picture
from sqlalchemy import update

from tdumpra.server import accounts
from tdumpra.server.tables import Answer

SCRIPT = "<script>alert(1)</script>"
NO_IMAGES = (b"<html><script>alert(1)</script></html>", b"%PDF-1.4", b"GIF89a" + b"\0" * 40, b"\xff\xd8\xff", b"PK\3\4")
INJECTIONS = (
    SCRIPT,
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE cases; --",
    "{{ 7 * 7 }}",
    "${7*7}",
    "\u202egnp.exe",
)


def unread() -> Iterator[bytes]:
    """A body that nobody may ask for."""
    yield from (pytest.fail("the body was asked for") for _ in range(1))


def found(pattern: str, text: str) -> str:
    """The first group of a pattern that must be there."""
    match = re.search(pattern, text)
    assert match
    return match[1]


# --- bodies and headers


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_read(make_world):
    world = make_world(image_bytes=10_000)

    headers = {"Content-Length": "10001"}
    for path in ("/v1/predict", "/v1/cases"):
        answer = world.client("ada").post(path, content=unread(), headers=headers)
        assert answer.status_code == 413


def test_a_body_that_hides_its_length_is_cut_off(make_world):
    world = make_world(image_bytes=10_000)
    sent = []

    def chunks():
        for _ in range(1000):
            sent.append(1)
            yield b"x" * 1000

    assert world.client("ada").post("/v1/predict", content=chunks()).status_code == 413


def test_a_body_that_never_comes_is_not_waited_for(make_world):
    world = make_world(login=False, body_seconds=0.05)
    scope = {
        "type": "http", "method": "POST", "path": "/v1/predict", "query_string": b"", "client": ("127.0.0.1", 1),
        "headers": [(b"host", ADDRESS.removeprefix("http://").encode())],
    }  # fmt: skip
    sent: list[dict[str, Any]] = []

    async def silence() -> None:
        await asyncio.Event().wait()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(asyncio.wait_for(world.app(scope, silence, send), 60))
    assert sent[0]["status"] == 408


def test_whoever_is_nobody_gets_no_byte_read(world):
    for path in ("/v1/predict", "/v1/cases", "/upload", "/models/promote"):
        answer = world.client().post(path, content=unread(), headers={"Origin": ADDRESS})
        assert answer.status_code == 401


def test_texts_are_small(world):
    case = world.add_case()
    answer = world.client("rita").post(f"/v1/cases/{case}/readings", content=b" " * 100_000)
    assert answer.status_code == 413
    assert world.read("rita", case, "amber", comment="x" * 2001).status_code == 422


def test_a_form_with_too_many_or_too_large_parts_is_refused(make_world):
    world = make_world(form_files=3, form_bytes=20_000, image_bytes=8_000)
    browser = world.browser("ada")
    many = [("images", (f"{i}.png", b"x", "image/png")) for i in range(4)]
    assert browser.post("/upload", files=many).status_code == 400
    assert browser.post("/upload", data={f"f{i}": "x" for i in range(50)}, files=many[:1]).status_code == 400
    assert browser.post("/upload", files=[("images", ("a.png", b"x" * 30_000, "image/png"))]).status_code == 413
    one = browser.post("/upload", files=[("images", ("a.png", b"x" * 9_000, "image/png"))], data={"key": "a"})
    assert one.status_code == 200
    assert "more than 8,000 bytes" in one.text
    assert world.client("ada").get("/v1/cases").json()["cases"] == []


def test_floods_of_headers_are_refused(world):
    client = world.client("ada")
    assert client.get("/v1/models", headers={f"X-{i}": "1" for i in range(100)}).status_code == 431
    assert client.get("/v1/models", headers={"X-Long": "1" * 20_000}).status_code == 431
    assert client.get("/v1/models", headers={"Cookie": "a=b; " * 5_000}).status_code == 431
    assert client.get("/v1/cases", params={"only": "x" * 3_000}).status_code == 414


def test_ranges_are_ignored(world):
    case = world.add_case()
    whole = world.client("ada").get(f"/v1/cases/{case}/image")
    asked = {"Range": ",".join(f"bytes={i}-{i + 1}" for i in range(500))}
    for headers in ({"Range": "bytes=0-0"}, {"Range": "bytes=0-99999999999"}, asked):
        answer = world.client("ada").get(f"/v1/cases/{case}/image", headers=headers)
        assert (answer.status_code, answer.content) == (200, whole.content)
        assert "content-range" not in answer.headers


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1:9", "127.0.0.1.evil.example:8000", "", "127.0.0.1:8000@evil"]
)
def test_a_forged_host_is_not_answered(make_world, host):
    world = make_world(login=False)
    assert world.client().get("/v1/models", headers={"Host": host}).status_code == 421
    assert world.client().get("/v1/models").status_code == 200


# --- who asks, and where from


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:8001", "https://127.0.0.1:8000", "x", "http://["]
)
def test_a_page_of_another_site_cannot_write(make_world, origin):
    world = make_world(login=False)
    case = world.add_case()
    paths = (f"/cases/{case}/reading", "/upload", "/models/rollback", "/v1/cases", f"/cases/{case}/withdraw")
    for path in paths:
        assert world.client().post(path, content=b"x", headers={"Origin": origin}).status_code == 403
    assert world.client().delete(f"/v1/cases/{case}", headers={"Origin": origin}).status_code == 403
    assert world.client().post("/v1/cases", content=b"x", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


def test_a_login_from_another_site_and_a_cookie_without_origin_are_refused(world):
    said = {"name": "ada", "password": PASSWORD}
    assert world.client().post("/login", data=said, headers={"Origin": "https://evil.example"}).status_code == 403
    browser = world.browser("rita")
    case = world.add_case()
    del browser.headers["Origin"]
    answer = browser.post(f"/cases/{case}/reading", data={"label": "amber", "confidence": "3"})
    assert answer.status_code == 403


def test_the_cookie_is_for_this_site_alone_and_ends(make_world):
    world = make_world(origin="https://reader.example.org", host="0.0.0.0")
    client = world.client()
    client.base_url = "https://reader.example.org"
    answer = client.post(
        "/login", data={"name": "rita", "password": PASSWORD}, headers={"Origin": "https://reader.example.org"}
    )
    cookie = answer.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "secure"))
    secret = found(r"[^=]+=([^;]+)", answer.headers["set-cookie"])
    assert client.get("/v1/cases").status_code == 200
    assert client.post("/logout", headers={"Origin": "https://reader.example.org"}).status_code == 303
    client.cookies.clear()
    client.cookies.set("tdumpra_login", secret)
    assert client.get("/v1/cases").status_code == 401


@pytest.mark.parametrize("token", ["", "x", "tdumpra_", "tdumpra_" + "a" * 43, "Bearer", "ü"])
def test_made_up_tokens_are_nobodys(world, token):
    answer = world.client().get("/v1/cases", headers={"Authorization": f"Bearer {token}".encode("latin-1", "replace")})
    assert answer.status_code == 401


def test_no_secret_is_in_the_database(world):
    world.browser("rita")
    data = b"".join(path.read_bytes() for path in world.service.store.root.glob("cases.sqlite*"))
    assert PASSWORD.encode() not in data
    assert all(token.encode() not in data for token in world.tokens.values())
    assert b"$argon2id$" in data


def test_guessing_passwords_is_slowed_down(make_world):
    world = make_world(logins=3)
    client = world.client()
    client.headers["Origin"] = ADDRESS
    codes = [client.post("/login", data={"name": "ada", "password": f"wrong {i}"}).status_code for i in range(5)]
    assert codes == [401, 401, 401, 429, 429]
    assert client.post("/login", data={"name": "ada", "password": PASSWORD}).status_code == 429  # also the right one
    assert client.post("/login", data={"name": "rita", "password": PASSWORD}).status_code == 303


def test_guesses_at_the_same_moment_are_counted_too(make_world):
    world, together = make_world(logins=3), threading.Barrier(12)

    def guess(number: int) -> int:
        client = world.client()
        together.wait()
        said = {"name": "ada", "password": f"wrong {number}"}
        return int(client.post("/login", data=said, headers={"Origin": ADDRESS}).status_code)

    with ThreadPoolExecutor(12) as pool:
        codes = sorted(pool.map(guess, range(12)))
    assert codes == [401] * 3 + [429] * 9
    assert world.browser("rita").get("/").status_code == 200


def test_strangers_who_try_passwords_keep_nobody_from_writing(world, monkeypatch):
    """Looking at a password takes long: meanwhile the turn to write is somebody else's."""
    case = world.add_case()
    looked, done = threading.Event(), threading.Event()

    def slowly(_: str | None, __: str) -> bool:
        looked.set()
        return not done.wait(60)

    monkeypatch.setattr(accounts, "_matches", slowly)
    with ThreadPoolExecutor(1) as pool:
        said = {"name": "nobody", "password": "x"}
        stranger = pool.submit(world.client().post, "/login", data=said, headers={"Origin": ADDRESS})
        assert looked.wait(60)
        assert world.read("rita", case, "amber").status_code == 201
        done.set()
        assert stranger.result().status_code == 401


def slow_login() -> dict[str, Any]:
    headers = [
        (b"host", ADDRESS.removeprefix("http://").encode()),
        (b"origin", ADDRESS.encode()),
        (b"content-type", b"multipart/form-data; boundary=x"),
    ]
    return {
        "type": "http", "method": "POST", "path": "/login", "query_string": b"", "client": ("127.0.0.1", 1),
        "headers": headers,
    }  # fmt: skip


async def silence() -> None:
    await asyncio.Event().wait()


def test_somebody_who_logs_in_takes_the_place_of_a_slow_stranger(make_world, monkeypatch):
    monkeypatch.setattr("tdumpra.server.guards._SLOW", 0.05)
    world = make_world(open_requests=8, body_seconds=60)
    parts = {"name": "ada", "password": PASSWORD}
    form = "".join(f'--x\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in parts.items())

    async def at_once() -> dict[str, Any]:
        return {"type": "http.request", "body": f"{form}--x--\r\n".encode()}

    async def attack() -> list[int]:
        codes: list[int] = []

        async def send(message: dict[str, Any]) -> None:
            if "status" in message:
                codes.append(message["status"])

        slow = [asyncio.create_task(world.app(slow_login(), silence, send)) for _ in range(2)]
        await asyncio.sleep(0.2)  # both places are taken
        await world.app(slow_login(), at_once, send)
        done, rest = await asyncio.wait(slow, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(rest)) == (1, 1)  # the other stranger may go on
        rest.pop().cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        return sorted(codes)

    assert asyncio.run(asyncio.wait_for(attack(), 30)) == [303, 408]


def test_strangers_with_slow_bodies_leave_places_to_everyone_else(make_world):
    world = make_world(open_requests=8, body_seconds=60)

    async def attack() -> list[int]:
        codes: list[int] = []

        async def send(message: dict[str, Any]) -> None:
            codes.append(message.get("status", 0))

        slow = [asyncio.create_task(world.app(slow_login(), silence, send)) for _ in range(20)]
        while len(codes) < 2 * 18:  # the beginning and the end of each refusal
            await asyncio.sleep(0.01)
        answer = await asyncio.to_thread(world.client("rita").get, "/v1/cases")
        health = await asyncio.to_thread(world.client().get, "/healthz")
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        return [answer.status_code, health.status_code, *codes[::2]]

    assert asyncio.run(asyncio.wait_for(attack(), 60)) == [200, 200] + [503] * 18
    assert world.browser("rita").get("/").status_code == 200  # and the places are free again


def test_foreign_objects_do_not_exist_for_a_service(world):
    mine, theirs = world.add_case("sam"), world.add_case("ada", data=picture("blue"))
    service = world.client("sam")
    assert [each["id"] for each in service.get("/v1/cases").json()["cases"]] == [mine]
    assert service.get(f"/v1/cases/{mine}/image").status_code == 200
    for path in (f"/v1/cases/{theirs}", f"/v1/cases/{theirs}/image", f"/cases/{theirs}", f"/cases/{theirs}/picture"):
        missing = service.get(path.replace(theirs, "0" * 32))
        theirs_too = service.get(path)
        assert theirs_too.status_code == missing.status_code == 404
        assert theirs_too.json()["detail"] == missing.json()["detail"]  # as if it were not there
    assert service.delete(f"/v1/cases/{theirs}").status_code == 403


@pytest.mark.parametrize(
    ("name", "method", "path"),
    [
        ("rita", "GET", "/v1/export"), ("rita", "GET", "/v1/audit/head"), ("rita", "POST", "/v1/models/rollback"),
        ("anna", "POST", "/v1/models/rollback"), ("anna", "GET", "/models"), ("sam", "GET", "/study"),
        ("sam", "GET", "/v1/export"), ("rolf", "GET", "/export"),
    ],
)  # fmt: skip
def test_a_role_is_a_limit(world, name, method, path):
    assert world.client(name).request(method, path).status_code == 403


def test_a_blind_reader_gets_the_model_s_word_on_no_copy(world):
    case, reader = world.add_case(), world.client("rita")
    image = reader.get(f"/v1/cases/{case}/image")
    assert image.status_code == 200
    for path in ("/v1/cases", "/v1/predict"):
        assert reader.post(path, content=image.content).status_code == 403


# --- names and paths


@pytest.mark.parametrize(
    "name", ["../cases.sqlite", "..%2f..%2fcases.sqlite", "%2e%2e/x", "a" * 32 + "/../..", "0" * 31, "A" * 32, "%00"]
)
def test_an_id_is_never_a_path(world, name):
    for path in (
        f"/v1/cases/{name}",
        f"/v1/cases/{name}/image",
        f"/cases/{name}/picture",
        f"/v1/models/{name}/promote",
    ):
        answer = world.client("ada").request("POST" if path.endswith("promote") else "GET", path)
        assert answer.status_code in (404, 405, 422)
        assert b"SQLite" not in answer.content


def test_a_file_name_from_outside_is_never_used(world):
    browser = world.browser("ada")
    evil = "../../../../tmp/evil\x00.png"
    answer = browser.post("/upload", files=[("images", (evil, picture(), "image/png"))], data={"key": "k"})
    assert "case 1" in answer.text
    assert "evil" not in answer.text
    names = [path.name for path in world.service.store.root.rglob("*") if path.is_file()]
    assert not any("evil" in name for name in names)


def test_text_that_is_script_stays_text_on_every_page(make_world):
    world = make_world(login=False, readers=1)
    browser = world.browser("local")
    for number, text in enumerate(INJECTIONS):
        answer = browser.post(
            "/upload",
            files=[("images", ("a.png", picture(seed=number), "image/png"))],
            data={"key": str(number), "lesion": text},
        )
        case = found(r"/cases/([0-9a-f]{32})", answer.text)
        browser.post(
            f"/cases/{case}/reading", data={"label": "amber", "confidence": "3", "comment": text, "key": f"r{number}"}
        )
        browser.post(f"/cases/{case}/decision", data={"label": "blue", "comment": text, "key": f"d{number}"})
        shown = [browser.get(path) for path in (f"/cases/{case}", "/", "/study", "/models")]
        for page in shown:
            assert page.status_code == 200
            assert SCRIPT not in page.text
            assert "<img src=x" not in page.text
            assert "lesion 49" not in page.text
            assert "script-src 'sha256-" in page.headers["content-security-policy"]
            assert "unsafe-inline'; script" in page.headers["content-security-policy"]  # for styles alone
        assert len(world.client().get("/v1/cases").json()["cases"]) == number + 1


def test_an_export_holds_no_formula(make_world):
    world = make_world(login=False, readers=1)
    case = world.add_case("ada", lesion='=HYPERLINK("http://evil","x")')
    world.read("local", case, "amber")
    archive = zipfile.ZipFile(io.BytesIO(world.client().get("/v1/export").content))
    assert "'=HYPERLINK" in archive.read("cases.csv").decode()


@pytest.mark.parametrize("text", ["a\x00b", "a\x1b[2Jb", "\ud800"])
def test_control_characters_are_refused(world, text):
    case = world.add_case()
    body = json.dumps({"label": "amber", "confidence": 3, "comment": text})
    answer = world.client("rita").post(
        f"/v1/cases/{case}/readings", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422


@pytest.mark.parametrize(
    "body",
    [
        "[" * 3000, '{"a":' * 2000, "NaN", '{"label": "amber", "confidence": NaN}',
        '{"label": "amber", "confidence": 1e999}',
        '{"label": "amber", "confidence": ' + "9" * 5000 + "}", '{"label": "\\ud800", "confidence": 3}',
        '{"label": "amber", "confidence": 3, "\\ud800": 1}', '{"label": "amber", "confidence": "\\ud800"}',
        '{"label": {"\\ud800": NaN}, "confidence": 3}', "\ufeff{}", '{"label": "amber", "label": "blue"',
    ],
    ids=range(12),
)  # fmt: skip
def test_json_that_python_reads_and_cannot_write_is_refused(world, body):
    """Depths, numbers and signs over which a server falls while it tells what was wrong with them."""
    case = world.add_case()
    answer = world.client("rita", raise_server_exceptions=False).post(
        f"/v1/cases/{case}/readings", content=body.encode(), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (400, 422)
    assert answer.json()["detail"]


# --- images


@pytest.mark.parametrize("data", NO_IMAGES)
def test_what_is_no_image_is_refused(world, data):
    answer = world.client("ada").post("/v1/cases", content=data, headers={"Content-Type": "image/png"})
    assert answer.status_code == 422
    assert world.client("ada").get("/v1/cases").json()["cases"] == []
    assert list(world.service.store.incoming.iterdir()) == []


def test_an_image_with_html_behind_it_comes_back_as_pixels_alone(world):
    case = world.add_case(data=picture() + SCRIPT.encode())
    answer = world.client("ada").get(f"/v1/cases/{case}/image")
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert SCRIPT.encode() not in answer.content


def test_place_and_names_are_stripped(world):
    exif = Image.Exif()
    exif[0x010E], exif[0x013B] = "Jane Doe, born 1960", "Dr Who"
    exif.get_ifd(0x8825)[2] = (48.0, 12.0, 30.0)
    data = picture(kind="JPEG", exif=exif, comment=b"patient 4711")
    assert b"Jane Doe" in data
    case = world.add_case(data=data)
    files = [path for path in world.service.store.root.rglob("*") if path.is_file()]
    assert len(files) >= 4
    for path in files:
        content = path.read_bytes()
        assert not any(word in content for word in (b"Jane Doe", b"Dr Who", b"patient 4711"))
    stored = Image.open(io.BytesIO(world.client("ada").get(f"/v1/cases/{case}/image").content))
    assert dict(stored.getexif()) == {}
    assert not stored.info.keys() & {"comment", "icc_profile", "exif", "xmp"}


def test_bombs_die_in_the_worker_and_the_server_goes_on(world, monkeypatch):
    rng = np.random.default_rng(0)
    bombs = [png(40_000, 40_000, b""), many_scans(rng)[1], png(2**31 - 1, 2**31 - 1, b"x")]
    for bomb in bombs:
        answer = world.client("ada").post("/v1/cases", content=bomb)
        assert answer.status_code == 422, answer.text
    assert world.client("ada").post("/v1/cases", content=picture()).status_code == 201


def test_an_image_that_asks_for_too_much_memory_is_refused(make_world, monkeypatch):
    monkeypatch.setenv("TDUMPRA_LIMITS", "image_memory=64e6")
    world = make_world()
    bomb = large_and_blank(np.random.default_rng(0))[1]
    answer = world.client("ada").post("/v1/cases", content=bomb)
    assert answer.status_code == 422
    assert world.client("ada").post("/v1/cases", content=picture()).status_code == 201


# --- loads


def test_too_many_requests_are_told_when_to_come_again(make_world):
    world = make_world(rate=0.5, burst=5)
    answers = [world.client("ada").get("/v1/models") for _ in range(8)]
    assert [each.status_code for each in answers] == [200] * 5 + [429] * 3
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert world.client("rita").get("/v1/models").status_code == 200  # only whoever asked too often


def test_logs_hold_no_names_and_no_ids(world, caplog):
    caplog.set_level(logging.INFO)
    case = world.add_case(lesion="Jane Doe")
    world.read("rita", case, "amber", comment="Mrs Doe again")
    world.browser("rita").get(f"/cases/{case}")
    world.client("ada").get(f"/v1/nothing/{case}?name=Doe")
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("tdumpra")]
    assert len(lines) >= 4
    text = "\n".join(lines)
    assert not any(word in text for word in ("Doe", case, "rita", PASSWORD, *world.tokens.values()))


def test_an_unforeseen_failure_tells_nothing(world, monkeypatch, caplog):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Jane Doe")

    monkeypatch.setattr("tdumpra.server.cases.listing", fail)
    answer = world.client("ada").get("/v1/cases")
    assert answer.status_code == 500
    assert "Doe" not in answer.text + caplog.text
    assert answer.headers["x-request-id"] in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


# --- writes that are sent twice


def test_old_answers_are_forgotten(world):
    """A key is remembered for some days, and then it is as if it had never been."""
    client, keys = world.client("ada"), [{"Idempotency-Key": name} for name in ("old", "new")]
    first, new = (client.post("/v1/cases", content=picture(), headers=each).json() for each in keys)
    with world.service.database.write() as session:
        session.execute(update(Answer).where(Answer.key == "old").values(created_at="2020-01-01"))
    client.post("/v1/cases", content=picture(), headers={"Idempotency-Key": "another"})
    again, still = (client.post("/v1/cases", content=picture(), headers=each).json() for each in keys)
    assert again != first
    assert still == new


def test_a_replayed_write_is_done_once(world):
    client, headers = world.client("ada"), {"Idempotency-Key": "k1"}
    first = client.post("/v1/cases", content=picture(), headers=headers)
    again = client.post("/v1/cases", content=picture(), headers=headers)
    assert first.json() == again.json()
    assert len(client.get("/v1/cases").json()["cases"]) == 1
    other = client.post("/v1/cases", content=picture("blue"), headers=headers)
    assert other.status_code == 409
    assert world.client("sam").post("/v1/cases", content=picture("blue"), headers=headers).status_code == 201


def test_a_form_sent_twice_counts_once(world):
    case, browser = world.add_case(), world.browser("rita")
    page = browser.get(f"/cases/{case}").text
    key = found(r'name="key" value="([0-9a-f]+)"', page)
    said = {"label": "amber", "confidence": "3", "comment": "", "key": key}
    assert [browser.post(f"/cases/{case}/reading", data=said).status_code for _ in range(2)] == [303, 303]
    assert len(world.client("ada").get(f"/v1/cases/{case}").json()["answers"]) == 1
