"""A Ray cluster of two machines with a core each, on this one; and one of a single machine, which others started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "f" * 64,
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
_ROOM = {"num_cpus": 1, "object_store_memory": 2**27}
_SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 10}
_SECOND = "127.0.0.2"  # of its own, or commands here may join the cluster by that machine, and be lost with it


class Machines:
    """The cluster, of which the second machine can be killed."""

    def __init__(self, *, alone: bool = False) -> None:
        from ray.cluster_utils import Cluster

        head: dict[str, Any] = {**_ROOM, "include_dashboard": False, "_system_config": _SOON}
        self.cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self.cluster.address
        if not alone:
            self.add()

    def add(self) -> None:
        """Start the second machine."""
        self.second = self.cluster.add_node(**_ROOM, node_ip_address=_SECOND)

    def kill_second(self) -> None:
        """Kill the second machine."""
        self.cluster.remove_node(self.second, allow_graceful=False)

    def workers(self) -> list[int]:
        """Return the processes that work for the cluster at the moment; a machine dies with its agents."""
        raylets = {str(node.all_processes["raylet"][0].process.pid) for node in self.cluster.list_all_nodes()}
        found = []
        for place in Path("/proc").iterdir():
            if place.name.isdecimal():
                try:
                    parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
                    words = (place / "cmdline").read_bytes()
                except OSError:  # it has ended
                    continue
                if parent in raylets and words.startswith(b"ray::") and b"Agent" not in words:
                    found.append(int(place.name))
        return found


@contextmanager
def two_machines(monkeypatch: Any) -> Iterator[Machines]:
    """Start both, with what commands need to join them in the environment."""
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parent)]))
    machines = Machines()
    try:
        yield machines
    finally:
        machines.cluster.shutdown()


_STAND = "from ray_machines import Machines; one = Machines(alone=True); print(one.address, flush=True); input()"


@contextmanager
def foreign_cluster(**settings: str) -> Iterator[str]:
    """Start a cluster of one machine that knows nothing of this process and its token; yield its address."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", **settings}
    environment["PYTHONPATH"] = os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parent)])
    with subprocess.Popen(
        [sys.executable, "-c", _STAND], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
