"""Framed images by number, from a cache or decoded on demand.

Number i is record i of the manifest that the store was prepared with. A store holds no pixels and nothing open: worker
processes can carry it along, and its memory is a number for each image, however many bytes the images have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from tdumpra.data.images.framing import Framing
from tdumpra.data.manifest import Reader, Record
from tdumpra.errors import ArtifactError


class ImageStore(ABC):
    """Images of one size, numbered like the records they belong to."""

    framing: Framing

    @abstractmethod
    def __len__(self) -> int:
        """Return how many images there are."""

    @abstractmethod
    def read(self, numbers: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n height width 3"]:
        """Return a copy of these images, in this order."""

    @property
    def nbytes(self) -> int:
        """Bytes that all images take in memory."""
        return len(self) * self.framing.nbytes


class CachedImages(ImageStore):
    """Rows of a file, read when they are asked for; the operating system keeps in its cache what there is room for."""

    def __init__(self, path: Path, rows: Int64[np.ndarray, " n"], framing: Framing) -> None:
        self.path, self.rows, self.framing = path, rows, framing  # rows: where in the file each image lies

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, numbers: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n height width 3"]:
        """Read the rows, each into its place."""
        images = np.empty((len(numbers), self.framing.height, self.framing.width, 3), dtype=np.uint8)
        for image, pixels in zip(images, read_rows(self.path, self.framing, self.rows[numbers]), strict=True):
            if pixels is None:
                raise ArtifactError(f"the image cache {self.path} ends before one of its images; prepare it again")
            image[:] = pixels
        return images


class StreamedImages(ImageStore):
    """Decodes a file each time it is asked for: slower, and free of disk and memory."""

    def __init__(self, records: tuple[Record, ...], reader: Reader, framing: Framing) -> None:
        self.records, self.reader, self.framing = records, reader, framing

    def __len__(self) -> int:
        return len(self.records)

    def read(self, numbers: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n height width 3"]:
        """Decode and frame the images one after the other."""
        images = np.empty((len(numbers), self.framing.height, self.framing.width, 3), dtype=np.uint8)
        for image, number in zip(images, numbers, strict=True):
            image[:] = frame_record(self.records[number], self.reader, self.framing)
        return images


def frame_record(record: Record, reader: Reader, framing: Framing) -> UInt8[np.ndarray, "height width 3"]:
    """Return one record's framed pixels, or raise ``BrokenImageError`` if its image or mask is broken."""
    return framing.apply(reader(record), framing.mask_of(record.mask))


def read_rows(
    path: Path, framing: Framing, rows: Iterable[int]
) -> Iterator[UInt8[np.ndarray, "height width 3"] | None]:
    """Yield these rows of a cache file, each until the next is asked for; ``None`` for one that the file lacks.

    Read, not mapped: pages of a mapped file count as a process's own, and a training would seem to hold the data set.
    """
    room = np.empty((framing.height, framing.width, 3), dtype=np.uint8)
    try:
        with path.open("rb", buffering=0) as file:
            for row in rows:
                file.seek(int(row) * framing.nbytes)
                yield room if file.readinto(room.data) == framing.nbytes else None
    except OSError as error:
        raise ArtifactError(f"cannot read the image cache {path}: {error}; prepare it again") from error
