"""A PostgreSQL cluster of one's own, from Debian's packages, without the system's service."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from served import free_port

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
PASSWORD = "hush"


class Cluster:
    """A running cluster."""

    def __init__(self, folder: Path) -> None:
        self._bin, self._folder, self.port = PROGRAMS[-1], folder, free_port()
        self._user = None if os.getuid() else "postgres"  # PostgreSQL refuses to run as root
        self.url = f"postgresql://review:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            for path in (self._folder, secret):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        self._run("initdb", "-D", self._data, "-A", "scram-sha-256", "-U", "review", f"--pwfile={secret}", "-N")

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self._folder}"
        self._run("pg_ctl", "-D", self._data, "-o", options, "-l", str(self._folder / "log"), "-w", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-m", "fast", "-w", "stop")

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def _run(self, program: str, *words: str) -> None:
        options: dict[str, Any] = {} if self._user is None else {"user": self._user, "group": self._user}
        subprocess.run(
            [str(self._bin / program), *words], check=True, cwd=self._folder, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=120, **options,
        )  # fmt: skip


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster that runs, and ends with the block. ``folder`` must be reachable for the user ``postgres``."""
    made = Cluster(folder)
    made.make()
    made.start()
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)
