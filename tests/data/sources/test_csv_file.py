from __future__ import annotations

import os
import unicodedata

import pytest

from tdumpra.data.sources import open_source
from tdumpra.errors import BrokenImageError, SourceError


@pytest.fixture
def images(tmp_path, write_image):
    for number, name in enumerate(["a.jpg", "sub/b.jpg", "c.jpg", "d.jpg"]):
        write_image(tmp_path / name, seed=number)
    return tmp_path


def test_all_columns(images, write_table):
    table = write_table(
        images / "t.csv",
        [
            "image,label,group,split,id,sex,dx_type",
            f"{images / 'a.jpg'},mel,p1,train,A,male,histo",
            "sub/b.jpg,nv,p1,0,B,,histo",
            "c.jpg,nv,,TEST,C,female,follow_up",
            "d.jpg,mel,p2,,D,female,follow_up",
        ],
    )
    manifest = open_source(f"csv:{table}")
    assert manifest.class_names == ("mel", "nv")
    assert [r.id for r in manifest.records] == ["A", "B", "C", "D"]
    assert [r.group for r in manifest.records] == ["p1", "p1", "C", "p2"]
    assert [r.split for r in manifest.records] == ["train", "train", "test", None]
    assert [dict(r.meta) for r in manifest.records] == [{"sex": "male"}, {}, {"sex": "female"}, {"sex": "female"}]
    assert manifest.records[1].path == images / "sub" / "b.jpg"
    assert manifest.notes == ("'group' is empty in 1 of 4 rows: each is taken as a group of its own",)


def test_only_the_two_columns_with_semicolons_and_a_byte_order_mark(images):
    table = images / "t.csv"
    table.write_bytes("image;label\r\na.jpg;10\r\nc.jpg;9\r\n".encode("utf-8-sig"))
    manifest = open_source(f"csv:{table}")
    assert manifest.class_names == ("9", "10")
    assert manifest.notes == ("no column 'group': each image is taken as a group of its own",)


def test_any_column_may_group(images, write_table):
    table = write_table(images / "t.csv", ["image,label,patient_id", "a.jpg,mel,p", "c.jpg,nv,p"])
    grouped = open_source(f"csv:{table}", group_column="patient")
    assert (list(grouped.groups), grouped.notes) == (["p", "p"], ())
    note = open_source(f"csv:{table}").notes[1]
    assert "it holds 'patient_id' and no 'group': rename it if it names lesions or patients, or take it with" in note


@pytest.mark.parametrize("column", ["filename", "file", "path", "image_path"])
def test_the_column_of_files_has_several_usual_names(images, write_table, column):
    table = write_table(images / "t.csv", [f"{column},label,age", "a.jpg,mel,5", "c.jpg,nv,6"])
    manifest = open_source(f"csv:{table}")
    assert [r.path for r in manifest.records] == [images / "a.jpg", images / "c.jpg"]
    assert [dict(r.meta) for r in manifest.records] == [{"age": "5"}, {"age": "6"}]


def test_image_goes_before_other_columns_of_files(images, write_table):
    table = write_table(images / "t.csv", ["path,image,label,file", "x,a.jpg,mel,y", "x,c.jpg,nv,y"])
    assert [r.id for r in open_source(f"csv:{table}").records] == ["a.jpg", "c.jpg"]


@pytest.mark.parametrize("columns", ["age,label,sex", "file,label,path"])
def test_no_column_of_files_or_several_are_refused_with_the_usual_names(images, write_table, columns):
    table = write_table(images / "t.csv", [columns, "a.jpg,mel,c.jpg"])
    with pytest.raises(SourceError, match="filename, file, path, image_path"):
        open_source(f"csv:{table}")


@pytest.mark.skipif(os.name != "posix", reason="only POSIX has named pipes")
def test_a_pipe_in_a_table_is_a_broken_image(images, write_table):
    os.mkfifo(images / "pipe.jpg")
    manifest = open_source(f"csv:{write_table(images / 't.csv', ['image,label', 'a.jpg,mel', 'pipe.jpg,nv'])}")
    with pytest.raises(BrokenImageError):
        manifest.reader(manifest.records[1])


def test_paths_from_other_systems(images, write_image, write_table):
    write_image(images / unicodedata.normalize("NFD", "é.jpg"))
    table = write_table(images / "t.csv", ["image,label", "sub\\b.jpg,mel", unicodedata.normalize("NFC", "é.jpg,nv")])
    assert all(r.path is not None for r in open_source(f"csv:{table}").records)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["image,age,Class", "a.jpg,5,mel"], "no column 'label': rename 'Class'"),
        (["image,age", "a.jpg,5"], "no column 'label'"),
        (["image,label", "a.jpg,"], "line 2: the cell 'label'"),
        (["image,label", ",mel"], "line 2: the cell 'image'"),
        (["image,label", "a.jpg,mel", "a.jpg,nv"], r"more than once \(a\.jpg\)"),
        (["image,label", "a.jpg,mel", "no.jpg,nv"], r"1 of 2 .*no\.jpg"),
        (["image,label", "a.jpg,mel", f"{'x' * 5000}.jpg,nv"], r"1 of 2 .*\(xxx"),
        (["image,label", "a.jpg,mel", "c.jpg,Mel"], "has the classes 'Mel' and 'mel'"),
        (["image,label", "a.jpg,mel", "c.jpg,mel"], "holds the one class 'mel'"),
        (["image,label,split", "a.jpg,mel,tset"], "line 2: unknown split 'tset'"),
        (
            ["image,label,split", "a.jpg,mel,train", "c.jpg,nv,train", "d.jpg,nevus,test"],
            "'nevus' in test",
        ),
    ],
)
def test_bad_tables_are_refused_in_one_sentence(images, write_table, lines, sentence):
    table = write_table(images / "t.csv", lines)
    with pytest.raises(SourceError, match=sentence) as error:
        open_source(f"csv:{table}")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_missing_files_may_be_left_out(images, write_table):
    table = write_table(images / "t.csv", ["image,label", "a.jpg,mel", "c.jpg,nv", "no.jpg,nv"])
    manifest = open_source(f"csv:{table}", allow_missing=True)
    assert [r.id for r in manifest.records] == ["a.jpg", "c.jpg"]
    assert manifest.missing == ("no.jpg",)
