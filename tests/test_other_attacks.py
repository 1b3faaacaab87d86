"""Attacks of other kinds than damage: pipes, links, names, clocks and claims. `docs/reliability.md` tells of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tdumpra import PrototypeBank, seals
from tdumpra.artifacts import read_json, write_artifact, write_json
from tdumpra.data.images.cache import build
from tdumpra.data.images.framing import Framing
from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import FileReader
from tdumpra.data.sources.tables import read_table
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.foreign import open_npz
from tdumpra.method.output_files import read_outputs
from tdumpra.networks.checkpoint import RunFolderError, TrainingFiles
from tdumpra.report.kit import page_name
from tdumpra.runtime.description import BLANK, seal
from tdumpra.runtime.exported import read_exported
from tdumpra.scoring.folder import ScoreFolder
from tdumpra.scoring.listing import Entry, list_source
from tdumpra.writing import write_bytes
from tests.fuzz.sound_files import PLAN, description

posix = pytest.mark.skipif(os.name != "posix", reason="pipes and links of POSIX")
READERS: dict[str, Callable[[Path], object]] = {
    "bank": PrototypeBank.load,
    "table": read_table,
    "archive": lambda path: open_npz(path).__enter__(),
    "listed table": lambda path: list_source(str(path.rename(path.with_suffix(".parquet")))),
    "graph": lambda path: read_exported(path.rename(path.with_suffix(".onnx"))),
    "log": lambda path: TrainingFiles(path.rename(path.with_name("metrics.jsonl")).parent).read_metrics(),
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


@posix
def test_a_pipe_among_shards_and_parts_keeps_nobody_waiting(tmp_path):
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in" / "shard.tar")
    (entry,) = list_source(str(tmp_path / "in"))
    assert entry.problem
    job = ScoreFolder.join(tmp_path / "out", PLAN, lambda: [entry])
    os.mkfifo(tmp_path / "out" / "parts" / f"part-00000-{'0' * 16}.parquet")
    assert job.check().missing == [0]


def test_a_shard_that_leads_back_to_its_beginning_comes_to_an_end(tmp_path):
    """A member of a negative size: the next one begins where this one did, for ever."""
    member = tarfile.TarInfo("a.png")
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (-512).to_bytes(12, "big", signed=True)
    header[148:156] = b"        "
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    (tmp_path / "s.tar").write_bytes(bytes(header) + bytes(10240))
    (entry,) = list_source(str(tmp_path / "s.tar"))
    assert "damaged" in entry.problem


@pytest.mark.parametrize("read", [read_outputs, lambda path: list_source(str(path))])
def test_a_text_that_a_parquet_file_repeats_is_not_unfolded(tmp_path, read):
    """It stands in the file once, and a thousand times in memory."""
    path, text = tmp_path / "t.parquet", pa.array(["x" * 2**20])
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2000, np.int32)), text)
    pq.write_table(pa.table({"image": column, "y": np.zeros(2000)}), path)
    assert path.stat().st_size < 2**21
    before = pa.total_allocated_bytes()
    with pytest.raises(TdumpraError, match="unfold"):
        read(path)
    assert pa.total_allocated_bytes() - before < 2**26


@pytest.mark.parametrize("size", [0, -3, "3", None, 2.5])
def test_a_job_of_parts_without_images_is_not_complete(tmp_path, size):
    """Of no parts at all, each is there: a folder from elsewhere would pass as finished."""
    ScoreFolder.join(tmp_path, PLAN, lambda: [Entry("a.png", "a.png")])
    said = read_json(tmp_path / "plan.json", kind="scoring", schema=1)
    write_json(tmp_path / "plan.json", kind="scoring", schema=1, content={**said, "part_size": size})
    with pytest.raises(ArtifactError, match="part_size"):
        ScoreFolder.open(tmp_path)


@pytest.mark.parametrize("tag", [b"\x0a", b"\x8a\x00", b"\x8a\x80\x80\x00", b"\x8a\x80\x80\x80\x10"])
@pytest.mark.parametrize("length", [b"\x08", b"\x88\x00", b"\x88\x80\x00"])
def test_weights_outside_of_a_graph_are_found_however_they_are_written(tmp_path, tag, length):
    """Protobuf reads a number with useless bytes behind it as the same number, and of a field's only 32 bits."""
    path, said = tmp_path / "m.onnx", json.dumps(description()).encode()
    size = bytes([len(said) & 0x7F | 0x80, len(said) >> 7])
    blank = b"tdumpra_seal\x12\x40" + BLANK.encode()
    path.write_bytes(seal(b"tdumpra_model\x12" + size + said + blank))
    assert len(read_exported(path)) == 1
    path.write_bytes(seal(b"tdumpra_model\x12" + size + said + tag + length + b"location\x12\x09../secret" + blank))
    with pytest.raises(ArtifactError, match="another file"):
        read_exported(path)


@pytest.mark.parametrize("number", ["1" * 400, "1e400", "-1e999", "1" * 5000])
def test_numbers_that_no_float_can_hold_are_left_out_of_a_log(tmp_path, number):
    sound = '{"step": 1, "epoch": 0, "loss": 1.0, "cross_entropy": 1.0, "contrastive": 0.1, "images_per_second": 9.0}'
    (tmp_path / "metrics.jsonl").write_text(f"{sound}\n{sound.replace('9.0', number)}\n")
    assert len(TrainingFiles(tmp_path).read_metrics()) == 1


def test_a_journal_with_numbers_of_thousands_of_digits_is_made_again(tmp_path, write_image):
    framing = Framing(height=8, width=8)
    record = Record("image", write_image(tmp_path / "a.png", size=(12, 12)), 0, "group")
    manifest = Manifest("small", ("a", "b"), (record,), FileReader())
    build(manifest, tmp_path / "cache", framing)
    (journal,) = (tmp_path / "cache").rglob("journal.tsv")
    journal.write_text(f"{'a' * 16}\t{'9' * 5000}\t1\n{'b' * 16}\t1\t{'9' * 5000}\n")
    assert not build(manifest, tmp_path / "cache", framing).reasons


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
