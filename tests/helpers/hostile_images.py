"""Images as a stranger could send them: cut, altered, or made to cost memory and time. Seeded."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

FORMATS = {"jpg": "JPEG", "png": "PNG", "gif": "GIF", "tif": "TIFF", "webp": "WEBP", "bmp": "BMP"}


def sound(rng: np.random.Generator, suffix: str, side: int = 64, **options: object) -> bytes:
    pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC)
    data = io.BytesIO()
    picture.save(data, FORMATS[suffix], **options)
    return data.getvalue()


def flipped(rng: np.random.Generator) -> tuple[str, bytes]:
    suffix = str(rng.choice(list(FORMATS)))
    data = bytearray(sound(rng, suffix))
    for position in rng.integers(len(data), size=rng.integers(1, 30)):
        data[position] = rng.integers(256)
    return suffix, bytes(data)


def flipped_header(rng: np.random.Generator) -> tuple[str, bytes]:
    suffix = str(rng.choice(list(FORMATS)))
    data = bytearray(sound(rng, suffix))
    for position in rng.integers(min(64, len(data)), size=rng.integers(1, 6)):
        data[position] = rng.integers(256)
    return suffix, bytes(data)


def cut(rng: np.random.Generator) -> tuple[str, bytes]:
    suffix = str(rng.choice(list(FORMATS)))
    data = sound(rng, suffix)
    return suffix, data[: rng.integers(len(data))]


def noise(rng: np.random.Generator) -> tuple[str, bytes]:
    suffix = str(rng.choice([*FORMATS, "dcm"]))
    return suffix, rng.bytes(int(rng.integers(5000)))


def png(width: int, height: int, body: bytes, depth: int = 8, colour: int = 2) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def claimed_size(rng: np.random.Generator) -> tuple[str, bytes]:
    width, height = (int(2 ** rng.uniform(0, 31)) for _ in range(2))
    return "png", png(width, height, zlib.compress(bytes(1000)))


def large_and_blank(rng: np.random.Generator) -> tuple[str, bytes]:
    """Sixty million pixels in a few kilobytes."""
    side = int(rng.integers(6000, 7800))
    packer, rows = zlib.compressobj(9), bytes(16 * (1 + 3 * side))
    body = b"".join(packer.compress(rows) for _ in range(side // 16 + 1))
    return "png", png(side, side, body + packer.flush())


def long_and_thin(rng: np.random.Generator) -> tuple[str, bytes]:
    height = int(rng.integers(40_000, 7_999_999))
    return "png", png(8, height, zlib.compress(bytes(25 * height), 1))


def many_scans(rng: np.random.Generator) -> tuple[str, bytes]:
    """A progressive JPEG that repeats its last scan hundreds of times."""
    data = sound(rng, "jpg", side=int(rng.integers(200, 2000)), progressive=True)
    start = data.rindex(b"\xff\xda")
    return "jpg", data[:start] + data[start:-2] * int(rng.integers(80, 2000)) + data[-2:]


def many_frames(rng: np.random.Generator) -> tuple[str, bytes]:
    frames = [Image.new("L", (16, 16), int(shade)) for shade in rng.integers(256, size=40)]
    data = io.BytesIO()
    suffix = str(rng.choice(["gif", "tif", "webp"]))
    frames[0].save(data, FORMATS[suffix], save_all=True, append_images=frames[1:])
    return suffix, data.getvalue() + rng.bytes(100)


def unlike_its_name(rng: np.random.Generator) -> tuple[str, bytes]:
    inside, outside = rng.choice(list(FORMATS), size=2)
    return str(outside), sound(rng, str(inside))


CHEAP: tuple[Callable[[np.random.Generator], tuple[str, bytes]], ...] = (
    flipped, flipped_header, cut, noise, claimed_size, many_frames, unlike_its_name, many_scans,
)  # fmt: skip
COSTLY = (large_and_blank, long_and_thin)


def write_hostile(folder: Path, count: int, *, seed: int = 0, costly: int = 20) -> Iterator[Path]:
    """Write ``count`` images; each one of ``costly`` is large."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        kinds = COSTLY if i % costly == costly - 1 else CHEAP
        suffix, data = kinds[int(rng.integers(len(kinds)))](rng)
        path = folder / f"{i:05d}.{suffix}"
        path.write_bytes(data)
        yield path
