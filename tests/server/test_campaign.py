"""Half an hour of kills: decoders every minute, the server every five. What was acknowledged is there once.

``TDUMPRA_MINUTES`` shortens it; the kills keep their share of the time.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from private_postgres import PROGRAMS, cluster
from served import Served
from server_world import picture
from sqlalchemy import func, select
from tests.campaigns.record import MINUTES, Tally

from tdumpra.server import audit
from tdumpra.server.client import Client, ServerError
from tdumpra.server.database import Database
from tdumpra.server.store import Store
from tdumpra.server.tables import Answer, Case, Reading

MINUTE = 60.0 * min(30.0, float(os.environ.get(MINUTES, "30"))) / 30  # of the campaign, which has 30 of them
NAMES = {"sqlite": "serve on SQLite", "postgresql": "serve on PostgreSQL"}
WRITERS = 4

pytestmark = pytest.mark.campaign


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder / 's' / 'cases.sqlite'}"
        return
    if not PROGRAMS:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    place = Path(tempfile.mkdtemp(prefix="tdumpra-postgres-"))
    place.chmod(0o755)
    with cluster(place) as running:
        yield running.url


class Writer(threading.Thread):
    """Adds cases and reads them, and remembers what was acknowledged."""

    def __init__(self, address: str, number: int, enough: threading.Event) -> None:
        super().__init__()
        self._client = Client(address, tries=600, seconds=30)
        self._number, self._enough = number, enough
        self.cases: list[str] = []
        self.readings: list[str] = []
        self.trouble: list[str] = []

    def run(self) -> None:
        place = Path(tempfile.mkdtemp()) / "image.png"
        for i in range(10**9):
            if self._enough.is_set():
                return
            place.write_bytes(picture("amber", 1_000_000 * self._number + i))
            try:
                case = self._client.add_case(place, lesion=f"{self._number}-{i}")["id"]
                self.cases.append(case)
                self.readings.append(self._client.read(case, "amber", confidence=3)["id"])
            except ServerError as error:
                self.trouble.append(str(error))


def resident(pid: int) -> int:
    """MiB of memory that a process holds."""
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


@pytest.mark.parametrize("kind", [*NAMES])
def test_what_was_acknowledged_is_there_once(kind, tmp_path, model_files):
    tally = Tally("kills", NAMES[kind])
    with database(kind, tmp_path) as url:
        server = Served(model_files[0], tmp_path / "s", "--database", url)
        server.start()
        enough = threading.Event()
        writers = [Writer(server.address, number, enough) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        try:
            kills, memory = torment(server)
        finally:
            enough.set()
            for writer in writers:
                writer.join()
        server.stop()
        found = count(url, tmp_path / "s", writers)
    assert [trouble for writer in writers for trouble in writer.trouble] == []
    assert kills == {"workers": 30, "servers": 6}
    assert found["faults"] == []
    assert max(memory) < 1.25 * min(memory)
    for _ in range(sum(kills.values())):
        tally.note("made again")
    tally.figures = {**kills, "cases": found["cases"], "readings": found["readings"], "MiB": memory}
    tally.finish()


def torment(server: Served) -> tuple[dict[str, int], list[int]]:
    """Kill a decoder every minute and the server every five; return how often, and what memory it held before."""
    kills, memory, rng = {"workers": 0, "servers": 0}, [], random.Random(0)
    for minute in range(1, 31):
        time.sleep(MINUTE)
        assert server.process is not None
        os.kill(rng.choice(server.workers()), signal.SIGKILL)
        kills["workers"] += 1
        if minute % 5 == 0:
            memory.append(resident(server.process.pid))
            server.kill()
            kills["servers"] += 1
            server.start()
    return kills, memory


def count(url: str, folder: Path, writers: list[Writer]) -> dict[str, Any]:
    """Compare what the writers were told with what is stored."""
    place = Database(url)
    with place.read() as session:
        cases = set(session.scalars(select(Case.id)))
        readings = set(session.scalars(select(Reading.id)))
        answers = session.scalar(select(func.count()).select_from(Answer))
        faults = [*audit.verify(session).faults, *audit.changed_images(session, Store(folder))]
    place.close()
    told = [each for writer in writers for each in writer.cases]
    said = [each for writer in writers for each in writer.readings]
    assert len(set(told)) == len(told)
    assert cases == set(told)  # none is missing, and none was made twice or without being told
    assert readings == set(said)
    assert answers == len(cases) + len(readings)
    return {"cases": len(cases), "readings": len(readings), "faults": faults}
