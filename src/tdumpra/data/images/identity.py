"""Name an image by the content that its pixels come from.

The cache uses these names, so that a renamed, copied or moved file is known again, an overwritten one is not, and two
data sets that share images (HAM10000 is part of ISIC 2019) share their rows. The hash is SHA-256: it runs ten times
faster than JPEG decoding and, unlike a checksum, does not confuse two files. A file is not read again if its size and
time of change are as they were when it was last hashed.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import time
from pathlib import Path
from typing import NamedTuple

from tdumpra.artifacts import fingerprint, read_json, write_json
from tdumpra.data.images.decode import refuse_unreadable
from tdumpra.data.images.framing import Framing
from tdumpra.data.manifest import Reader, Record
from tdumpra.errors import ArtifactError, UnreadableError

_KIND, _SCHEMA = "known files", 1
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
        try:  # sealed: one flipped bit could give a file the digest of its neighbour
            entries = read_json(path, kind=_KIND, schema=_SCHEMA)["files"]
            self._stamps = {name: FileStamp(name, size, changed, digest) for name, size, changed, digest in entries}
        except (ArtifactError, UnreadableError, LookupError, ValueError, TypeError):
            self._stamps = {}  # absent, damaged or out of reach: everything is hashed anew

    def digest(self, path: Path) -> str | None:
        """Return the digest of ``path`` if it is known and the file has not changed since."""
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
        """Write all digests."""
        write_json(self._path, kind=_KIND, schema=_SCHEMA, content={"files": list(self._stamps.values())})


def hash_file(path: Path) -> FileStamp:
    """Read and hash ``path``, or raise ``BrokenImageError``."""
    refuse_unreadable(path)
    status = path.stat()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileStamp(str(path), status.st_size, status.st_mtime_ns, digest)


def image_key(record: Record, digests: list[str], reader_key: str) -> str:
    """Return the fingerprint of one image, given its files' digests; 64 bits suffice for millions of images."""
    return fingerprint(reader_key, *(digests if record.path is not None else [record.id, *digests]))


def image_files(record: Record, framing: Framing) -> list[Path]:
    """Return the files that a record's pixels come from, beside those that its reader names."""
    mask = record.mask if framing.lesion_margin is not None else None
    return [path for path in (record.path, mask) if path is not None]


def reader_key(reader: Reader) -> str:
    """Return the fingerprint of a reader: its pickle, with the content of each file in place of its path."""
    buffer = io.BytesIO()
    _ContentPickler(buffer, protocol=4).dump(reader)
    return fingerprint(buffer.getvalue())


class _ContentPickler(pickle.Pickler):
    """Only writes; nothing reads these pickles back."""

    def persistent_id(self, obj: object) -> str | None:
        return hash_file(obj).digest if isinstance(obj, Path) and obj.is_file() else None
