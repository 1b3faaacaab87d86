"""Run a function in two processes that train together."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import child_processes

from tdumpra.runs.config import Config

TWO: dict[str, Any] = {"devices": 2, "batch_size": 8}


def run_two(target: Any, config: Config, root: Path) -> None:
    """Run ``target`` as torchrun would: one process per rank, told by the environment who it is."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [child_processes.start(as_rank, target, rank, port, config, root) for rank in range(2)]
    assert [child_processes.finish(process) for process in ranks] == [0, 0]


def as_rank(target: Any, rank: int, port: int, config: Config, root: Path) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="test",
    )  # fmt: skip
    target(rank, config, root)
