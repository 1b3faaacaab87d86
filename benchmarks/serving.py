"""Requests a second of a server with eight clients, against a bare loop of the same network in this process.

The server is a process of its own, as people start it; the clients run here and share the machine with it. The bare
loop neither decodes nor answers: it runs one prepared image after the other through the network, on all cores, or on
one and counted for each of them, whichever is faster. The server joins up to four images that wait; the loop runs one
at a time, as whoever writes such a loop for requests would. Both are measured in turns, and the best of each counts. It
needs a quiet machine.
"""

from __future__ import annotations

import http.client
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from benchmarks.common import Row
from benchmarks.lazy_predict import photographs, two_networks
from tdumpra.data.images.workers import available_cores
from tdumpra.networks.predict import Predictor
from tdumpra.server.client import Client

CLIENTS, SECONDS, TURNS = 8, 10.0, 3
GOAL = 0.7
CORES = available_cores()


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = photographs(folder)[:64]
        model = two_networks()
        (folder / "run").mkdir()
        model.write(folder / "run" / "model.safetensors")
        images = [path.read_bytes() for path in paths]
        predictor, bare, served = Predictor(model, device="cpu"), 0.0, []
        with _Server(folder) as server:
            _load(server.port, images, 3.0)  # warm
            for _ in range(TURNS):
                bare = max(bare, _bare_loop(predictor, 1) * CORES, _bare_loop(predictor, CORES))
                served.append(_load(server.port, images, SECONDS))
    rate = max(each[0] for each in served)
    worst = statistics.median(each[1] for each in served)
    return [
        Row(
            name=f"serving, {CLIENTS} clients, requests a second against a bare loop", ours=rate, peer=bare,
            ratio=rate / bare, goal=f"≥ {GOAL:g} ×", met=rate / bare >= GOAL, unit="/s",
            against=f"batches of one on {CORES} cores; p99 of the server {1000 * worst:.0f} ms",
        )
    ]  # fmt: skip


def _bare_loop(predictor: Predictor, threads: int) -> float:
    """Images a second of the classifier alone, one at a time."""
    torch.set_num_threads(threads)
    network, transform = predictor._classifier, predictor.model.classifier.transform
    pixels = transform(torch.zeros(1, transform.framing.height, transform.framing.width, 3, dtype=torch.uint8))
    n, start = 0, time.perf_counter()
    with torch.inference_mode():
        while time.perf_counter() - start < SECONDS / 2:
            network(pixels)
            n += 1
    return n / (time.perf_counter() - start)


class _Server:
    """``tdumpra serve`` on a free port."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        call = ["serve", str(folder / "run"), "--folder", str(folder / "serve"), "--port", str(self.port)]
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tdumpra", *call], stdout=self._log, stderr=self._log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def __enter__(self) -> _Server:
        Client(f"http://127.0.0.1:{self.port}", tries=120).models()  # waits until it answers
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._log.close()


def _load(port: int, images: list[bytes], seconds: float) -> tuple[float, float]:
    """Requests a second, and the time within which 99 of 100 were answered."""
    times: list[float] = []
    until = time.perf_counter() + seconds

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for i in range(number, 10**9):
            start = time.perf_counter()
            if start >= until:
                break
            connection.request("POST", "/v1/predict", images[i % len(images)])
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                times.append(time.perf_counter() - start)
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(times) / (time.perf_counter() - start), sorted(times)[int(0.99 * (len(times) - 1))]
