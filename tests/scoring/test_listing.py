"""What is to be scored: folders, tables, shards and addresses, each image once and in a fixed order."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from tdumpra.errors import SourceError
from tdumpra.scoring.listing import CUT_SHORT, NO_FILE, NO_SHARD, list_source


def write_shard(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def pictures(tmp_path: Path, write_image: Callable[..., Path]) -> Path:
    for i, name in enumerate(("b.png", "a/c.jpg", "a/d.png")):
        write_image(tmp_path / "pictures" / name, seed=i)
    (tmp_path / "pictures" / "readme.txt").write_text("no image")
    return tmp_path / "pictures"


def test_a_folder_is_listed_by_relative_names(pictures):
    entries = list_source(str(pictures))
    assert [entry.id for entry in entries] == ["a/c.jpg", "a/d.png", "b.png"]
    assert all(Path(entry.file).is_file() and entry.start == -1 for entry in entries)


def test_a_shard_is_listed_by_bytes(tmp_path, pictures):
    data = {f"x/{i}.png": (pictures / "b.png").read_bytes() + bytes([i]) for i in range(3)}
    shard = write_shard(tmp_path / "s.tar", {**data, "x/0.txt": b"label", "x/._1.png": b"a Mac's"})
    entries = list_source(str(shard))
    assert [entry.id for entry in entries] == [f"s.tar/x/{i}.png" for i in range(3)]
    raw = shard.read_bytes()
    assert [raw[entry.start : entry.start + entry.size] for entry in entries] == list(data.values())


@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_a_shard_that_was_cut_keeps_what_is_whole_and_says_so(tmp_path, pictures, keep):
    picture = (pictures / "b.png").read_bytes()
    shard = write_shard(tmp_path / "s.tar", {f"{i}.png": picture for i in range(40)})
    whole = list_source(str(shard))
    end = int((whole[-1].start + whole[-1].size) * keep)
    shard.write_bytes(shard.read_bytes()[:end])
    entries = list_source(str(shard))
    problems = [entry for entry in entries if entry.problem]
    assert [entry.id for entry in problems] == ["s.tar"]
    listed = [entry for entry in entries if not entry.problem]
    assert 0 < len(listed) < 40
    assert listed == whole[: len(listed)]


def test_a_shard_cut_between_two_members_is_noticed(tmp_path, pictures):
    shard = write_shard(tmp_path / "s.tar", {f"{i}.png": (pictures / "b.png").read_bytes() for i in range(3)})
    third = list_source(str(shard))[2]
    shard.write_bytes(shard.read_bytes()[: third.start - 512])
    assert [entry.problem for entry in list_source(str(shard))] == ["", "", CUT_SHORT]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_names_files_and_ids(tmp_path, pictures, suffix):
    frame = pd.DataFrame({"image": ["pictures/b.png", "pictures/a/c.jpg"], "id": ["first", "second"]})
    path = tmp_path / f"list{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    assert [(entry.id, Path(entry.file).name) for entry in list_source(str(path))] == [
        ("first", "b.png"),
        ("second", "c.jpg"),
    ]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_row_of_a_table_without_a_file_is_listed_with_its_reason(tmp_path, suffix):
    path = tmp_path / f"list{suffix}"
    frame = pd.DataFrame({"image": ["a.png", None, None], "id": ["x", "y", None], "note": "z"})
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    assert [(each.id, each.problem) for each in list_source(str(path))] == [
        ("x", ""), ("y", NO_FILE), ("row 3", NO_FILE)
    ]  # fmt: skip


def test_whole_numbers_stay_whole_as_ids(tmp_path):
    path = tmp_path / "list.parquet"
    pyarrow.parquet.write_table(pa.table({"image": ["a.png", "b.png"], "id": [7, None]}), path)
    assert [entry.id for entry in list_source(str(path))] == ["7", "b.png"]


def test_two_columns_of_one_name_are_refused(tmp_path):
    path = tmp_path / "list.parquet"
    pyarrow.parquet.write_table(pa.table([["a.png"], ["b.png"]], names=["image", "image"]), path)
    with pytest.raises(SourceError, match="two columns 'image'"):
        list_source(str(path))


def test_a_column_of_numbers_names_no_files(tmp_path):
    pd.DataFrame({"image": [1, 2]}).to_parquet(tmp_path / "list.parquet")
    with pytest.raises(SourceError, match="no file's name"):
        list_source(str(tmp_path / "list.parquet"))


def test_names_inside_a_shard_may_be_anything(tmp_path, pictures):
    names = ["../../x.png", "/y.png", "new\nline.png", "z" * 100_000 + ".png", "\udcff.png", "ü😀.png"]
    data = (pictures / "b.png").read_bytes()
    path = write_shard(tmp_path / "s.tar", dict.fromkeys(names, data))
    entries = list_source(str(path))
    assert [entry.id for entry in entries] == [f"s.tar/{name}" for name in names[:4]] + [
        "s.tar/\\udcff.png", "s.tar/ü😀.png",
    ]  # fmt: skip
    for entry in entries:
        entry.id.encode()
        assert path.read_bytes()[entry.start :][: entry.size] == data


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux")
def test_a_path_that_is_no_text_is_told(tmp_path, pictures):
    strange = tmp_path / os.fsdecode(b"\xff.png")
    shutil.copy(pictures / "b.png", strange)
    with pytest.raises(SourceError, match="not valid UTF-8"):
        list_source(str(strange))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
def test_a_pipe_at_an_address_is_not_waited_for(tmp_path, pictures):
    pytest.importorskip("fsspec")
    os.mkfifo(pictures / "pipe.tar")
    (entry,) = [each for each in list_source(f"file://{pictures}") if each.problem]
    assert (entry.id, entry.problem) == ("pipe.tar", NO_SHARD)


def test_an_address_is_listed_like_a_folder(pictures):
    entries = list_source(f"file://{pictures}")
    assert [entry.id for entry in entries] == ["a/c.jpg", "a/d.png", "b.png"]
    assert all(entry.file.startswith("file://") for entry in entries)


def test_the_same_id_twice_is_refused(tmp_path, write_table):
    table = write_table(tmp_path / "list.csv", ["image,id", "a.png,x", "b.png,x"])
    with pytest.raises(SourceError, match="'x' stands there twice"):
        list_source(str(table))


@pytest.mark.parametrize(
    ("name", "content"), [("list.csv", "file_of_mine\na.png\n"), ("note.txt", "x"), ("none.tar", "")]
)
def test_what_cannot_be_listed_is_refused_in_a_sentence(tmp_path, name, content):
    if content:
        (tmp_path / name).write_text(content)
    with pytest.raises(SourceError, match=name):
        list_source(str(tmp_path / name))


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(SourceError, match="holds no image"):
        list_source(str(tmp_path))
