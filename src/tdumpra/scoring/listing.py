"""List what is to be scored: a folder, a table, tar shards, or any of these at an address that fsspec opens.

A listing says for each image under which name its row goes into the results, in which file it lies, and, inside a
shard, between which bytes. It is made once, and every process of a job works on the same one.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pandas as pd

from tdumpra.data.sources.csv_file import IMAGE_COLUMNS
from tdumpra.data.sources.files import is_file, is_image, walk_files
from tdumpra.data.sources.tables import read_table
from tdumpra.errors import MissingExtraError, SourceError
from tdumpra.foreign import open_parquet, reading
from tdumpra.limits import refuse_above

_TABLES = {".csv", ".tsv", ".parquet"}
_SHARD = ".tar"
_END_OF_ARCHIVE = 1024  # zero bytes with which every tar file ends
NO_FILE = "the table names no file"
NO_SHARD = "the shard is no file"
CUT_SHORT = "the shard ends too early: what lay behind is lost"


class Entry(NamedTuple):
    """One image to score."""

    id: str
    file: str  # a path or an address
    start: int = -1  # of its bytes inside a shard; -1: the file itself
    size: int = -1
    problem: str = ""  # why it cannot be read, where that is known already


def is_address(source: str) -> bool:
    """Return whether ``source`` is an address (``s3://…``) rather than a path."""
    return "://" in source


def list_source(source: str) -> list[Entry]:
    """Return the images of a source in a fixed order.

    Raises:
        SourceError: there is no image, the source cannot be read, or a name stands there twice.
    """
    entries = list(_remote(source) if is_address(source) else _local(Path(source)))
    if not entries:
        raise SourceError(f"{source} holds no image{', or cannot be reached' if is_address(source) else ''}")
    seen: set[str] = set()
    for entry in entries:
        if not _is_text(entry.id) or not _is_text(entry.file):
            raise SourceError(f"{source}: the name {entry.id!r} or the path to it is not valid UTF-8: rename it")
        if entry.id in seen:
            raise SourceError(
                f"{source}: the id {entry.id!r} stands there twice, and each row needs its own: rename one, or give "
                "the table a column 'id'"
            )
        seen.add(entry.id)
    return entries


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _local(path: Path) -> Iterator[Entry]:
    if path.is_dir():
        root = path.resolve()
        for file in walk_files(root, root, recursive=True):
            name = file.relative_to(root).as_posix()
            if file.suffix == _SHARD:
                yield from _local_shard(file, name)
            elif is_image(file):
                yield Entry(name, str(file))
    elif path.suffix.lower() in _TABLES:
        yield from _table(path)
    elif path.suffix == _SHARD and path.is_file():
        yield from _local_shard(path.resolve(), path.name)
    elif path.is_file() and is_image(path):
        yield Entry(path.name, str(path.resolve()))
    elif path.exists():
        raise SourceError(f"{path} is no image, no folder, no table ({', '.join(sorted(_TABLES))}) and no .tar shard")
    else:
        raise SourceError(f"{path} does not exist")


def _local_shard(path: Path, name: str) -> Iterator[Entry]:
    if not is_file(path):  # a pipe would be waited for
        yield Entry(name, str(path), problem=NO_SHARD)
        return
    with open(path, "rb") as opened:
        yield from _shard(opened, str(path), name)


def _shard(opened: BinaryIO, file: str, name: str) -> Iterator[Entry]:
    """List the images of a tar file, with the bytes between which each lies; its order is kept."""
    end = 0
    try:
        with tarfile.open(fileobj=opened, mode="r:") as archive:
            for member in archive:
                if member.size < 0 or member.offset_data < end:  # it leads back, and round and round
                    raise tarfile.ReadError(f"the size of {member.name!r} is {member.size}")
                end = member.offset_data + -(-member.size // 512) * 512
                if member.isreg() and is_image(Path(member.name)) and not Path(member.name).name.startswith("."):
                    own = member.name.encode(errors="backslashreplace").decode()  # nobody can rename it there
                    if reason := refuse_above("image_bytes", member.size, "bytes"):
                        yield Entry(f"{name}/{own}", file, problem=reason)
                    else:
                        yield Entry(f"{name}/{own}", file, member.offset_data, member.size)
    except (tarfile.TarError, OSError, ValueError) as error:
        yield Entry(name, file, problem=f"the shard is damaged: {error}")
        return
    if opened.seek(0, 2) < end + _END_OF_ARCHIVE:
        yield Entry(name, file, problem=CUT_SHORT)


def _table(path: Path) -> Iterator[Entry]:
    for number, (place, own) in enumerate(_rows(path)):
        if not place:
            yield Entry(own or f"row {number + 1}", "", problem=NO_FILE)
            continue
        file = place if is_address(place) else str(path.resolve().parent / place)
        yield Entry(own or place, file)


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the file and the id of each row, empty where a cell is."""
    if path.suffix.lower() == ".parquet":
        columns = _read_parquet(path)
        column = _file_column(path, tuple(columns))
        files = columns[column]
        pairs: Iterable[tuple[Any, Any]] = zip(files, columns.get("id", [""] * len(files)), strict=True)
    else:
        table = read_table(path)
        column = _file_column(path, table.columns)
        pairs = ((row[column], row.get("id", "")) for row in table.rows)
    for number, (place, own) in enumerate(pairs):
        if not isinstance(place, str) and not _is_empty(place):
            raise SourceError(f"{path}, row {number + 1}: the cell {column!r} is {place!r} and no file's name")
        yield "" if _is_empty(place) else place, "" if _is_empty(own) else str(own)


def _is_empty(cell: Any) -> bool:
    return pd.api.types.is_scalar(cell) and bool(pd.isna(cell))


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    """Return the columns that matter, as they are: in pandas, whole numbers beside an empty cell get a point."""
    with open_parquet(path, SourceError) as table:
        names = [name for name in table.names if name in (*IMAGE_COLUMNS, "id")]
        if twice := [name for name in names if names.count(name) > 1]:
            raise SourceError(f"{path} has two columns {twice[0]!r}: rename one")
        loaded = table.load(names)
        return {name: loaded[name].to_pylist() for name in names}


def _file_column(path: Path, columns: tuple[str, ...]) -> str:
    for name in IMAGE_COLUMNS:
        if name in columns:
            return name
    raise SourceError(f"{path} has no column of image files: call it {IMAGE_COLUMNS[0]!r}")


def open_filesystem(address: str) -> tuple[Any, str]:
    """Return fsspec's file system for an address, and the path in it."""
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtraError("fsspec", "remote", f"reading {address}") from error
    with reading(address, "address", SourceError):
        system, path = fsspec.core.url_to_fs(address)
    return system, str(path)


def _remote(address: str) -> Iterator[Entry]:
    system, root = open_filesystem(address)
    with reading(address, "place", SourceError):
        found = {root: system.info(root)} if system.isfile(root) else system.find(root, detail=True)
    for file, told in sorted(found.items()):
        name = file if file == root else file.removeprefix(root).lstrip("/")
        name = name.rsplit("/", 1)[-1] if file == root else name
        full = system.unstrip_protocol(file)
        if Path(file).suffix == _SHARD and told.get("type", "file") != "file":
            yield Entry(name, full, problem=NO_SHARD)
        elif Path(file).suffix == _SHARD:
            with reading(full, "shard", SourceError), system.open(file, "rb") as opened:
                yield from _shard(opened, full, name)
        elif is_image(Path(file)) and not name.rsplit("/", 1)[-1].startswith("."):
            yield Entry(name, full)
