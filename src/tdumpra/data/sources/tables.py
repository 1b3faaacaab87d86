"""Reading the tables that come with a data set: whatever a spreadsheet may have done to them, or a sentence."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tdumpra.errors import SourceError
from tdumpra.screen import nearest

DELIMITERS = (",", ";", "\t", "|")

_OTHER_NAMES = {  # what people call the columns that every table needs
    "image": ("filename", "file", "file_name", "filepath", "path", "image_path", "image_id", "img"),
    "label": ("class", "category", "diagnosis", "dx", "target"),
}
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")  # what Excel's "Unicode text" begins with


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a delimited text file, each a mapping from column to text, with the file's line numbers."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    lines: tuple[int, ...]

    def where(self, row: int) -> str:
        """The place of a row, for a message."""
        return f"{self.path.name}, line {self.lines[row]}"


def read_table(path: Path, required: Sequence[str]) -> Table:
    """Read a table that has at least the columns ``required``; the delimiter and a byte-order mark are found out.

    Cells and column names lose the blanks around them. A row with more or fewer cells than the header has is refused:
    a stray delimiter would shift labels silently.
    """
    text = _decode(path)
    delimiter = _delimiter(text, required)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[dict[str, str]] = []
    lines: list[int] = []
    try:
        columns = tuple(name.strip() for name in next(reader, []))
        _check_columns(path, columns, required)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue  # a blank line
            if len(cells) != len(columns):
                raise SourceError(
                    f"{path.name}, line {reader.line_num}, has {len(cells)} cells where the header has {len(columns)}: "
                    f"put quotes around a cell that holds {delimiter!r}"
                )
            rows.append(dict(zip(columns, (cell.strip() for cell in cells), strict=True)))
            lines.append(reader.line_num)
    except csv.Error as error:
        raise SourceError(f"{path.name}, line {reader.line_num}, is not readable as a table: {error}") from error
    if not rows:
        raise SourceError(f"{path} has a header and no rows")
    return Table(path, columns, tuple(rows), tuple(lines))


def _decode(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(f"cannot read the table {path}: {error.strerror or error}") from error
    encoding = "utf-16" if data.startswith(_UTF16_MARKS) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 text (byte {error.start}): save it as CSV in UTF-8") from error
    if "\0" in text:
        raise SourceError(f"{path} is a binary file, not a table: save it as CSV in UTF-8")
    if not text.strip():
        raise SourceError(f"{path} is empty")
    return text


def _delimiter(text: str, required: Sequence[str]) -> str:
    """The delimiter under which the header has the required columns; failing that, the one with most columns."""

    def fit(delimiter: str) -> tuple[int, int]:
        header = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
        return len(set(required) & {name.strip() for name in header}), len(header)

    return max(DELIMITERS, key=fit)


def _check_columns(path: Path, columns: Sequence[str], required: Sequence[str]) -> None:
    for name in required:
        if name not in columns:
            has = ", ".join(repr(column) for column in columns)
            other = next((column for column in columns if column.casefold() in _OTHER_NAMES.get(name, ())), None)
            hint = nearest(name, columns) if other is None else f"; rename {other!r} if that is meant"
            raise SourceError(f"{path} has no column {name!r}{hint} (its columns are {has})")
    twice = [name for index, name in enumerate(columns) if name in columns[:index]]
    if twice:
        raise SourceError(f"{path} has the column {twice[0]!r} twice: rename one of them")
