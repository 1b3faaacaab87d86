"""Read CSV tables: find the delimiter and the encoding, keep text as text, refuse a bad file in one sentence."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tdumpra.errors import SourceError, nearest
from tdumpra.foreign import cannot_read, reading, refuse_endless, refuse_large_table
from tdumpra.limits import refuse_above

if TYPE_CHECKING:
    import pandas as pd

_DELIMITERS = (",", ";", "\t", "|")
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")  # Excel's "Unicode text" starts with one of these


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a delimited text file as strings by column, with their line numbers."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    lines: tuple[int, ...]

    def where(self, row: int) -> str:
        """Return the place of a row for a message."""
        return f"{self.path.name}, line {self.lines[row]}"

    def require(self, names: Sequence[str]) -> None:
        """Raise ``SourceError`` unless all these columns exist."""
        for name in names:
            if name not in self.columns:
                has = ", ".join(map(repr, self.columns))
                raise SourceError(
                    f"{self.path} has no column {name!r}{nearest(name, self.columns)} (its columns are {has})"
                )


def read_table(path: Path, required: Sequence[str] = ()) -> Table:
    """Read a table that has at least the columns ``required``; strip blanks around cells and column names.

    A row with more or fewer cells than the header is refused: a stray delimiter would shift labels silently.
    """
    text, delimiter = _text_and_delimiter(path, required)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[dict[str, str]] = []
    lines: list[int] = []
    try:
        columns = tuple(name.strip() for name in next(reader, []))
        Table(path, columns, (), ()).require(required)
        if twice := [name for index, name in enumerate(columns) if name in columns[:index]]:
            raise SourceError(f"{path} has the column {twice[0]!r} twice: rename one of them")
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


def read_frame(path: Path, strings: Sequence[str] | None = None) -> pd.DataFrame:
    """Read a large table as a data frame. The columns ``strings``, by default all, stay text: 007 is not 7."""
    import pandas as pd  # takes a second to load, and most sources need none of it

    text, delimiter = _text_and_delimiter(path)
    kinds = str if strings is None else dict.fromkeys(strings, str)
    with reading(path, "table", SourceError):
        return pd.read_csv(io.StringIO(text), sep=delimiter, dtype=kinds)


def _text_and_delimiter(path: Path, required: Sequence[str] = ()) -> tuple[str, str]:
    """Decode the file; choose the delimiter that finds the most required columns, then the most columns."""
    refuse_endless(path, SourceError)
    try:
        if reason := refuse_above("table_bytes", path.stat().st_size, "bytes"):
            raise SourceError(f"{path}: {reason}")
        data = path.read_bytes()
    except OSError as error:
        raise cannot_read(f"the table {path}", error, SourceError) from error
    try:
        text = data.decode("utf-16" if data.startswith(_UTF16_MARKS) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 text (byte {error.start}): save it as CSV in UTF-8") from error
    if "\0" in text:
        raise SourceError(f"{path} is a binary file, not a table: save it as CSV in UTF-8")
    if not text.strip():
        raise SourceError(f"{path} is empty")

    def fit(delimiter: str) -> tuple[int, int]:
        try:
            header = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
        except csv.Error:  # a line of thousands of columns is too long for one, which it is to a wrong delimiter
            return 0, 0
        return len(set(required) & {name.strip() for name in header}), len(header)

    with reading(path, "table", SourceError):
        delimiter = max(_DELIMITERS, key=fit)
        refuse_large_table(path, rows=text.count("\n"), columns=fit(delimiter)[1], size=len(data))
    return text, delimiter
