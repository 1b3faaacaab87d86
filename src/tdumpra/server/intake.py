"""Take an upload in: decode it in a process that may die of it, and keep nothing of the file but its pixels.

What was stored carries no metadata (no place, no name, no device, no embedded preview): it is a new PNG of the decoded
pixels. The same bytes are what the networks are shown again when a prediction is replayed.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image as Picture

from tdumpra.data.images.crew import Crew
from tdumpra.data.images.decode import decode_file
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.new import Framed
from tdumpra.data.images.workers import Died
from tdumpra.errors import BrokenImageError
from tdumpra.server.refusals import RefusedError
from tdumpra.server.settings import FORMATS
from tdumpra.server.store import Store

PREVIEW_SIZE = 1024  # pixels of the longer side of what pages show
_FAST = 1  # of zlib's levels: half the time of the usual one, and a tenth more bytes

Framings = tuple[Framing, Framing]


class Task(NamedTuple):
    """An upload: where it lies, how each model wants it, and whether it is to be kept."""

    path: str
    framings: tuple[Framings, ...]
    keep: bool


class Taken(NamedTuple):
    """An upload's pixels, framed for each model; to be kept, as a PNG and as a small JPEG."""

    framed: tuple[Framed, ...]
    width: int
    height: int
    image: bytes
    preview: bytes


class Intake:
    """The processes that decode."""

    def __init__(self, store: Store, size: int) -> None:
        self._store = store
        self._crew: Crew[Task, Taken | BrokenImageError] = Crew(take, size, preload=[__name__])

    def __call__(self, data: bytes, framings: tuple[Framings, ...], *, keep: bool) -> Taken:
        """Decode an upload, or raise ``RefusedError`` with the reason."""
        with tempfile.NamedTemporaryFile(dir=self._store.incoming) as file:  # named by us, and gone at the end
            file.write(data)
            file.flush()
            found = self._crew.do(Task(file.name, framings, keep))
        if isinstance(found, Taken):
            return found
        reason = found.reason if isinstance(found, Died) else str(found)
        raise RefusedError(422, f"the upload is not taken: {reason}")

    def decode_stored(self, path: Path, framings: tuple[Framings, ...]) -> Taken:
        """Frame an image of the store again."""
        return self(self._store.read(path), framings, keep=False)

    def close(self) -> None:
        """End the processes."""
        self._crew.close()


def take(task: Task) -> Taken | BrokenImageError:
    """Decode a file, in a worker process."""
    path = Path(task.path)
    try:
        pixels = decode_file(path, formats=FORMATS)
    except BrokenImageError as error:
        return BrokenImageError(str(error).replace(task.path, "the file"))
    framed = []
    for first, second in task.framings:
        one = first.apply(pixels, None)
        framed.append(Framed(one, one if second == first else second.apply(pixels, None), None))
    height, width = pixels.shape[:2]
    image, preview = (_png(pixels), _preview(pixels)) if task.keep else (b"", b"")
    return Taken(tuple(framed), width, height, image, preview)


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Picture.fromarray(pixels).save(buffer, "PNG", compress_level=_FAST)
    return buffer.getvalue()


def _preview(pixels: np.ndarray) -> bytes:
    picture, buffer = Picture.fromarray(pixels), io.BytesIO()
    picture.thumbnail((PREVIEW_SIZE, PREVIEW_SIZE), Picture.Resampling.LANCZOS)
    picture.save(buffer, "JPEG", quality=88)
    return buffer.getvalue()
