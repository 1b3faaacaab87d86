"""Bring the images of a part to local files: from shards and addresses into a temporary folder."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tdumpra.errors import TdumpraError
from tdumpra.limits import limits, refuse_above
from tdumpra.scoring.listing import Entry, is_address, open_filesystem

_AT_ONCE = 16  # files that are fetched at the same time: the network's delay counts, not the processor
_CHANGED = "the shard was cut or changed after it was listed"


class CannotFetchError(Exception):
    """Why an image could not be brought here."""


def fetch(entries: Sequence[Entry], folder: Path) -> list[Path | str]:
    """Return a local file for each entry, in ``folder`` if it was none before, or the reason why there is none."""
    folder.mkdir()

    def bring(number: int, entry: Entry) -> Path | str:
        try:
            return _bring(entry, folder / f"{number:06d}{Path(entry.id).suffix.lower()}")
        except CannotFetchError as reason:
            return str(reason)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(bring, range(len(entries)), entries))


def _bring(entry: Entry, local: Path) -> Path:
    if entry.problem:
        raise CannotFetchError(entry.problem)
    if entry.start < 0 and not is_address(entry.file):
        return Path(entry.file)
    try:
        data = _bytes_of(entry)
    except (OSError, TdumpraError, ValueError) as error:
        raise CannotFetchError(f"cannot be fetched: {getattr(error, 'strerror', None) or error}") from error
    except Exception as error:  # each backend of fsspec has its own
        raise CannotFetchError(f"cannot be fetched: {type(error).__name__}: {error}") from error
    if entry.start >= 0 and len(data) != entry.size:
        raise CannotFetchError(_CHANGED)
    local.write_bytes(data)
    return local


def _bytes_of(entry: Entry) -> bytes:
    stop = entry.start + entry.size
    if not is_address(entry.file):
        with open(entry.file, "rb") as shard:
            shard.seek(entry.start)
            return shard.read(entry.size)
    system, path = open_filesystem(entry.file)
    if entry.start >= 0:
        data: bytes = system.cat_file(path, start=entry.start, end=stop)
        return data
    if reason := refuse_above("image_bytes", system.size(path) or 0, "bytes"):
        raise CannotFetchError(reason)
    data = system.cat_file(path, end=int(limits().image_bytes) + 1)  # what an address says of its size may be wrong
    if reason := refuse_above("image_bytes", len(data), "bytes"):
        raise CannotFetchError(reason)
    return data
