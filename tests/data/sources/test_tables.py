from __future__ import annotations

from pathlib import Path

import pytest

from tdumpra.data.sources.tables import read_frame, read_table
from tdumpra.errors import SourceError


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_delimiters_byte_order_marks_and_line_ends_are_found_out(tmp_path, delimiter, encoding, newline):
    text = newline.join([f"image{delimiter} label ", f"a.jpg{delimiter} mél ", "", f"b.jpg{delimiter}nv", ""])
    table = read_table(write(tmp_path / "t.csv", text.encode(encoding)), ("image", "label"))
    assert table.columns == ("image", "label")
    assert table.rows == ({"image": "a.jpg", "label": "mél"}, {"image": "b.jpg", "label": "nv"})
    assert table.where(1) == "t.csv, line 4"  # the blank line counts


def test_a_quoted_cell_may_hold_the_delimiter(tmp_path):
    table = read_table(write(tmp_path / "t.csv", b'image,label\n"a,1.jpg",mel\n'), ("image", "label"))
    assert table.rows[0]["image"] == "a,1.jpg"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is empty"),
        (b"image,label\n", "no rows"),
        (b"Image,label\na,b\n", r"no column 'image'; did you mean 'Image'"),
        (b"image;class\na;b\n", "no column 'label'"),
        (b"image,label,label\na,b,c\n", "has the column 'label' twice"),
        (b"image,label\na,b,c\n", "line 2, has 3 cells"),
        (b"image,label\na\n", "line 2, has 1 cells"),
        (b'image,label\n"a,b\n', "line 2, is not readable as a table"),
        (b"image,label\ncaf\xe9.jpg,b\n", r"not UTF-8 text \(byte 15\)"),
        (b"PK\x03\x04\x00\x00", "binary file"),
    ],
)
def test_an_unreadable_table_is_refused_in_one_sentence(tmp_path, data, sentence):
    with pytest.raises(SourceError, match=sentence) as error:
        read_table(write(tmp_path / "t.csv", data), ("image", "label"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_frame_keeps_text_where_it_is_asked_to(tmp_path, delimiter, encoding):
    text = "\n".join(delimiter.join(cells) for cells in (["id", "p_0"], ["007", "0.5"], ["010", "0.25"]))
    path = write(tmp_path / "t.csv", text.encode(encoding))
    assert read_frame(path, strings=("id", "absent")).to_dict("list") == {"id": ["007", "010"], "p_0": [0.5, 0.25]}
    assert read_frame(path).to_dict("list") == {"id": ["007", "010"], "p_0": ["0.5", "0.25"]}


@pytest.mark.parametrize("data", [b"", b"a,b\n1,2,3\n4,5\n6,7,8,9\n", b"caf\xe9,b\n1,2\n", b"PK\x03\x04\x00\x00"])
def test_an_unreadable_frame_is_refused(tmp_path, data):
    with pytest.raises(SourceError):
        read_frame(write(tmp_path / "t.csv", data))


def test_a_table_that_is_not_there(tmp_path):
    with pytest.raises(SourceError, match=r"none\.csv: No such file"):
        read_table(tmp_path / "none.csv", ())
