"""Decode a file of unknown origin to RGB pixels, or say why it cannot be decoded.

Every unusual file becomes plain 8-bit RGB by a stated rule; every broken one raises ``BrokenImageError`` with a reason
short enough for a table. Size and format are checked in the header, before a single pixel is decoded.

=====================  ================================================================================================
what the file holds    what comes out
=====================  ================================================================================================
palette, grey, 1-bit   the colours it stands for
CMYK, YCbCr            Pillow's arithmetic conversion; embedded colour profiles are not applied
16 bits per channel    the high byte of each value: the full range 0…65535 becomes 0…255
transparency           composited over :data:`BACKGROUND`
EXIF orientation       the picture upright
animation, many pages  the first frame
=====================  ================================================================================================
"""

from __future__ import annotations

import io
import mmap
import os
import re
import stat
import threading
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from tdumpra.data.images.dicom import decode_dicom, is_dicom, probe_dicom
from tdumpra.errors import BrokenImageError, MissingExtraError
from tdumpra.limits import limits, refuse_above

if TYPE_CHECKING:
    from jaxtyping import UInt8

DECODER_VERSION = 1  # raised when the same file comes out as other pixels; caches made by an older one are not used
MASK_VERSION = 2  # the same for masks
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")  # Pillow would try some forty, several of them risky
EMPTY = "the file is empty"
MIN_SIDE = 8  # pixels; nothing smaller shows a lesion
BACKGROUND = (255, 255, 255)  # behind transparent pixels: what an image viewer shows

_SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N")
_filters = threading.Lock()  # `warnings` keeps its filters per process, not per thread
_MARKER = re.compile(rb"\xff+([^\x00\xff])")  # of a JPEG


def _renew_lock() -> None:
    """Forget a lock that a thread of the parent holds, which does not live on in a forked child."""
    global _filters
    _filters = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class ImageProbe(NamedTuple):
    """The contents of a file's header, before any rotation that EXIF asks for."""

    width: int
    height: int
    mode: str  # Pillow's mode, or DICOM's photometric interpretation
    format: str


def decode_file(path: Path, *, formats: Collection[str] | None = None) -> UInt8[np.ndarray, "h w 3"]:
    """Decode an image to upright RGB, or raise ``BrokenImageError`` with the reason.

    Of ``formats``, if they are named, the header decides before anything else is read.
    """
    with _opened(path, formats) as file:
        return _decode(file, path.suffix, formats)


def decode_bytes(data: bytes, suffix: str) -> UInt8[np.ndarray, "h w 3"]:
    """Decode the contents of a file whose name had this suffix, as :func:`decode_file` does."""
    with _reasons():
        if not data:
            raise BrokenImageError(EMPTY)
        _refuse("image_bytes", len(data), "bytes")
        return _decode(io.BytesIO(data), suffix)


def probe_file(path: Path) -> ImageProbe:
    """Read size, mode and format from the header, or raise ``BrokenImageError``."""
    with _opened(path) as file:
        if is_dicom(file, path.suffix):
            with _quiet():
                return _refuse_dicom(file)
        with _open(file) as image:
            return ImageProbe(image.width, image.height, image.mode, image.format or "?")


def decode_mask(path: Path) -> UInt8[np.ndarray, "h w"]:
    """Decode a lesion mask to 255 inside: pixels that are not zero or, in a file with transparency, not transparent."""
    with _opened(path) as file:
        if is_dicom(file, path.suffix):
            return np.asarray(_decode(file, path.suffix).max(axis=2))
        with _open(file) as image:
            image.load()
            marked = Image.fromarray(np.where(_marked(image), 255, 0).astype(np.uint8))
            return np.array(_upright(marked, image))


def _decode(file: BinaryIO, suffix: str, formats: Collection[str] | None = None) -> UInt8[np.ndarray, "h w 3"]:
    if is_dicom(file, suffix):
        _refuse_format("DICOM", formats)
        with _quiet():
            _refuse_dicom(file)
            return decode_dicom(file)
    with _open(file) as image:
        _refuse_format(image.format or "?", formats)
        image.load()
        return np.array(_upright(_to_rgb(image), image))  # a copy, which torch may share


def _marked(image: Image.Image) -> np.ndarray:
    """Mark pixels before any conversion to 8 bits, which would lose small labels."""
    if image.has_transparency_data:
        alpha = np.asarray(image.convert("RGBA"))[..., 3]
        if alpha.min() < 255:
            return np.asarray(alpha > 0)
    if image.mode in {*_SIXTEEN_BIT_MODES, "I", "F"}:
        return np.asarray(np.asarray(image) != 0)
    return np.asarray(np.asarray(image.convert("RGB")).any(axis=2))


def refuse_unreadable(path: Path) -> None:
    """Raise ``BrokenImageError`` unless ``path`` is a file with something in it that may be read.

    Symbolic links are followed, wherever they lead: data sets are often folders of links into a store.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise BrokenImageError("a symbolic link to nothing" if path.is_symlink() else "no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise BrokenImageError(getattr(error, "strerror", None) or str(error)) from error
    if not stat.S_ISREG(status.st_mode):  # opening a named pipe would wait for ever
        raise BrokenImageError("not a regular file")
    if status.st_size == 0:
        raise BrokenImageError(EMPTY)
    if not os.access(path, os.R_OK):
        raise BrokenImageError("no permission to read the file")
    _refuse("image_bytes", status.st_size, "bytes")


def _refuse(limit: str, value: float, what: str) -> None:
    if reason := refuse_above(limit, value, what):
        raise BrokenImageError(reason)


def _refuse_format(kind: str, formats: Collection[str] | None) -> None:
    if formats is not None and kind not in formats:
        raise BrokenImageError(f"{kind} is none of the formats that are taken ({', '.join(formats)})")


@contextmanager
def _opened(path: Path, formats: Collection[str] | None = None) -> Iterator[BinaryIO]:
    """Open a file that may be read; whatever a decoder raises of it becomes ``BrokenImageError``."""
    refuse_unreadable(path)
    with _reasons(formats), path.open("rb") as file:
        yield file


@contextmanager
def _reasons(formats: Collection[str] | None = None) -> Iterator[None]:
    """Turn whatever a decoder raises into ``BrokenImageError``."""
    try:
        yield
    except (BrokenImageError, MissingExtraError):
        raise
    except UnidentifiedImageError:
        raise BrokenImageError(
            f"not an image of a format that is read ({', '.join(formats or (*FORMATS, 'DICOM'))})"
        ) from None
    except Image.DecompressionBombError:
        raise BrokenImageError(f"more than the {limits().image_pixels:,.0f} pixels that are decoded") from None
    except MemoryError:
        raise BrokenImageError("not enough memory to decode it") from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BrokenImageError(f"cannot be decoded: {reason}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings about odd headers: what breaks an image is raised anyway."""
    with _filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _open(file: BinaryIO) -> Iterator[Image.Image]:
    """Read the header and check what it promises; Pillow's own limit and warning are put aside."""
    file.seek(0)
    with _quiet():
        theirs, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            opened = Image.open(file, formats=FORMATS)
        finally:
            Image.MAX_IMAGE_PIXELS = theirs
    with opened as image:
        _refuse_size(image.width, image.height)
        _refuse("image_frames", _count_frames(image), "frames")
        if image.format == "JPEG":
            _refuse("image_scans", _count_scans(file, limits().image_scans), "scans")
        yield image


def _refuse_size(width: int, height: int) -> None:
    _refuse("image_pixels", width * height, f"pixels ({width}×{height})")
    _refuse("image_side", max(width, height), "pixels of one side")
    if min(width, height) < MIN_SIDE:
        raise BrokenImageError(f"{width}×{height} pixels show nothing: the least side is {MIN_SIDE}")


def _refuse_dicom(file: BinaryIO) -> ImageProbe:
    width, height, kind, frames = probe_dicom(file)
    _refuse_size(width, height)
    _refuse("image_frames", frames, "frames")
    return ImageProbe(width, height, kind, "DICOM")


def _count_frames(image: Image.Image) -> int:
    """Return the number of frames or pages; 1 where damage behind the first, which alone is decoded, hides it."""
    try:
        return int(getattr(image, "n_frames", 1))
    except Exception:
        image.seek(0)
        return 1


def _count_scans(file: BinaryIO, enough: float) -> int:
    """Count the scans of a JPEG up to its end, without decoding any."""
    scans, position = 0, 0
    with _mapped(file) as data:
        while scans <= enough and (marker := _MARKER.search(data, position)):
            code, position = marker[1][0], marker.end()
            if code == 0xD9:  # the end
                break
            if code in (0x01, *range(0xD0, 0xD9)):  # these stand alone
                continue
            scans += code == 0xDA
            position += int.from_bytes(data[position : position + 2], "big")
    return scans


def _mapped(file: BinaryIO) -> mmap.mmap | memoryview:
    """Return the contents without a copy of them."""
    return file.getbuffer() if isinstance(file, io.BytesIO) else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in _SIXTEEN_BIT_MODES:  # Pillow's own conversion clips at 255 instead of scaling
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in {"I", "F"}:
        kind = "32-bit integer" if image.mode == "I" else "floating-point"
        raise BrokenImageError(f"{kind} pixels have no stated range; save it with 8 or 16 bits")
    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, (*BACKGROUND, 255))
        return Image.alpha_composite(opaque, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _upright(rgb: Image.Image, original: Image.Image) -> Image.Image:
    """Turn the picture as EXIF says; ignore a damaged EXIF block."""
    try:
        with _quiet():
            orientation = original.getexif().get(0x0112, 1)
    except Exception:
        return rgb
    transpose = _TRANSPOSES.get(orientation)
    return rgb if transpose is None else rgb.transpose(transpose)


_TRANSPOSES = {  # EXIF 2.32, tag Orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
