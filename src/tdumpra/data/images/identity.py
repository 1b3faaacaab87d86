"""What an image is, whatever it is called: the fingerprint of the content that its pixels come from.

The cache is keyed by it, so that a renamed, copied or moved file is known again, one that was overwritten in place is
not, and two data sets that share images (HAM10000 is part of ISIC 2019) share their rows. The hash is SHA-256:
processors have instructions for it, so it runs at more than a gigabyte a second, ten times faster than JPEG decoding,
and unlike a checksum it does not confuse two files. A file whose size and time of change are as they were when it was
last hashed is not read again, by the reasoning of git's index and make.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import time
from pathlib import Path
from typing import NamedTuple

from tdumpra.artifacts import fingerprint, write_bytes
from tdumpra.data.images.decode import refuse_unreadable
from tdumpra.data.images.framing import Framing
from tdumpra.data.manifest import Reader, Record

_SETTLED_NS = 2_000_000_000  # file systems round times; a file changed this recently may change again unnoticed


class FileStamp(NamedTuple):
    """A file as it was when it was hashed."""

    path: str
    size: int
    changed_ns: int
    digest: str


class KnownFiles:
    """Digests of files that need not be read again, kept in a JSON file that may be deleted at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            entries = json.loads(path.read_bytes())
            self._stamps = {name: FileStamp(name, size, changed, digest) for name, size, changed, digest in entries}
        except (OSError, ValueError, TypeError):
            self._stamps = {}  # absent or damaged: everything is hashed anew

    def digest(self, path: Path) -> str | None:
        """The digest of ``path``, if it is known and the file has not changed since."""
        stamp = self._stamps.get(str(path))
        if stamp is None:
            return None
        try:
            status = path.stat()
        except OSError:
            return None
        return stamp.digest if (status.st_size, status.st_mtime_ns) == (stamp.size, stamp.changed_ns) else None

    def remember(self, stamp: FileStamp) -> None:
        """Trust this digest from now on, unless the file was changed a moment ago."""
        if time.time_ns() - stamp.changed_ns > _SETTLED_NS:
            self._stamps[stamp.path] = stamp

    def save(self) -> None:
        """Write all that is known."""
        write_bytes(self._path, json.dumps(list(self._stamps.values())).encode())


def hash_file(path: Path) -> FileStamp:
    """Read ``path`` once. Raises ``BrokenImageError`` where there is nothing to read."""
    refuse_unreadable(path)
    status = path.stat()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileStamp(str(path), status.st_size, status.st_mtime_ns, digest)


def image_key(record: Record, digests: list[str], reader_key: str) -> str:
    """The fingerprint of one image, given its files' digests; 64 bits, so no two of a million images are confused."""
    return fingerprint(reader_key, *(digests if record.path is not None else [record.id, *digests]))


def image_files(record: Record, framing: Framing) -> list[Path]:
    """The files that a record's pixels come from, beside those that its reader names."""
    mask = record.mask if framing.lesion_margin is not None else None
    return [path for path in (record.path, mask) if path is not None]


def reader_key(reader: Reader) -> str:
    """What a reader's pixels depend on apart from the record: its pickle, with each file it names as its content."""
    buffer = io.BytesIO()
    _ContentPickler(buffer, protocol=4).dump(reader)
    return fingerprint(buffer.getvalue())


class _ContentPickler(pickle.Pickler):
    """Only ever writes; nothing reads these pickles back."""

    def persistent_id(self, obj: object) -> str | None:
        return hash_file(obj).digest if isinstance(obj, Path) and obj.is_file() else None
