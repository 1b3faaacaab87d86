"""Two machines that torchrun joins, each with a folder of its own: the result of one process, whatever dies between."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tdumpra.networks.checkpoint import is_finished, read_networks
from tdumpra.runs.folder import RunFolder

pytestmark = [
    pytest.mark.services,  # starts ten processes that load torch
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
EPOCHS = 6
CONFIG = f"""
name = "two"
[data]
source = "synthetic:n=60,size=32"
cache = "cache"
framing = {{height = 16, width = 16}}
workers = 0
[network]
backbone = "tiny_networks:slow"
weights = "none"
image_size = 16
embedding = 8
[train]
epochs = {EPOCHS}
batch_size = 16
nodes = 2
accelerator = "cpu"
deterministic = true
"""
PATIENCE = 300


class Node:
    """A machine: torchrun, and the process that it starts, with a folder and an address of their own."""

    def __init__(self, root: Path, number: int, port: int) -> None:
        self.root, self.number, self.port = root / f"machine-{number}", number, port
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "two.toml").write_text(CONFIG)
        self.folder = RunFolder(self.root / "out")
        self.start()

    def start(self) -> None:
        """Start torchrun, as somebody at that machine would, or its scheduler.

        The variable lets a torchrun that was started again find the others: without it, they tell their address once.
        """
        first = str(self.number == 0).lower()
        words = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts",
            "3", "--rdzv-id", "two", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}",
            "--rdzv-conf", f"is_host={first}", "--local-addr", f"127.0.0.{self.number + 1}",
            "-m", "tdumpra", "train", "two.toml", "--out", "out",
        ]  # fmt: skip
        names = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        path = os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parents[1] / "helpers")])
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(
                words, cwd=self.root, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, **names},
            )  # fmt: skip

    def trainer(self) -> int:
        """Return the number of the process that trains."""
        (child,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(child)

    def die(self) -> None:
        """Kill everything on this machine at once."""
        trainer = self.trainer()
        for each in (self.process.pid, trainer):
            os.kill(each, signal.SIGKILL)
        self.process.wait()

    def log(self) -> str:
        return (self.root / "log").read_text(errors="replace")[-3000:]

    def end(self) -> None:
        assert self.process.wait(PATIENCE) == 0, self.log()


@pytest.fixture
def two_nodes(tmp_path):
    started: list[Node] = []

    def start(name: str) -> list[Node]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        nodes = [Node(tmp_path / name, number, port) for number in range(2)]
        started.extend(nodes)
        return nodes

    yield start
    for node in started:
        if node.process.poll() is None:
            os.killpg(node.process.pid, signal.SIGTERM)  # torchrun ends its processes
            node.process.wait(30)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def weights(node: Node) -> dict[str, torch.Tensor]:
    last = node.folder.checkpoint("last")
    assert is_finished(last)
    return read_networks(last).student


def test_two_machines_train_as_one_process_does_and_go_on_after_a_kill(two_nodes, tmp_path, tdumpra, monkeypatch):
    whole = two_nodes("whole")
    for node in whole:
        node.end()

    first, second = two_nodes("killed")
    last = first.folder.checkpoint("last")
    wait_for(last.exists, "no checkpoint was written")
    os.kill(second.trainer(), signal.SIGKILL)  # torchrun starts both processes again
    before = last.read_bytes()
    wait_for(lambda: last.read_bytes() != before, f"nobody goes on: {first.log()} {second.log()}")
    second.die()
    assert not is_finished(last)
    second.start()
    for node in (first, second):
        node.end()
    assert weights(first).keys() == weights(whole[0]).keys()
    for name, tensor in weights(whole[0]).items():
        assert torch.equal(weights(first)[name], tensor), name

    monkeypatch.chdir(tmp_path)
    done = tdumpra("train", whole[0].root / "two.toml", "--set", "train.nodes=1", "--out", tmp_path / "alone" / "out")
    assert done.code == 0, done.err
    alone = read_networks(RunFolder(tmp_path / "alone" / "out").checkpoint("last")).student
    for name, tensor in weights(whole[0]).items():
        torch.testing.assert_close(tensor, alone[name], rtol=0, atol=1e-5)
