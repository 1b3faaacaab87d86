"""How tdumpra writes files: each is at every moment the old one or the new one, also after a kill or a power cut."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tdumpra.errors import ArtifactError

Bytes = bytes | memoryview
_LEFTOVER = re.compile(r"\..+\.[a-z0-9_]{8}\.part")  # as tempfile names what write_bytes writes to
_ABANDONED = 900.0  # seconds since the last byte; a write takes less
_swept: set[Path] = set()


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file that is at every moment either the old one or the new one, also after a power cut."""
    write_together({Path(path): [data]})


def write_together(files: Mapping[Path, Sequence[Bytes]]) -> None:
    """Write files of one folder that belong together: none takes its place before all are on the disk.

    A file is given in parts, which follow each other.
    """
    temporary: dict[Path, Path] = {}  # by the file that it will be
    try:
        for path, data in files.items():
            if not path.parent.is_dir():
                raise ArtifactError(f"cannot write {path}: the folder {path.parent} does not exist")
            _sweep(path.parent)
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
            temporary[path] = Path(name)
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(data)
                file.flush()
                os.fsync(file.fileno())
            temporary[path].chmod(0o666 & ~_umask())  # mkstemp makes private files
        for path, written in temporary.items():
            written.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise ArtifactError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        for written in temporary.values():
            written.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what writers that were killed left in a folder and below it."""
    for place, _, _ in os.walk(folder):
        _sweep(Path(place))


def _sweep(folder: Path) -> None:
    """Remove what writers that were killed left in a folder; once for each folder, and nothing that may be in use."""
    if folder in _swept:
        return
    _swept.add(folder)
    left = [path for path in folder.glob(".*.part") if _LEFTOVER.fullmatch(path.name)]
    now = _now(folder) if left else 0.0
    for path in left:
        try:
            if abs(now - path.stat().st_mtime) > _ABANDONED:  # a clock may have been set back
                path.unlink()
        except OSError:  # another process was quicker, or may do what this one may not
            continue


def _now(folder: Path) -> float:
    """Return the time by the clock that stamps the folder's files: a server's may differ from this machine's."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:  # a full disk, say
        return time.time()


def make_folder(folder: Path) -> None:
    """Make a folder for results, or say why that cannot be; what killed writers left there goes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    _sweep(folder)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
