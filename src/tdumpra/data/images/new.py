"""Read new images for a model, ahead of its networks: decoded once, within the limits, framed for both networks.

Worker processes leave the pixels in memory that they share with this one. Through a pipe each image would be copied
four times and wake both sides for every 64 KiB.
"""

from __future__ import annotations

import mmap
import queue
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image as Picture

from tdumpra.data.images.decode import decode_bytes, decode_file
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.workers import Died, in_order, most_ahead
from tdumpra.data.manifest import Manifest, Record
from tdumpra.errors import BrokenImageError

if TYPE_CHECKING:
    from jaxtyping import UInt8

Pixels: TypeAlias = "UInt8[np.ndarray, 'h w 3']"
Read: TypeAlias = "Generator[Framed | BrokenImageError, None, None]"
Batches: TypeAlias = "Iterator[list[Framed | BrokenImageError]]"

CHANGED = "the shard was cut or changed after it was listed"
_PICTURE_SIZE = 1024  # pixels of the longer side of the picture that a prediction keeps


class Inside(NamedTuple):
    """Where an image lies inside a larger file, such as a tar shard."""

    start: int
    size: int
    suffix: str  # of its own name


class Image(NamedTuple):
    """An image to predict."""

    path: Path
    mask: Path | None = None  # of the lesion, for networks that see it cut out
    inside: Inside | None = None  # where ``path`` holds more than this image


class Framed(NamedTuple):
    """One image as the networks get it."""

    first: Pixels  # for the classifier
    second: Pixels  # for the network that matches prototypes
    picture: Pixels | None  # as it was decoded, scaled down if it is large


def list_images(images: Any, masks: Any, *, cuts_out: bool) -> list[Image]:
    """Return files with their masks, one for each or ``None`` for all; ``cuts_out`` tells whether masks are needed."""
    paths = _listed(images)
    outlines = one_each(masks, "masks", len(paths))
    if cuts_out and None in outlines:
        warnings.warn(
            "the model was trained on lesions that were cut out along their masks: an image without a mask is seen "
            "whole, as few were in training",
            stacklevel=3,
        )
    if not cuts_out and any(outlines):
        warnings.warn("the model looks at whole images: their masks change nothing", stacklevel=3)
    return [Image(Path(path), mask and Path(mask)) for path, mask in zip(paths, outlines, strict=True)]


def one_each(values: Any, name: str, n: int) -> list[Any]:
    """Return one value for each image, ``None`` for all where nothing was given."""
    each = [None] * n if values is None else _listed(values)
    if len(each) != n:
        raise ValueError(f"{name} needs one entry per image: {n}, not {len(each)}")
    return each


def _listed(values: Any) -> list[Any]:
    return [values] if isinstance(values, str | Path) else list(values)


def read_images(
    images: Sequence[Image], first: Framing, second: Framing, *, picture: bool, workers: int | None = None
) -> Read:
    """Yield each image framed for both networks, or why it cannot be; files of unknown origin may be anything.

    By default there are as many ``workers``, processes, as cores.
    """
    return _read(images, _Read(_decode, _Places(first, second, workers), picture), limited=True, workers=workers)


def read_batches(
    images: Sequence[Image], first: Framing, second: Framing, *, batch_size: int, picture: bool = False,
    read: Read | None = None,
) -> Batches:  # fmt: skip
    """Yield the images in order, ``batch_size`` readable ones at a time; the last part may have fewer.

    A thread collects what the workers read, or what somebody else has ``read``, while the caller is busy. It is at most
    two batches ahead.
    """
    return _ahead(read or read_images(images, first, second, picture=picture), batch_size)


def record_batches(manifest: Manifest, first: Framing, second: Framing, *, batch_size: int) -> Batches:
    """Yield the records of a source as :func:`read_batches` yields files."""
    limited = all(record.path is not None for record in manifest.records)
    work = _Read(manifest.reader, _Places(first, second), picture=False)
    return _ahead(_read(manifest.records, work, limited=limited), batch_size)


def _read(items: Sequence[Image] | Sequence[Record], work: _Read, *, limited: bool, workers: int | None = None) -> Read:
    tasks: list[tuple[int, Image | Record]] = list(enumerate(items))
    for i, each in enumerate(in_order(work, tasks, limited=limited, workers=workers)):
        if isinstance(each, Died):
            yield BrokenImageError(each.reason)
        else:
            yield each if isinstance(each, BrokenImageError) else work.places.take(i, each.picture)


def _ahead(images: Read, batch_size: int) -> Batches:
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


def _in_batches(read: Iterator[Framed | BrokenImageError], batch_size: int) -> Batches:
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


class _Places:
    """Memory that forked workers share with this process, with room for as many images as may be under way.

    Image ``i`` lies at place ``i`` modulo their number. Nobody writes there again before it was taken, as no task is
    begun that far ahead.
    """

    def __init__(self, first: Framing, second: Framing, workers: int | None = None) -> None:
        self.framings = (first,) if first == second else (first, second)
        self._size, self._count = sum(framing.nbytes for framing in self.framings), most_ahead(workers)
        self._memory = mmap.mmap(-1, self._count * self._size)  # costs nothing until it is written to

    def views(self, i: int) -> list[Pixels]:
        """Return the memory of image ``i``, an array for each framing."""
        start, arrays = i % self._count * self._size, []
        for framing in self.framings:
            flat = np.frombuffer(self._memory, np.uint8, framing.nbytes, start)
            arrays.append(flat.reshape(framing.height, framing.width, 3))
            start += framing.nbytes
        return arrays

    def take(self, i: int, picture: Pixels | None) -> Framed:
        """Return a copy of image ``i``; its place may be used again."""
        framed = [view.copy() for view in self.views(i)]
        return Framed(framed[0], framed[-1], picture)


class _Done(NamedTuple):
    """An image lies at its place."""

    picture: Pixels | None


@dataclass(frozen=True, slots=True)
class _Read:
    decode: Callable[[Any], Pixels]
    places: _Places
    picture: bool

    def __call__(self, task: tuple[int, Image | Record]) -> _Done | BrokenImageError:
        i, item = task
        try:
            pixels = self.decode(item)
            for framing, place in zip(self.places.framings, self.places.views(i), strict=True):
                place[:] = framing.apply(pixels, framing.mask_of(item.mask))
        except BrokenImageError as error:
            return error
        return _Done(_scaled_down(pixels) if self.picture else None)


def _decode(image: Image) -> Pixels:
    if image.inside is None:
        return decode_file(image.path)
    start, size, suffix = image.inside
    try:
        with image.path.open("rb") as file:
            file.seek(start)
            data = file.read(size)
    except (OSError, ValueError, OverflowError) as error:  # ValueError: a null character in the name
        raise BrokenImageError(f"cannot be fetched: {getattr(error, 'strerror', None) or error}") from error
    if len(data) != size:
        raise BrokenImageError(CHANGED)
    return decode_bytes(data, suffix)


def _scaled_down(pixels: Pixels) -> Pixels:
    if max(pixels.shape) <= _PICTURE_SIZE:
        return pixels
    image = Picture.fromarray(pixels)
    image.thumbnail((_PICTURE_SIZE, _PICTURE_SIZE), Picture.Resampling.LANCZOS)
    return np.array(image)
