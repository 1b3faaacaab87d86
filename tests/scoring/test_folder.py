"""The folder of a scoring job: parts are whole or not there, and the check sees what is missing."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tdumpra.artifacts import read_json
from tdumpra.errors import ArtifactError, UnreadableError
from tdumpra.scoring.folder import Part, Plan, ScoreFolder, merge_folders
from tdumpra.scoring.listing import Entry

PLAN = Plan(
    model="m" * 16, class_names=("a", "b"), source="images", engine="torch", mode="lazy", embeddings=False, part_size=3
)
ENTRIES = [Entry(f"{i}.png", f"images/{i}.png") for i in range(8)]  # in parts of 3, 3 and 2


def joined(path: Path, plan: Plan = PLAN, entries: Sequence[Entry] = ENTRIES) -> ScoreFolder:
    return ScoreFolder.join(path, plan, lambda: entries)


def write(folder: ScoreFolder, *parts: Part) -> None:
    for part in parts:
        ids = [entry.id for entry in folder.entries_of(part)]
        folder.write_part(part, pa.table({"id": ids, "error": pa.array([None] * len(ids), pa.string())}))


def test_a_folder_is_complete_when_every_part_is_there(tmp_path):
    folder = joined(tmp_path)
    first, *others = folder.parts()
    write(folder, first)
    checked = folder.check()
    assert (checked.complete, checked.rows, checked.missing) == (False, 3, [1, 2])
    write(folder, *others)
    checked = folder.check()
    assert (checked.complete, checked.rows, checked.inputs) == (True, 8, 8)
    folder.write_manifest(checked)
    manifest = read_json(tmp_path / "manifest.json", kind="scored", schema=1)
    assert [part["rows"] for part in manifest["parts"]] == [3, 3, 2]


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_shards_share_the_parts_out(tmp_path, shards):
    folder = joined(tmp_path)
    shared = [part.number for i in range(shards) for part in folder.parts(i + 1, shards)]
    assert sorted(shared) == [0, 1, 2]


def test_a_part_with_one_flipped_bit_is_missing(tmp_path):
    folder = joined(tmp_path)
    write(folder, *folder.parts())
    path = folder.finished()[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert folder.finished().keys() == {0, 2}
    checked = folder.check()
    assert (checked.missing, checked.damaged) == ([1], [path])
    write(folder, folder.parts()[1])
    assert folder.check().complete


def test_a_part_that_the_disk_does_not_give_is_not_scored_again(tmp_path, monkeypatch):
    folder = joined(tmp_path)
    write(folder, *folder.parts())

    def fail(path: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(UnreadableError, match="Input/output error"):
        folder.unfinished(folder.parts())


def test_a_part_under_another_number_or_of_another_job_does_not_count(tmp_path):
    folder, other = joined(tmp_path / "one"), joined(tmp_path / "other", replace(PLAN, mode="eager"))
    write(folder, *folder.parts())
    write(other, *other.parts())
    own, strange = folder.finished(), other.finished()[2]
    own[1].unlink()
    own[0].rename(own[0].with_name(own[0].name.replace("part-00000", "part-00001")))
    own[2].unlink()
    shutil.copy(strange, folder.path / "parts" / strange.name)
    checked = folder.check()
    assert (checked.missing, len(checked.damaged), checked.rows) == ([0, 1, 2], 2, 0)


def test_two_processes_may_write_the_same_part(tmp_path):
    folder, again = joined(tmp_path), joined(tmp_path)
    write(folder, *folder.parts())
    write(again, *again.parts())
    assert len(list((tmp_path / "parts").iterdir())) == 3
    assert again.check().rows == 8


def test_rows_that_are_there_twice_are_noticed(tmp_path):
    folder = joined(tmp_path)
    write(folder, *folder.parts())
    ids = [entry.id for entry in ENTRIES[:3]]
    folder.write_part(folder.parts()[0], pa.table({"id": ids, "error": ["other bits", None, None]}))
    beyond = tmp_path / "parts" / f"part-00007-{'0' * 16}.parquet"
    beyond.write_bytes(b"of nobody")
    first, second = sorted((tmp_path / "parts").glob("part-00000-*"))
    checked = folder.check()
    assert (checked.missing, checked.surplus, checked.complete) == ([], [second, beyond], False)
    assert checked.parts[0] == folder.finished()[0] == first


def test_a_part_of_another_job_is_scored_again(tmp_path):
    folder, other = joined(tmp_path / "one"), joined(tmp_path / "other", replace(PLAN, mode="eager"))
    write(folder, *folder.parts(1, 2))
    write(other, *other.parts())
    strange = other.finished()[1]
    shutil.copy(strange, folder.path / "parts" / strange.name)
    assert [part.number for part in folder.unfinished(folder.parts())] == [1]


def test_a_manifest_that_is_right_is_left_alone(tmp_path):
    folder = joined(tmp_path)
    write(folder, *folder.parts())
    folder.write_manifest(folder.check())
    manifest = tmp_path / "manifest.json"
    before = manifest.stat()
    folder.write_manifest(folder.check())
    assert manifest.stat().st_ino == before.st_ino
    manifest.write_text("{}")
    folder.write_manifest(folder.check())
    assert read_json(manifest, kind="scored", schema=1)["rows"] == 8


@pytest.mark.parametrize(
    ("plan", "what"), [(replace(PLAN, model="n" * 16), "model"), (replace(PLAN, part_size=4), "part size")]
)
def test_another_job_in_the_same_folder_is_refused(tmp_path, plan, what):
    joined(tmp_path)
    with pytest.raises(ArtifactError, match=f"another job: {what}"):
        joined(tmp_path, plan)


def test_the_list_of_the_first_process_counts(tmp_path):
    joined(tmp_path)
    assert [entry.id for entry in joined(tmp_path, entries=ENTRIES[:2]).entries] == [entry.id for entry in ENTRIES]


def test_an_altered_list_is_refused(tmp_path):
    joined(tmp_path)
    path = tmp_path / "listing.parquet"
    path.write_bytes(path.read_bytes().replace(b"7.png", b"9.png"))
    with pytest.raises(ArtifactError, match=r"listing\.parquet"):
        ScoreFolder.open(tmp_path)


def test_folders_that_machines_filled_apart_are_joined(tmp_path):
    machines = [joined(tmp_path / f"m{i}") for i in range(2)]
    for i, folder in enumerate(machines):
        write(folder, *folder.parts(i + 1, 2))
    merged = merge_folders([folder.path for folder in machines], tmp_path / "all")
    assert merged.check().complete
    other = joined(tmp_path / "x", entries=ENTRIES[:5]).path
    with pytest.raises(ArtifactError, match="another job"):
        merge_folders([machines[0].path, other], tmp_path / "more")
    assert not (tmp_path / "more").exists()
    with pytest.raises(ArtifactError, match="the list of images differs"):
        merge_folders([machines[0].path], other)


def test_a_folder_without_a_job_is_told(tmp_path):
    with pytest.raises(ArtifactError, match=r"no plan\.json"):
        ScoreFolder.open(tmp_path)
