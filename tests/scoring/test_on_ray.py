"""Scoring on Ray: the rows of the local engine to the bit, whatever dies between."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_model
from tiny_runs import colours, embed_run, settings

from tdumpra.data.images.framing import Framing
from tdumpra.data.images.new import Framed
from tdumpra.errors import BrokenImageError, SourceError
from tdumpra.scoring.folder import ScoreFolder
from tdumpra.scoring.listing import Entry
from tdumpra.scoring.ray_worker import decode

HELPERS = Path(__file__).parents[1] / "helpers"
NETWORK = "tiny_networks:slow"
PATIENCE = 180


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config, data = settings(NETWORK, epochs=1), colours()
    root = tmp_path_factory.mktemp("run")
    make_model(config, data, embed_run(config, root, data)).write(root / "model.safetensors")
    return root / "model.safetensors"


@pytest.fixture
def archive(tmp_path: Path, write_image: Callable[..., Path]) -> Path:
    for i in range(60):
        write_image(tmp_path / "archive" / f"{i:02d}.png", seed=i)
    (tmp_path / "archive" / "no.png").write_text("no picture")
    return tmp_path / "archive"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head and a second machine with a core each, which ask for a token."""
    path = os.pathsep.join([*filter(None, sys.path), str(HELPERS)])
    for name, value in {
        "PYTHONPATH": path, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64, "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    from ray.cluster_utils import Cluster

    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
    room = {"num_cpus": 1, "object_store_memory": 2**27}
    machines = Cluster(
        initialize_head=True, head_node_args={**room, "include_dashboard": False, "_system_config": soon}
    )
    try:
        machines.second = machines.add_node(**room)
        yield machines
    finally:
        machines.shutdown()


def words(model: Path, archive: Path, out: Path) -> list[object]:
    return ["score", model, archive, "--out", out, "--part-size", "3", "--embeddings", "--trust-code", NETWORK]


@pytest.mark.services
@pytest.mark.filterwarnings("default")  # Ray has warnings of its own
def test_a_killed_machine_costs_its_open_parts_alone(tdumpra, tmp_path, model, archive, cluster):
    command = [*words(model, archive, tmp_path / "ray"), "--engine", "ray", "--address", cluster.address]
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tdumpra", *map(str, command)], stdout=file, stderr=subprocess.STDOUT
        )
    parts, deadline = tmp_path / "ray" / "parts", time.monotonic() + PATIENCE
    while len(list(parts.glob("*.parquet"))) < 3:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.01)
    cluster.remove_node(cluster.second, allow_graceful=False)
    before = {path.name: path.stat().st_mtime_ns for path in parts.glob("*.parquet")}
    assert len(before) < 21
    assert process.wait(PATIENCE) == 0, log.read_text()
    assert {name: (parts / name).stat().st_mtime_ns for name in before} == before

    assert tdumpra(*words(model, archive, tmp_path / "local")).code == 0
    checked = ScoreFolder.open(tmp_path / "ray").check()
    assert (checked.complete, checked.rows, checked.broken.total()) == (True, 61, 1)
    for path in sorted((tmp_path / "local" / "parts").iterdir()):
        assert (parts / path.name).read_bytes() == path.read_bytes()
    assert len(list(parts.glob("*.parquet"))) == 21
    manifests = [(tmp_path / name / "manifest.json").read_bytes() for name in ("ray", "local")]
    assert manifests[0] == manifests[1]


def test_a_cluster_is_joined_with_a_token_alone(tdumpra, tmp_path, model, archive, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    done = tdumpra(*words(model, archive, tmp_path / "out"), "--engine", "ray", "--address", "node-a:6379")
    assert done.code == 2
    assert "RAY_AUTH_TOKEN" in done.err
    assert not (tmp_path / "out").exists()


def test_a_machine_without_ray_is_told_how_to_get_it(tdumpra, tmp_path, model, archive, monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED", "RAY_BACKEND_LOG_LEVEL"):
        monkeypatch.setenv(name, "")
    monkeypatch.setitem(sys.modules, "ray", None)
    done = tdumpra(*words(model, archive, tmp_path / "out"), "--engine", "ray")
    assert done.code == 2
    assert "tdumpra[ray]" in done.err


@pytest.mark.parametrize("options", [("--engine", "spark"), ("--address", "node-a:6379")])
def test_options_that_do_not_fit_are_told(tdumpra, tmp_path, model, archive, options):
    done = tdumpra(*words(model, archive, tmp_path / "out"), *options)
    assert done.code == 2
    assert not (tmp_path / "out").exists()


def test_a_task_decodes_in_order_and_says_what_it_cannot(archive):
    entries = [Entry(name, str(archive / name)) for name in ("01.png", "no.png", "gone.png", "02.png")]
    entries.append(Entry("cut.tar", str(archive / "cut.tar"), problem="the shard ends too early"))
    small = Framing(height=8, width=8)
    found = decode(entries, (small, small), str(archive))
    assert [type(each) for each in found] == [Framed, BrokenImageError, BrokenImageError, Framed, BrokenImageError]
    assert str(found[-1]) == "the shard ends too early"


def test_a_machine_that_does_not_see_the_images_refuses(archive, tmp_path):
    small = Framing(height=8, width=8)
    with pytest.raises(SourceError, match="same path"):
        decode([Entry("01.png", str(archive / "01.png"))], (small, small), str(tmp_path / "elsewhere"))
