"""A server as people start it: a process of its own, on a port of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

HELPERS = Path(__file__).parent
SOURCE = HELPERS.parents[1] / "src"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(SOURCE), str(HELPERS), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def command(*words: Any, **more: str) -> str:
    """Run a command to its end, and return what it printed."""
    call = [sys.executable, "-m", "tdumpra", *map(str, words)]
    done = subprocess.run(call, env={**environment(), **more}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Served:
    """A server's process; it can be killed and started again."""

    def __init__(self, model: Path, folder: Path, *options: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._call = [
            sys.executable, "-m", "tdumpra", "serve", str(model), "--folder", str(folder), "--port", str(self.port),
            "--trust-code", "tiny_networks:plain", *options,
        ]  # fmt: skip
        self.folder = folder
        self._log = folder.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._call, env=environment(), stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + 120
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(self._log.read_text())
            try:
                with urlopen(f"{self.address}/healthz", timeout=2):
                    return
            except (URLError, OSError):
                time.sleep(0.1)
        raise AssertionError(f"the server did not answer: {self._log.read_text()}")

    def workers(self) -> list[int]:
        """The processes below it that decode images."""
        assert self.process is not None
        below = _children(self.process.pid)
        return [grandchild for child in below for grandchild in _children(child)]

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it as an administrator would."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.kill()

    def json(self, path: str, data: bytes | None = None, **headers: str) -> Any:
        """Ask for JSON."""
        with urlopen(Request(self.address + path, data, headers), timeout=60) as answer:
            return json.load(answer)


@contextmanager
def served(*arguments: Any, **options: Any) -> Iterator[Served]:
    """A server that runs, and ends with the block."""
    server = Served(*arguments, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in found.read_text().split()] if found.exists() else []
