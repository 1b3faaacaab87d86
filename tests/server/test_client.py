"""The client against a server that listens: the whole way of a case, and what it does where the server is busy."""

from __future__ import annotations

import threading
import time
import zipfile
from collections.abc import Iterator

import pytest
import uvicorn
from served import free_port
from server_world import World, picture

from tdumpra.errors import InputFileError
from tdumpra.server.client import Client, ServerError
from tdumpra.server.run import listen
from tdumpra.server.settings import Settings


@pytest.fixture
def listening(make_world) -> Iterator[World]:
    """A server that can be reached, on a thread of this process."""
    world: World = make_world(port=free_port(), waiting=1)
    server = uvicorn.Server(uvicorn.Config(world.app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listen(world.service.settings)]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield world
    server.should_exit = True
    thread.join()


def client(world: World, name: str, **options: float) -> Client:
    return Client(world.service.settings.address, world.tokens[name], **{"tries": 1, **options})  # type: ignore[arg-type]


def test_the_way_of_a_case(listening, tmp_path):
    image = tmp_path / "image.png"
    image.write_bytes(picture())
    assert client(listening, "sam").predict(image, evidence=True, lesion="ü & 1")["evidence"]["group"] == "ü & 1"
    case = client(listening, "sam").add_case(image, lesion="ü & 1")["id"]
    assert client(listening, "ada").case(case)["lesion"] == "ü & 1"
    client(listening, "rita").read(case, "amber", confidence=2, comment="hm")
    client(listening, "rolf").read(case, "blue", confidence=5)
    assert [each["id"] for each in client(listening, "anna").cases("differing")["cases"]] == [case]
    client(listening, "anna").decide(case, "blue")
    assert client(listening, "anna").models()[0]["active"]
    archive = zipfile.ZipFile(client(listening, "anna").export(tmp_path / "cases.zip"))
    assert sorted(archive.namelist()) == ["cases.csv", f"images/{case}.png"]


def test_what_is_refused_is_told_with_its_status(listening, tmp_path):
    for name in ("../../etc", "0" * 32):
        with pytest.raises(ServerError, match="there is no") as refused:
            client(listening, "ada").case(name)
        assert refused.value.status == 404
    (tmp_path / "bad.png").write_bytes(b"x")
    with pytest.raises(ServerError, match="not taken"):
        client(listening, "ada").add_case(tmp_path / "bad.png")
    with pytest.raises(InputFileError, match="cannot read"):
        client(listening, "ada").add_case(tmp_path / "missing.png")


def test_a_busy_server_is_asked_again(listening, tmp_path):
    image = tmp_path / "image.png"
    image.write_bytes(picture())
    inference = listening.service.inference
    with inference.place(), inference.place():
        with pytest.raises(ServerError) as refused:
            client(listening, "sam").add_case(image)
        assert refused.value.status == 503
        found: list[dict[str, object]] = []
        patient = threading.Thread(target=lambda: found.append(client(listening, "sam", tries=30).add_case(image)))
        patient.start()
        time.sleep(0.5)
    patient.join()
    assert found[0]["number"] == 1


def test_a_server_that_is_not_there_and_an_address_that_is_none():
    with pytest.raises(ServerError, match="does not answer"):
        Client(f"http://127.0.0.1:{free_port()}", tries=1).models()
    with pytest.raises(ValueError, match="http"):
        Client("127.0.0.1:8000")


def test_a_port_that_is_taken_is_one_sentence():
    settings = Settings(port=free_port())
    with listen(settings), pytest.raises(InputFileError, match=f"--port {settings.port + 1}"):
        listen(settings)
