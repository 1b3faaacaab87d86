"""Read new images for a model, ahead of its networks: decoded once, within the limits, framed for both networks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image as Picture

from tdumpra.data.images.decode import decode_file
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.workers import Died, in_order
from tdumpra.data.manifest import Manifest, Reader, Record
from tdumpra.errors import BrokenImageError

Pixels = UInt8[np.ndarray, "h w 3"]

_PICTURE_SIZE = 1024  # pixels of the longer side of the picture that a prediction keeps


class Image(NamedTuple):
    """An image to predict."""

    path: Path
    mask: Path | None = None  # of the lesion, for networks that see it cut out


class Framed(NamedTuple):
    """One image as the networks get it."""

    first: Pixels  # for the classifier
    second: Pixels  # for the network that matches prototypes
    picture: Pixels | None  # as it was decoded, scaled down if it is large


def read_images(
    images: Sequence[Image], first: Framing, second: Framing, *, picture: bool
) -> Generator[Framed | BrokenImageError, None, None]:
    """Yield each image framed for both networks, or why it cannot be; files of unknown origin may be anything."""
    for each in in_order(_Read(first, second, picture), images, limited=True):
        yield BrokenImageError(each.reason) if isinstance(each, Died) else each


def read_batches(
    images: Sequence[Image], first: Framing, second: Framing, *, batch_size: int, picture: bool = False
) -> Iterator[list[Framed | BrokenImageError]]:
    """Yield the images in order, ``batch_size`` readable ones at a time; the last part may have fewer.

    A thread collects what the workers read while the caller is busy. It is at most two batches ahead.
    """
    return _ahead(read_images(images, first, second, picture=picture), batch_size)


def record_batches(
    manifest: Manifest, first: Framing, second: Framing, *, batch_size: int
) -> Iterator[list[Framed | BrokenImageError]]:
    """Yield the records of a source as :func:`read_batches` yields files."""
    work, records = _ReadRecord(manifest.reader, first, second), manifest.records

    def read() -> Generator[Framed | BrokenImageError, None, None]:
        for each in in_order(work, records, limited=all(record.path is not None for record in records)):
            yield BrokenImageError(each.reason) if isinstance(each, Died) else each

    return _ahead(read(), batch_size)


def _ahead(
    images: Generator[Framed | BrokenImageError, None, None], batch_size: int
) -> Iterator[list[Framed | BrokenImageError]]:
    ready: queue.SimpleQueue[list[Framed | BrokenImageError] | BaseException | None] = queue.SimpleQueue()
    room, stop = threading.Semaphore(1), threading.Event()

    def collect() -> None:
        try:
            with closing(images) as read:
                for batch in _in_batches(read, batch_size):
                    room.acquire()
                    if stop.is_set():
                        return
                    ready.put(batch)
            ready.put(None)
        except BaseException as error:  # it belongs to whoever asks for the next batch
            ready.put(error)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            room.release()
            yield item
    finally:
        stop.set()
        room.release()  # so that a waiting thread sees the signal
        thread.join()


def _in_batches(
    read: Iterator[Framed | BrokenImageError], batch_size: int
) -> Iterator[list[Framed | BrokenImageError]]:
    batch: list[Framed | BrokenImageError] = []
    n_framed = 0
    for each in read:
        batch.append(each)
        n_framed += isinstance(each, Framed)
        if n_framed == batch_size:
            yield batch
            batch, n_framed = [], 0
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class _Read:
    first: Framing
    second: Framing
    picture: bool

    def __call__(self, image: Image) -> Framed | BrokenImageError:
        try:
            pixels = decode_file(image.path)
            framings = (self.first, self.second)
            framed = {framing: framing.apply(pixels, framing.mask_of(image.mask)) for framing in framings}
        except BrokenImageError as error:
            return error
        return Framed(framed[self.first], framed[self.second], _scaled_down(pixels) if self.picture else None)


@dataclass(frozen=True, slots=True)
class _ReadRecord:
    reader: Reader
    first: Framing
    second: Framing

    def __call__(self, record: Record) -> Framed | BrokenImageError:
        try:
            pixels = self.reader(record)
            framings = (self.first, self.second)
            framed = {framing: framing.apply(pixels, framing.mask_of(record.mask)) for framing in framings}
        except BrokenImageError as error:
            return error
        return Framed(framed[self.first], framed[self.second], None)


def _scaled_down(pixels: Pixels) -> Pixels:
    if max(pixels.shape) <= _PICTURE_SIZE:
        return pixels
    image = Picture.fromarray(pixels)
    image.thumbnail((_PICTURE_SIZE, _PICTURE_SIZE), Picture.Resampling.LANCZOS)
    return np.array(image)
