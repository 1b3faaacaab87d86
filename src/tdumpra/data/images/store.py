"""Framed images by number, from a cache or decoded on demand.

Number i is record i of the manifest that the store was prepared with. A store survives pickling, so that worker
processes can carry it along; what it has open stays behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

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
    """Rows of a memory-mapped file; the operating system decides what stays in memory."""

    def __init__(self, path: Path, rows: Int64[np.ndarray, " n"], framing: Framing) -> None:
        self.path, self.rows, self.framing = path, rows, framing  # rows: where in the file each image lies
        self._pixels: np.memmap[Any, np.dtype[np.uint8]] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, numbers: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n height width 3"]:
        """Copy the rows out of the file."""
        if self._pixels is None:
            self._pixels = map_rows(self.path, self.framing)
        return np.asarray(self._pixels[self.rows[numbers]])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pixels": None}


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


def map_rows(path: Path, framing: Framing) -> np.memmap[Any, np.dtype[np.uint8]]:
    """Map the complete rows of a cache file, read-only."""
    try:
        count = path.stat().st_size // framing.nbytes
        return np.memmap(path, dtype=np.uint8, mode="r", shape=(count, framing.height, framing.width, 3))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot read the image cache {path}: {error}; prepare it again") from error
