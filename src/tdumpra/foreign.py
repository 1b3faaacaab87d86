"""Open files that a stranger may have made: check sizes before loading, and tell every failure in one sentence."""

from __future__ import annotations

import errno
import math
import stat
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np

from tdumpra.errors import InputFileError, MissingExtraError, TdumpraError, UnreadableError
from tdumpra.limits import MIB, VARIABLE, limits, refuse_above

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_FREE = 256 * MIB  # an archive may unfold to so much, however small it is
_READ_AT_ONCE = 8 * MIB  # of an array that is dealt into parts
_FAULTS = {  # of a disk, a network or a right, whatever a file holds; damaged offsets give others, such as EINVAL
    errno.EIO, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EBUSY, errno.ENODEV,
    errno.ESTALE, errno.ETIMEDOUT, errno.ENXIO, errno.ENOTCONN, errno.ECONNRESET, errno.ECONNABORTED,
    errno.ECONNREFUSED, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH,
}  # fmt: skip
_SHORT = 200  # characters of a library's own message


@contextmanager
def reading(path: str | Path, what: str, error: type[TdumpraError] = InputFileError) -> Iterator[None]:
    """Turn whatever goes wrong inside into ``error``, one sentence that names the file.

    Damaged files fail in ways that no library lists, from ``zlib.error`` and ``struct.error`` to ``SyntaxError`` and
    Arrow's own, so every exception is caught. Keep the block to calls of the library that reads. Where the system
    cannot read the file, nothing is known of its contents: that is an ``UnreadableError``, whatever ``error`` is.
    """
    try:
        yield
    except UnreadableError:
        raise
    except TdumpraError as problem:
        if isinstance(problem, error) and str(path) in str(problem):
            raise
        raise error(str(problem) if str(path) in str(problem) else f"{path}: {problem}") from problem
    except MemoryError:
        raise error(f"{path} needs more memory than there is") from None
    except Exception as problem:
        if is_fault(problem):
            raise cannot_read(path, problem) from problem
        raise error(f"{path} is not a readable {what}, or is damaged: {_words(problem)}") from problem


def is_fault(problem: BaseException | None) -> TypeGuard[OSError]:
    """Return whether the system could not read a file that is there."""
    return isinstance(problem, OSError) and problem.errno in _FAULTS


def cannot_read(path: str | Path, problem: OSError, error: type[TdumpraError] = InputFileError) -> TdumpraError:
    """Return what to raise: ``error`` for a file that is missing or none, ``UnreadableError`` for one that is there."""
    kind = UnreadableError if is_fault(problem) else error
    return kind(f"cannot read {path}: {problem.strerror or problem}")


def refuse_endless(path: str | Path, error: type[TdumpraError] = InputFileError) -> None:
    """Refuse a pipe or a device, which has no size to check and may never end; a missing file passes."""
    try:
        kind = Path(path).stat().st_mode
    except OSError:
        return
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise error(f"{path} is a pipe or a device, and only files are read: save what it gives to a file first")


def refuse_large_table(path: str | Path, *, rows: int, columns: int, size: int) -> None:
    """Refuse a table of that many rows, columns and bytes in memory, if it is more than the limits allow."""
    counts = {"table_rows": (rows, "rows"), "table_columns": (columns, "columns"), "table_bytes": (size, "bytes")}
    for name, (value, what) in counts.items():
        if reason := refuse_above(name, value, what):
            raise InputFileError(f"{path}: {reason}")
    held = Path(path).stat().st_size
    if size > max(_FREE, limits().table_growth * held):
        raise InputFileError(
            f"{path} has {held:,} bytes and would unfold to {size:,}, more than {limits().table_growth:g} times "
            f"as many ({VARIABLE}=table_growth=… raises that)"
        )


class Header(NamedTuple):
    """What an array of an archive claims to be."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_columns: bool = False  # in Fortran's order

    @property
    def nbytes(self) -> int:
        """Bytes of the array in memory."""
        return math.prod(self.shape) * self.dtype.itemsize


class Archive:
    """An open ``.npz``. Headers are read at once, arrays when they are asked for. Nothing is unpickled."""

    def __init__(self, path: Path, file: zipfile.ZipFile) -> None:
        self.path, self._file = path, file
        self._members = {each.filename.removesuffix(".npy"): each for each in file.infolist()}
        if len(self._members) < len(file.infolist()):  # programs differ in which of the two they read
            raise InputFileError(f"{path} holds an array twice: save it again")
        if reason := refuse_above("table_columns", len(self._members), "arrays"):
            raise InputFileError(f"{path}: {reason}")
        with warnings.catch_warnings():  # damaged headers and those of Python 2 are parsed with warnings
            warnings.simplefilter("ignore")
            self.headers: Mapping[str, Header] = {name: self._header(name) for name in self._members}

    def load(self, names: Collection[str], *, later: Collection[str] = ()) -> dict[str, np.ndarray]:
        """Load these arrays, once their sizes, and those of arrays that come ``later``, are within the limits."""
        headers = {name: self.headers[name] for name in (*names, *later)}
        for name, header in headers.items():
            self._check(name, header)
        rows = max((header.shape[0] for header in headers.values() if header.shape), default=0)
        columns = max((header.shape[1] for header in headers.values() if len(header.shape) == 2), default=0)
        size = sum(header.nbytes for header in headers.values())
        refuse_large_table(self.path, rows=rows, columns=columns, size=size)
        return {name: self._read(name) for name in names}

    def load_parts(self, name: str, codes: np.ndarray, n_parts: int) -> list[np.ndarray]:
        """Load an array with its rows dealt into parts: each row lies in memory once, and never beside a copy."""
        shape, dtype, by_columns = self.headers[name]
        if len(shape) != 2 or by_columns or dtype.hasobject or not shape[1]:
            array = self._read(name)
            return [array[codes == code] for code in range(n_parts)]
        parts = [np.empty((int((codes == code).sum()), shape[1]), dtype) for code in range(n_parts)]
        ends, step = [0] * n_parts, max(1, _READ_AT_ONCE // (dtype.itemsize * shape[1]))
        with self._file.open(self._members[name]) as member:
            _read_header(member)
            for start in range(0, shape[0], step):
                here = codes[start : start + step]
                data = member.read(len(here) * shape[1] * dtype.itemsize)
                rows = np.frombuffer(data, dtype).reshape(len(here), shape[1])
                for code in np.unique(here).tolist():
                    chosen = rows[here == code]
                    parts[code][ends[code] : ends[code] + len(chosen)] = chosen
                    ends[code] += len(chosen)
            member.read(1)  # the end of a member is where its checksum is looked at
        return parts

    def _read(self, name: str) -> np.ndarray:
        with self._file.open(self._members[name]) as member:
            array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
        return array

    def _header(self, name: str) -> Header:
        with self._file.open(self._members[name]) as member:
            header = _read_header(member)
            held = self._members[name].file_size - member.tell()
        shape, dtype, _ = header
        if min(shape, default=0) < 0 or (not dtype.hasobject and held != header.nbytes):
            raise ValueError(f"the array {name!r} claims the shape {shape} of {dtype}, and holds {held:,} bytes")
        return header

    def _check(self, name: str, header: Header) -> None:
        if header.dtype.hasobject:
            raise InputFileError(
                f"{self.path}: the array {name!r} holds Python objects, as columns of pandas do, and those are never "
                f'loaded: save it as {name}.astype("U") if it holds names, or with a type of numbers'
            )


def _read_header(member: IO[bytes]) -> Header:
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(member)
    return Header(shape, dtype, by_columns)


@contextmanager
def open_npz(path: Path, error: type[TdumpraError] = InputFileError) -> Iterator[Archive]:
    """Open an archive of arrays."""
    refuse_endless(path, error)
    with reading(path, ".npz file", error), zipfile.ZipFile(path) as file:
        yield Archive(path, file)


@contextmanager
def open_parquet(path: Path, error: type[TdumpraError] = InputFileError) -> Iterator[ParquetTable]:
    """Open a Parquet file."""
    try:
        import pyarrow.parquet
    except ImportError as problem:
        raise MissingExtraError("pyarrow", "parquet", "reading .parquet") from problem
    refuse_endless(path, error)
    with reading(path, ".parquet table", error):
        texts = _texts(pyarrow.parquet.read_metadata(path))
        options = {"read_dictionary": texts, "page_checksum_verification": True}  # of pages that carry a checksum
        with pyarrow.parquet.ParquetFile(path, **options) as file:
            yield ParquetTable(path, file)


class ParquetTable:
    """An open Parquet file. Its header is read at once, columns when they are asked for.

    A text that a column repeats stands in the file once, and so it stays in memory until it is known how much all of
    its repetitions would take.
    """

    def __init__(self, path: Path, file: pq.ParquetFile) -> None:
        self._path, self._file = path, file
        self.names: list[str] = file.schema_arrow.names
        self.metadata: Mapping[bytes, bytes] = file.schema_arrow.metadata or {}

    def load(self, names: Collection[str] | None = None) -> pa.Table:
        """Load these columns, or all, once their sizes are within the limits."""
        header = self._file.metadata
        # not what single columns of a group tell: Arrow ends the process where a damaged file lacks it
        packed = sum(header.row_group(group).total_byte_size for group in range(header.num_row_groups))
        size = max(packed, header.num_rows * sum(_width(field) for field in self._file.schema_arrow))
        self._refuse_large(size)
        table = self._file.read(columns=None if names is None else list(names))
        for place, column in enumerate(table.columns):
            if hasattr(column.type, "index_type"):
                size += sum(_unfolded(chunk) for chunk in column.chunks)
                self._refuse_large(size)
                table = table.set_column(place, table.field(place).name, column.cast(column.type.value_type))
        return table

    def _refuse_large(self, size: int) -> None:
        header = self._file.metadata
        refuse_large_table(self._path, rows=header.num_rows, columns=header.num_columns, size=size)


def _width(field: pa.Field) -> int:
    """Return the bytes of a value at least; a column whose rows may hold any number of values is refused."""
    import pyarrow as pa

    kind, items = field.type, 1
    if pa.types.is_fixed_size_list(kind):
        kind, items = kind.value_type, kind.list_size
    if pa.types.is_nested(kind):
        raise ValueError(f"its column {field.name!r} holds {kind}, where a table has one value in a row")
    return items * max(8, kind.byte_width if pa.types.is_fixed_size_binary(kind) else 8)


def _texts(header: pq.FileMetaData) -> list[str]:
    columns = (header.schema.column(number) for number in range(header.num_columns))
    return [each.path for each in columns if each.physical_type == "BYTE_ARRAY" and not each.max_repetition_level]


def _unfolded(chunk: pa.DictionaryArray) -> int:
    """Return the bytes of an array once each value stands where it belongs."""
    import pyarrow as pa
    import pyarrow.compute as compute

    if not (pa.types.is_string(chunk.dictionary.type) or pa.types.is_binary(chunk.dictionary.type)):
        return 8 * len(chunk)
    return int(compute.sum(compute.binary_length(chunk.dictionary).take(chunk.indices)).as_py() or 0)


def _words(problem: Exception) -> str:
    if isinstance(problem, KeyError):
        return f"it lacks {problem}"[:_SHORT]
    said = " ".join(str(getattr(problem, "strerror", None) or problem).split()) or type(problem).__name__
    return said if len(said) <= _SHORT else f"{said[:_SHORT]}…"
