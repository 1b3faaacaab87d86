"""A server in this process: a tiny model, a folder of its own, and people with roles who ask it things."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from tdumpra.server.accounts import add_account, add_token
from tdumpra.server.app import make_app
from tdumpra.server.service import Service, open_service
from tdumpra.server.settings import Settings

TRUSTED = ("tiny_networks:plain",)
ADDRESS = "http://127.0.0.1:8000"
PASSWORD = "correct horse battery"
ROLES = {"ada": "admin", "rita": "reader", "rolf": "reader", "anna": "adjudicator", "sam": "service"}
COLOURS = {"amber": (200, 120, 40), "blue": (60, 60, 180), "cyan": (60, 180, 180)}


def picture(colour: str = "amber", seed: int = 0, *, kind: str = "PNG", size: int = 32, **options: Any) -> bytes:
    """The file of an image like those that the tiny model was trained on."""
    noise = np.random.default_rng(seed).normal(0, 40, (size, size, 3))
    pixels = (np.array(COLOURS[colour]) + noise).clip(0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


@dataclass
class World:
    """A server, and how its people reach it."""

    service: Service
    app: Any
    tokens: dict[str, str] = field(default_factory=dict)

    def client(self, name: str | None = None, **options: Any) -> TestClient:
        """A program that acts for somebody; without a name, for nobody."""
        client = TestClient(self.app, base_url=ADDRESS, follow_redirects=False, **options)
        if name is not None and self.tokens:
            client.headers["Authorization"] = f"Bearer {self.tokens[name]}"
        return client

    def browser(self, name: str) -> TestClient:
        """A browser in which somebody is logged in."""
        client = TestClient(self.app, base_url=ADDRESS, follow_redirects=False)
        client.headers |= {"Origin": ADDRESS, "Accept": "text/html"}
        if self.service.local is None:
            answer = client.post("/login", data={"name": name, "password": PASSWORD})
            assert answer.status_code == 303, answer.text
        return client

    def add_case(self, name: str = "ada", data: bytes | None = None, **query: str) -> str:
        """Add an image, and return the id of its case."""
        answer = self.client(name).post("/v1/cases", content=data or picture(), params=query)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def read(self, name: str, case: str, label: str, **more: Any) -> Any:
        """Give somebody's reading."""
        said = {"label": label, "confidence": 4, **more}
        return self.client(name).post(f"/v1/cases/{case}/readings", json=said)

    def decide(self, name: str, case: str, label: str) -> Any:
        """Give somebody's decision."""
        return self.client(name).post(f"/v1/cases/{case}/decisions", json={"label": label})


def open_world(folder: Path, models: list[Path], *, login: bool = True, **settings: Any) -> World:
    """Open a server with one account of each kind, or a local one without logins."""
    chosen: Mapping[str, Any] = {"threads": 1, "readers": 2 if login else 1, "blind": login, **settings}
    service = open_service(Settings(folder=folder, login=login, **chosen), models, trusted=TRUSTED)
    world = World(service, make_app(service))
    if login:
        with service.database.write() as session:
            for name, role in ROLES.items():
                add_account(session, name, role, None if role == "service" else PASSWORD)
                world.tokens[name] = add_token(session, name)
    return world
