"""Read a table of images: ``image,label[,group][,split][,id][,mask]``, and any further columns as metadata.

The column of files may also be called ``filename``, ``file``, ``path`` or ``image_path``. Paths are absolute or
relative to the table, and may lead anywhere: whoever wrote the table chose them. Without a ``group`` each image is its
own group; an empty ``split`` leaves the choice to the protocol.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import is_there
from tdumpra.data.sources.finish import (
    SPLIT_WORDS,
    UNLABELLED,
    SourceOptions,
    class_order,
    finish,
    group_column,
    metadata,
    refuse_untrained_classes,
)
from tdumpra.data.sources.tables import Table, read_table
from tdumpra.errors import SourceError, nearest
from tdumpra.values import misnamed_group

IMAGE_COLUMNS = ("image", "filename", "file", "path", "image_path")
_LIKE_LABEL = frozenset({"class", "category", "diagnosis", "dx", "target"})  # likely, and too risky to guess


def read_csv(path: Path, options: SourceOptions) -> Manifest:
    """Read the images of a table in its order; classes are sorted by name (numbers by value)."""
    table = read_table(path)
    image = _image_column(table)
    for column in table.columns:
        if "label" not in table.columns and column.casefold() in _LIKE_LABEL:
            raise SourceError(f"{path} has no column 'label': rename {column!r} if it holds the classes")
    if not options.partial:
        table.require(("label",))
    for number, row in enumerate(table.rows):
        for column in (image,) if options.partial else (image, "label"):
            if not row[column]:
                raise SourceError(f"{table.where(number)}: the cell {column!r} is empty: fill it, or remove the row")
    names = class_order((row["label"] for row in table.rows if row.get("label")), path)
    by_group = group_column(options.group_column, "group", table.columns, path)
    records = [_record(table, number, image, names, by_group) for number in range(len(table.rows))]
    if not options.partial:
        refuse_untrained_classes(records, names, path)
    return finish("csv", path, names, records, options, notes=_group_notes(table, by_group))


def _image_column(table: Table) -> str:
    found = [name for name in IMAGE_COLUMNS if name in table.columns]
    if not found or (len(found) > 1 and found[0] != "image"):
        what = f"several columns of files ({', '.join(found)})" if found else "no column of image files"
        raise SourceError(
            f"{table.path} has {what}: call the one to read 'image' (alone, {', '.join(IMAGE_COLUMNS[1:])} will do "
            f"too); its columns are {', '.join(map(repr, table.columns))}"
        )
    return found[0]


def _group_notes(table: Table, by_group: str | None) -> tuple[str, ...]:
    """Say what weakens the leakage check: no column of groups, one under another name, empty cells."""
    if by_group is None:
        other = misnamed_group(table.columns)
        more = (f"{table.path}: {other}, or take it with --group-by (data.group_by)",) if other else ()
        return ("no column 'group': each image is taken as a group of its own", *more)
    empty = sum(not row[by_group] for row in table.rows)
    if not empty:
        return ()
    return (f"{by_group!r} is empty in {empty:,} of {len(table.rows):,} rows: each is taken as a group of its own",)


def _record(table: Table, number: int, column: str, class_names: tuple[str, ...], by_group: str | None) -> Record:
    row = table.rows[number]
    image = row.get("id") or row[column]
    mask = row.get("mask")
    return Record(
        id=image,
        path=_locate(row[column], table.path.parent),
        label=class_names.index(row["label"]) if row.get("label") else UNLABELLED,
        group=(row[by_group] if by_group else "") or image,
        split=_split(table, number),
        mask=_locate(mask, table.path.parent) if mask else None,
        meta=metadata(row, without=(column, "label", "group", "split", "id", "mask")),
    )


def _split(table: Table, number: int) -> str | None:
    word = table.rows[number].get("split", "")
    if word and word.lower() not in SPLIT_WORDS:
        hint = nearest(word, SPLIT_WORDS)
        raise SourceError(f"{table.where(number)}: unknown split {word!r}; use train, val or test{hint}")
    return SPLIT_WORDS[word.lower()] if word else None


def _locate(name: str, folder: Path) -> Path | None:
    """Find a file, also if the table was written with other slashes or another Unicode form (a Mac's)."""
    for written in (name, name.replace("\\", "/")):
        for form in (written, unicodedata.normalize("NFC", written), unicodedata.normalize("NFD", written)):
            if is_there(path := folder / form):
                return path
    return None
