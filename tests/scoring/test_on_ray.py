"""Scoring on Ray: the rows of the local engine to the bit, whatever dies between."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray_machines import SETTINGS, Machines, foreign_cluster, two_machines
from tiny_models import make_model
from tiny_runs import colours, embed_run, settings

from tdumpra.data.images.framing import Framing
from tdumpra.data.images.new import Framed
from tdumpra.errors import BrokenImageError, SourceError
from tdumpra.limits import VARIABLE
from tdumpra.scoring.folder import ScoreFolder
from tdumpra.scoring.listing import Entry
from tdumpra.scoring.on_ray import LOST, _in_a_sentence
from tdumpra.scoring.ray_worker import decode

HELPERS = Path(__file__).parents[1] / "helpers"
NETWORK = "tiny_networks:slow"
PATIENCE = 300


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
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    with two_machines(monkeypatch) as started:
        yield started


def words(model: Path, archive: Path, out: Path) -> list[object]:
    return ["score", model, archive, "--out", out, "--part-size", "3", "--embeddings", "--trust-code", NETWORK]


def on_ray(arguments: list[object], monkeypatch: pytest.MonkeyPatch) -> subprocess.CompletedProcess[str]:
    """Run a command on a cluster of this machine alone."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, sys.path), str(HELPERS)]))
    command = [sys.executable, "-m", "tdumpra", *map(str, arguments), "--engine", "ray", "--json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


def titles_below(process: int) -> set[str]:
    """Return what the processes that a process started, and those that these did, call themselves."""
    parents, titles = dict[int, int](), dict[int, str]()
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                titles[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    family = {process}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return {titles[each] for each in family if each in titles}


@pytest.mark.services
@pytest.mark.filterwarnings("default")  # Ray has warnings of its own
def test_a_killed_machine_costs_its_open_parts_alone(tdumpra, tmp_path, model, archive, machines):
    command = [*words(model, archive, tmp_path / "ray"), "--engine", "ray", "--address", machines.address]
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
    machines.kill_second()
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


@pytest.mark.services
def test_ray_on_this_machine_goes_on_where_the_local_engine_stopped(tdumpra, tmp_path, model, archive, monkeypatch):
    out, whole = tmp_path / "out", tmp_path / "whole"
    assert tdumpra(*words(model, archive, whole)).code == 0
    assert tdumpra(*words(model, archive, out), "--shard", "1/2").code == 0
    done = on_ray(words(model, archive, out), monkeypatch)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["complete"]  # and Ray prints nothing of its own there
    assert sorted(path.name for path in (out / "parts").iterdir()) == sorted(
        path.name for path in (whole / "parts").iterdir()
    )


@pytest.mark.services
def test_actors_that_decode_for_others_change_no_bit(tdumpra, tmp_path, model, archive, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, sys.path), str(HELPERS)]))
    command = [*words(model, archive, tmp_path / "ray"), "--engine", "ray", "--decoders", "2"]
    log, seen = tmp_path / "log", set[str]()
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "tdumpra", *map(str, command)], stdout=file, stderr=file)
    while process.poll() is None:
        seen |= titles_below(process.pid)
        time.sleep(0.02)
    assert process.returncode == 0, log.read_text()
    assert any(title.startswith("ray::Decoder") for title in seen), seen

    assert tdumpra(*words(model, archive, tmp_path / "local")).code == 0
    local, ray = (
        {path.name: path.read_bytes() for path in (tmp_path / name / "parts").iterdir()} for name in ("local", "ray")
    )
    assert len(local) == 21
    assert ray == local


@pytest.mark.services
@pytest.mark.parametrize("theirs", ["none", "another"])
def test_a_cluster_that_is_open_or_has_another_token_gets_nothing(
    tdumpra, tmp_path, model, archive, monkeypatch, theirs
):
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    kept = {} if theirs == "none" else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    with foreign_cluster(**kept) as address:
        done = on_ray([*words(model, archive, tmp_path / "out"), "--address", address], monkeypatch)
    assert done.returncode == 2, done.stderr
    assert "token" in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out" / "parts").iterdir())


@pytest.mark.services
def test_what_a_worker_has_to_say_comes_as_a_sentence(tdumpra, tmp_path, model, archive, monkeypatch):
    assert tdumpra(*words(model, archive, tmp_path / "out"), "--shard", "1/2").code == 0
    archive.rename(tmp_path / "elsewhere")  # as on a machine that does not see it
    done = on_ray(words(model, archive, tmp_path / "out"), monkeypatch)
    assert done.returncode == 2
    assert "same path" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(list((tmp_path / "out" / "parts").iterdir())) == 11


@pytest.mark.services
def test_what_became_of_a_cluster_is_told():
    exceptions = pytest.importorskip("ray").exceptions
    lost = _in_a_sentence(SimpleNamespace(exceptions=exceptions), exceptions.LocalRayletDiedError())
    died = _in_a_sentence(SimpleNamespace(exceptions=exceptions), exceptions.WorkerCrashedError())
    assert str(lost) == LOST
    assert "5 times" in str(died)


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


@pytest.mark.parametrize(
    "options",
    [
        ("--engine", "spark"),
        ("--address", "node-a:6379"),
        ("--decoders", "2"),
        ("--engine", "ray", "--decoders", "0"),
    ],
)
def test_options_that_do_not_fit_are_told(tdumpra, tmp_path, model, archive, options):
    done = tdumpra(*words(model, archive, tmp_path / "out"), *options)
    assert done.code == 2
    assert not (tmp_path / "out").exists()


def test_a_task_decodes_in_order_and_says_what_it_cannot(archive):
    entries = [Entry(name, str(archive / name)) for name in ("01.png", "no.png", "gone.png", "02.png")]
    entries.append(Entry("cut.tar", str(archive / "cut.tar"), problem="the shard ends too early"))
    small = Framing(height=8, width=8)
    found = list(decode(entries, (small, small), str(archive)))
    assert [type(each) for each in found] == [Framed, BrokenImageError, BrokenImageError, Framed, BrokenImageError]
    assert str(found[-1]) == "the shard ends too early"


def test_the_limits_of_the_job_hold_on_every_machine(archive, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    small, entry = Framing(height=8, width=8), Entry("01.png", str(archive / "01.png"))
    assert isinstance(next(decode([entry], (small, small), str(archive))), Framed)
    (refused,) = decode([entry], (small, small), str(archive), "image_bytes=10")
    assert "10" in str(refused)


def test_a_machine_that_does_not_see_the_images_refuses(archive, tmp_path):
    small = Framing(height=8, width=8)
    with pytest.raises(SourceError, match="same path"):
        next(decode([Entry("01.png", str(archive / "01.png"))], (small, small), str(tmp_path / "elsewhere")))
