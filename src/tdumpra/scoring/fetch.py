"""Find the images of a part: files and shards where they lie, addresses in a temporary folder."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from tdumpra.data.images.framing import Framing
from tdumpra.data.images.new import CHANGED, Image, Inside, Read, read_images
from tdumpra.errors import BrokenImageError, TdumpraError
from tdumpra.limits import limits, refuse_above
from tdumpra.scoring.listing import Entry, is_address, open_filesystem

Found: TypeAlias = "list[Image | BrokenImageError]"

_AT_ONCE = 16  # files that are fetched at the same time: the network's delay counts, not the processor


def fetch(entries: Sequence[Entry], folder: Path) -> Found:
    """Return where each image is, in ``folder`` if it had to be brought here, or the reason why it is nowhere.

    What lies on this machine is left there: to make a file of each small image takes longer than to predict it.
    """
    folder.mkdir()
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # its threads begin with the first address
        found = [
            pool.submit(_bring, entry, folder / f"{number:06d}{_suffix(entry)}")
            if is_address(entry.file) and not entry.problem
            else _here(entry)
            for number, entry in enumerate(entries)
        ]
        return [each if isinstance(each, Image | BrokenImageError) else each.result() for each in found]


def read_found(found: Found, framings: tuple[Framing, Framing], workers: int | None = None) -> Read:
    """Yield each image framed for both networks, in order, or why it cannot be; workers as of ``read_images``."""
    here = [each for each in found if isinstance(each, Image)]
    with closing(read_images(here, *framings, picture=False, workers=workers)) as read:
        for each in found:
            yield next(read) if isinstance(each, Image) else each


def _suffix(entry: Entry) -> str:
    return Path(entry.id).suffix.lower()


def _here(entry: Entry) -> Image | BrokenImageError:
    if entry.problem:
        return BrokenImageError(entry.problem)
    inside = Inside(entry.start, entry.size, _suffix(entry)) if entry.start >= 0 else None
    return Image(Path(entry.file), inside=inside)


def _bring(entry: Entry, local: Path) -> Image | BrokenImageError:
    try:
        data = _bytes_of(entry)
    except BrokenImageError as reason:
        return reason
    except (OSError, TdumpraError, ValueError) as error:
        return BrokenImageError(f"cannot be fetched: {getattr(error, 'strerror', None) or error}")
    except Exception as error:  # each backend of fsspec has its own
        return BrokenImageError(f"cannot be fetched: {type(error).__name__}: {error}")
    if entry.start >= 0 and len(data) != entry.size:
        return BrokenImageError(CHANGED)
    try:
        local.write_bytes(data)
    except OSError as error:
        raise TdumpraError(
            f"cannot write to {local.parent}: {error.strerror or error}; the variable TMPDIR names another place for "
            "images that have to be brought here"
        ) from error
    return Image(local)


def _bytes_of(entry: Entry) -> bytes:
    system, path = open_filesystem(entry.file)
    if entry.start >= 0:
        data: bytes = system.cat_file(path, start=entry.start, end=entry.start + entry.size)
        return data
    told = system.info(path)
    if told.get("type", "file") != "file":  # a pipe would be waited for
        raise BrokenImageError("it is no file")
    if reason := refuse_above("image_bytes", told.get("size") or 0, "bytes"):
        raise BrokenImageError(reason)
    data = system.cat_file(path, end=int(limits().image_bytes) + 1)  # what an address says of its size may be wrong
    if reason := refuse_above("image_bytes", len(data), "bytes"):
        raise BrokenImageError(reason)
    return data
