"""Find and read the image files of a source, and refuse links that leave it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from tdumpra.data.images.dicom import DICOM_SUFFIXES, RASTER_SUFFIXES, starts_as_dicom
from tdumpra.data.manifest import Record
from tdumpra.errors import BrokenImageError, SourceError
from tdumpra.screen import printable

# A name decides what counts as an image: a licence text beside the images is not an image without a label, and a text
# file named .jpg is a broken image.
IMAGE_SUFFIXES = RASTER_SUFFIXES | DICOM_SUFFIXES


@dataclass(frozen=True, slots=True)
class FileReader:
    """Read a record's own file."""

    def __call__(self, record: Record) -> UInt8[np.ndarray, "height width 3"]:
        """Return the record's image as RGB, or raise ``BrokenImageError``."""
        if record.path is None:
            raise BrokenImageError("no file: the image is missing from the data set")
        from tdumpra.data.images.decode import decode_file  # so that tables can be read without the image libraries

        return decode_file(record.path)


def require_folder(folder: Path, kind: str) -> Path:
    """Return ``folder`` as an absolute path without links, or raise ``SourceError``."""
    if not folder.exists():
        raise SourceError(f"the folder {folder} does not exist: check the path after '{kind}:'")
    if not folder.is_dir():
        raise SourceError(f"{folder} is a file, and '{kind}:' needs a folder")
    return folder.resolve()


def is_image(path: Path) -> bool:
    """Return whether a file counts as an image: by its suffix or, without one, by DICOM's first bytes."""
    if path.suffix:
        return path.suffix.lower() in IMAGE_SUFFIXES
    if not is_file(path):  # opening a named pipe would wait for ever
        return False
    try:
        with path.open("rb") as file:
            return starts_as_dicom(file)
    except OSError:
        return False


def walk_files(folder: Path, root: Path, *, recursive: bool) -> Iterator[Path]:
    """Yield the files in ``folder`` sorted by name, without hidden ones (a Mac's ``._x.jpg``).

    Links to nowhere and what is neither file nor folder (a pipe, a device) come along: their source settles them.

    Raises:
        SourceError: a link leads to a file or folder outside ``root``; a name is not valid Unicode, so that no table
            could mention it; a folder cannot be listed.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise SourceError(f"cannot list the folder {folder}: {error.strerror or error}") from error
    for path in (folder / name for name in names):
        is_folder = os.path.isdir(path)  # unlike pathlib's, never raises
        if is_folder and not recursive:
            continue
        _check_name(path)
        if os.path.islink(path) and (is_folder or (is_file(path) and is_image(path))):
            _check_link(path, root, is_folder=is_folder)
        if is_folder:
            yield from walk_files(path, root, recursive=True)
        else:
            yield path


def images_by_id(folders: Iterable[Path], root: Path) -> dict[str, Path]:
    """Return the image files directly in ``folders`` by name without suffix; the same name twice is refused."""
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
    """Return whether ``path`` is a regular file, or a link to one; a name that no file system takes is none."""
    return os.path.isfile(path)


def is_there(path: Path) -> bool:
    """Return whether ``path`` leads to anything but a folder: also to a pipe or a device, which decoding refuses."""
    return os.path.exists(path) and not os.path.isdir(path)


def _check_name(path: Path) -> None:
    try:
        path.name.encode()
    except UnicodeEncodeError:
        shown = printable(path.name)
        raise SourceError(f"the file name {shown!r} in {path.parent} is not valid UTF-8: rename it") from None


def _check_link(path: Path, root: Path, *, is_folder: bool) -> None:
    target = path.resolve()
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
