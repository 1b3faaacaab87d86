"""The command ``score``: it can be killed at any moment, and says what is complete."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from tiny_models import make_model
from tiny_runs import colours, embed_run, settings

from tdumpra.cli.score_commands import parse_shard
from tdumpra.scoring.folder import ScoreFolder

HELPERS = Path(__file__).parents[1] / "helpers"
TRUST = ("--trust-code", "tiny_networks:plain")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config, data = settings(), colours()
    root = tmp_path_factory.mktemp("run")
    make_model(config, data, embed_run(config, root, data)).write(root / "model.safetensors")
    return root / "model.safetensors"


@pytest.fixture
def archive(tmp_path: Path, write_image: Callable[..., Path]) -> Path:
    for i in range(24):
        write_image(tmp_path / "archive" / f"{i:02d}.png", seed=i)
    return tmp_path / "archive"


def test_score_then_check(tdumpra, tmp_path, model, archive):
    out = tmp_path / "scores"
    done = tdumpra("score", model, archive, "--out", out, "--part-size", "10", *TRUST)
    assert done.code == 0, done.err
    assert "24 of 24 images" in done.out
    assert json.loads((out / "manifest.json").read_text())["rows"] == 24
    checked = tdumpra("score", "--check", "--out", out, "--json")
    assert (checked.code, json.loads(checked.out)["complete"]) == (0, True)


def test_shards_fill_a_folder_together(tdumpra, tmp_path, model, archive):
    out = tmp_path / "scores"
    for shard in ("1/2", "2/2"):
        tdumpra("score", model, archive, "--out", out, "--part-size", "10", "--shard", shard, *TRUST)
        code = tdumpra("score", "--check", "--out", out).code
        assert code == (2 if shard == "1/2" else 0)


def test_rows_that_are_there_twice_are_told_and_removed(tdumpra, tmp_path, model, archive):
    out = tmp_path / "scores"
    words = ("score", model, archive, "--out", out, "--part-size", "10", *TRUST)
    assert tdumpra(*words).code == 0
    first = next((out / "parts").glob("part-00000-*"))
    double = first.with_name(f"part-00000-{'f' * 16}.parquet")
    double.write_bytes(first.read_bytes()[:100])
    checked = tdumpra("score", "--check", "--out", out)
    assert (checked.code, "twice" in checked.err) == (2, True)
    assert not (out / "manifest.json").exists()
    assert tdumpra(*words).code == 0
    assert not double.exists()
    assert len(pd.read_parquet(out / "parts")) == 24
    assert (out / "manifest.json").exists()


def test_machines_fill_folders_of_their_own(tdumpra, tmp_path, model, archive):
    for i in (1, 2):
        out = tmp_path / str(i)
        tdumpra("score", model, archive, "--out", out, "--part-size", "10", "--shard", f"{i}/2", *TRUST)
    done = tdumpra("score", "--merge", tmp_path / "1", "--merge", tmp_path / "2", "--out", tmp_path / "all")
    assert done.code == 0, done.err
    assert ScoreFolder.open(tmp_path / "all").check().rows == 24


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few parts, which :func:`enlarge` makes larger."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    asked = [mount or "", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(place)]
    if mount is None or sys.platform != "linux" or subprocess.run(asked, capture_output=True).returncode:
        pytest.skip("only root mounts disks")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)


def test_a_full_disk_loses_nothing(tdumpra, tmp_path, model, archive, small_disk):
    words = ["score", model, archive, "--part-size", "4", *TRUST]
    out, whole = small_disk / "scores", tmp_path / "whole"
    assert tdumpra(*words, "--out", whole).code == 0
    full = tdumpra(*words, "--out", out)
    assert full.code == 2
    assert "No space left" in full.err
    assert "Traceback" not in full.err
    there = {path.name: path.stat().st_mtime_ns for path in (out / "parts").glob("*.parquet")}
    assert 0 < len(there) < 6
    checked = tdumpra("score", "--check", "--out", out, "--json")
    assert (checked.code, len(json.loads(checked.out)["missing"])) == (2, 6 - len(there))

    enlarge(small_disk)
    assert tdumpra(*words, "--out", out).code == 0
    assert tdumpra("score", "--check", "--out", out).code == 0
    assert there.items() <= {path.name: path.stat().st_mtime_ns for path in (out / "parts").iterdir()}.items()
    for name in ("parts", "."):
        ours, theirs = (
            {p.name: p.read_bytes() for p in (each / name).iterdir() if p.suffix in (".parquet", ".json")}
            for each in (out, whole)
        )
        assert ours == theirs


def test_a_killed_process_loses_its_open_part_alone(tdumpra, tmp_path, model, archive):
    out = tmp_path / "scores"
    command = [sys.executable, "-m", "tdumpra", "score", model, archive, "--out", out, "--part-size", "4", *TRUST]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(HELPERS)])}
    process = subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.DEVNULL)
    parts = out / "parts"
    deadline = time.monotonic() + 120
    while not (parts.is_dir() and any(parts.glob("*.parquet"))) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path.name: path.stat().st_mtime_ns for path in parts.glob("*.parquet")}
    assert before
    assert tdumpra(*command[3:]).code == 0
    assert {name: (parts / name).stat().st_mtime_ns for name in before} == before
    checked = ScoreFolder.open(out).check()
    assert (checked.complete, checked.rows) == (True, 24)


@pytest.mark.parametrize("text", ["0/8", "9/8", "3", "1/0", "-1/2", "١/٢", "9" * 5000 + "/" + "9" * 5000])
def test_shards_count_from_one(text):
    with pytest.raises(ValueError, match="counts from 1"):
        parse_shard(text)


@pytest.mark.parametrize(
    "words",
    [
        ("score",),
        ("score", "--check"),
        ("score", "model.safetensors", "--out", "x"),
        ("score", "m", "a", "--check", "--out", "x"),
    ],
)
def test_a_call_that_makes_no_sense_is_told(tdumpra, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    done = tdumpra(*words)
    assert done.code == 2
    assert "score" in done.err or "--out" in done.err
    assert not list(tmp_path.iterdir())
