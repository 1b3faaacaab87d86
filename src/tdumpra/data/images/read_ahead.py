"""Decode and frame files ahead of the network: in threads, in order, in bounded memory, broken files set apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image as Picture

from tdumpra.data.images.decode import decode_file
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.workers import available_cores
from tdumpra.errors import BrokenImageError

Pixels = UInt8[np.ndarray, "h w 3"]

_PICTURE_SIZE = 1024  # pixels of the longer side of the picture that is kept
_MOST_THREADS = 16  # beyond, the interpreter lock is what they wait for


class Image(NamedTuple):
    """An image to predict."""

    path: Path
    mask: Path | None = None  # of the lesion, for networks that see it cut out


class Framed(NamedTuple):
    """A decoded image, framed for each of two networks."""

    first: Pixels  # for the classifier
    second: Pixels  # for the network that matches prototypes; the same array where both see the same
    picture: Pixels | None  # as it was decoded, scaled down if it is large


class ReadImages(NamedTuple):
    """Consecutive images: the framed ones are a batch, and each of the others has the reason why it is not."""

    results: list[Framed | str]

    @property
    def framed(self) -> list[Framed]:
        """Return the images that could be read."""
        return [each for each in self.results if not isinstance(each, str)]


def read_ahead(
    images: Sequence[Image], first: Framing, second: Framing, *, batch_size: int, picture: bool = False
) -> Iterator[ReadImages]:
    """Yield the images in order, ``batch_size`` readable ones at a time; the last part may have fewer.

    Threads suffice, as decoding and resizing release the interpreter lock. They are at most two batches ahead.
    """

    def read(image: Image) -> Framed | str:
        try:
            return _read(image, first, second, picture=picture)
        except BrokenImageError as error:
            return str(error)

    ahead = batch_size if picture else 2 * batch_size
    waiting: deque[Future[Framed | str]] = deque()
    pool = ThreadPoolExecutor(min(_MOST_THREADS, available_cores()))
    try:
        todo, results, n_framed = iter(images), list[Framed | str](), 0
        while True:
            while len(waiting) < ahead and (image := next(todo, None)) is not None:
                waiting.append(pool.submit(read, image))
            if not waiting:
                break
            results.append(found := waiting.popleft().result())
            n_framed += not isinstance(found, str)
            if n_framed == batch_size:
                yield ReadImages(results)
                results, n_framed = [], 0
        if results:
            yield ReadImages(results)
    finally:
        pool.shutdown(cancel_futures=True)


def _read(image: Image, first: Framing, second: Framing, *, picture: bool) -> Framed:
    """Decode a file once, frame it for both networks, and keep a picture of it if asked."""
    pixels = decode_file(image.path)
    framed = {framing: framing.apply(pixels, framing.mask_of(image.mask)) for framing in (first, second)}
    return Framed(framed[first], framed[second], _scaled_down(pixels) if picture else None)


def _scaled_down(pixels: Pixels) -> Pixels:
    if max(pixels.shape) <= _PICTURE_SIZE:
        return pixels
    image = Picture.fromarray(pixels)
    image.thumbnail((_PICTURE_SIZE, _PICTURE_SIZE), Picture.Resampling.LANCZOS)
    return np.array(image)
