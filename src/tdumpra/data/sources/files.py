"""Image files of a source: finding them, refusing what lies elsewhere, and reading one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from tdumpra.data.manifest import Record
from tdumpra.errors import BrokenImageError, SourceError
from tdumpra.screen import printable

# What counts as an image by its name. A licence text beside the images is no image without a label;
# a text file named .jpg is a broken image, and the decoder says so.
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".dcm", ".dicom"})


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads a record's own file."""

    def __call__(self, record: Record) -> UInt8[np.ndarray, "height width 3"]:
        """The record's image as RGB; ``BrokenImageError`` where it has no file, or a bad one."""
        if record.path is None:
            raise BrokenImageError("no file: the image is missing from the data set")
        from tdumpra.data.images.decode import decode_file  # so that tables can be read without the image libraries

        return decode_file(record.path)


def require_folder(folder: Path, kind: str) -> Path:
    """``folder`` itself, absolute, its own link resolved: what a link inside it may not leave."""
    if not folder.exists():
        raise SourceError(f"the folder {folder} does not exist: check the path after '{kind}:'")
    if not folder.is_dir():
        raise SourceError(f"{folder} is a file, and '{kind}:' needs a folder")
    return folder.resolve()


def is_image(path: Path) -> bool:
    """Whether a file counts as an image: by its suffix, or, without one, as the DICOM files of a scanner."""
    if path.suffix:
        return path.suffix.lower() in IMAGE_SUFFIXES
    if not is_file(path):  # opening a named pipe would wait for ever
        return False
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def walk_files(folder: Path, root: Path, *, recursive: bool) -> Iterator[Path]:
    """The files in ``folder``, in the order of their names; hidden ones (a Mac's ``._x.jpg``) are left out.

    Raises:
        SourceError: a link leads out of ``root``, where the files of another data set, or of nobody's, may lie; or a
            name is no valid Unicode, so that no table could ever mention it.
    """
    with os.scandir(folder) as entries:
        found = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    for entry in found:
        path = Path(entry.path)
        if entry.is_dir() and not recursive:
            continue
        _check_name(path)
        if entry.is_symlink() and (entry.is_dir() or is_image(path)):
            _check_link(path, root, is_folder=entry.is_dir())
        if entry.is_dir():
            yield from walk_files(path, root, recursive=True)
        else:
            yield path


def images_by_id(folders: Iterable[Path], root: Path) -> dict[str, Path]:
    """The image files that lie directly in ``folders``, by name without suffix; the same name twice is refused."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in filter(is_image, walk_files(folder, root, recursive=False)):
            other = found.setdefault(path.stem, path)
            if other != path:
                raise SourceError(
                    f"the image {path.stem} is there twice, as {_short(other, root)} and {_short(path, root)}: "
                    "remove one of them"
                )
    return found


def is_file(path: Path) -> bool:
    """Whether the path leads to a file; a name that no file system would take leads nowhere."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long; a NUL byte
        return False


def _check_name(path: Path) -> None:
    try:
        path.name.encode()
    except UnicodeEncodeError:
        shown = printable(path.name)
        raise SourceError(f"the file name {shown!r} in {path.parent} is not valid UTF-8: rename it") from None


def _check_link(path: Path, root: Path, *, is_folder: bool) -> None:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):  # dangling, or a loop: a missing file, which its source will count
        return
    if not target.is_relative_to(root):
        raise SourceError(
            f"{_short(path, root)} is a link to {target}, outside the data set: put the file itself there, "
            "or list it in a table and use 'csv:'"
        )
    if is_folder:
        raise SourceError(
            f"{_short(path, root)} is a link to a folder of the same data set; its images would count twice: remove it"
        )


def _short(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
