"""Attacks of other kinds than damage: pipes, links, names, clocks and claims. `docs/reliability.md` tells of each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tdumpra import PrototypeBank, seals
from tdumpra.artifacts import write_artifact, write_bytes
from tdumpra.data.sources.tables import read_table
from tdumpra.errors import TdumpraError
from tdumpra.foreign import open_npz
from tdumpra.method.output_files import read_outputs
from tdumpra.networks.checkpoint import RunFolderError, TrainingFiles
from tdumpra.report.kit import page_name

posix = pytest.mark.skipif(os.name != "posix", reason="pipes and links of POSIX")
READERS: dict[str, Callable[[Path], object]] = {
    "bank": PrototypeBank.load,
    "table": read_table,
    "archive": lambda path: open_npz(path).__enter__(),
    "key": seals.read_key,
    "sealed": lambda path: seals.seal_file(path, bytes(32)),
}


@posix
@pytest.mark.parametrize("name", READERS)
def test_a_pipe_without_a_writer_keeps_nobody_waiting(tmp_path, name):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(TdumpraError, match="pipe or a device"):
        READERS[name](path)


@posix
@pytest.mark.parametrize("name", READERS)
def test_a_device_without_an_end_is_not_read(tmp_path, name):
    path = tmp_path / "endless"
    path.symlink_to("/dev/zero")
    with pytest.raises(TdumpraError, match="pipe or a device"):
        READERS[name](path)


def test_an_archive_that_holds_an_array_twice_is_refused(tmp_path):
    """One program reads the first, another the last: what was checked may not be what is used."""
    path = tmp_path / "twice.npz"
    np.savez(path, allow_pickle=False, y=np.arange(3))
    with zipfile.ZipFile(path) as archive:
        member = archive.read("y.npy")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y.npy", member)
    with pytest.raises(TdumpraError, match="twice"):
        read_outputs(path)


@posix
@pytest.mark.parametrize("write", [lambda path: write_bytes(path, b"new"), lambda path: write_artifact(
    path, kind="bank", schema=1, tensors={"a": torch.ones(1)}, meta={})])  # fmt: skip
def test_a_link_in_place_of_an_artefact_is_replaced_and_not_followed(tmp_path, write):
    victim, out = tmp_path / "victim", tmp_path / "run"
    victim.write_bytes(b"mine")
    out.mkdir()
    (out / "model.safetensors").symlink_to(victim)
    write(out / "model.safetensors")
    assert victim.read_bytes() == b"mine"
    assert not (out / "model.safetensors").is_symlink()


@posix
def test_a_log_that_is_a_link_is_not_written_to(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / "run").mkdir()
    files = TrainingFiles(tmp_path / "run")
    files.metrics.symlink_to(victim)
    with pytest.raises(RunFolderError):
        files.append_metrics({"step": 1, "epoch": 0})
    assert victim.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/passwd", "..", "", "a/b\\c", "con", "x" * 5000, "a\0b", "\u202egnp.exe", "ｅvil/../x"]
)
def test_no_id_leads_out_of_the_folder_of_pages(name):
    page = page_name(name)
    assert Path(page).name == page
    assert page.endswith(".html")
    assert len(page.encode()) < 256


def test_ids_that_look_alike_have_pages_of_their_own():
    alike = ["é", "e\u0301", "A", "a", "А", "a ", "a/", "a_", "K", "\u212a"]  # a Cyrillic A, a sign for kelvin
    pages = [page_name(name) for name in alike]
    assert len(set(pages)) == len(alike)


def test_a_clock_that_was_set_back_leaves_no_temporary_file_for_ever(tmp_path):
    left = tmp_path / ".model.safetensors.abcd1234.part"
    left.write_bytes(b"half")
    os.utime(left, (time.time() + 10**6,) * 2)
    write_bytes(tmp_path / "model.safetensors", b"whole")
    assert not left.exists()


def test_a_table_of_a_million_columns_is_refused_by_its_header(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text(",".join(f"p_{i}" for i in range(10**6)) + "\n" + "0," * (10**6 - 1) + "0\n")
    started = time.process_time()
    with pytest.raises(TdumpraError, match="table_columns"):
        read_outputs(path)
    assert time.process_time() - started < 20


@posix
def test_names_of_any_script_survive_a_plain_locale(tmp_path, write_image, write_table):
    """A terminal that knows ASCII alone shows what it can."""
    rows = [f"{write_image(tmp_path / f'{i}.png', seed=i).name},{name}" for i, name in enumerate(("皮膚", "naïve"))]
    write_table(tmp_path / "labels.csv", ["image,label", *rows])
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    command = [sys.executable, "-m", "tdumpra", "data", "inspect", f"csv:{tmp_path / 'labels.csv'}"]
    done = subprocess.run(command, env=plain, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert b"na\\xefve" in done.stdout
