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


def chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG, with its checksum."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, body: bytes, depth: int = 8, colour: int = 2, more: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + more + chunk(b"IDAT", body) + chunk(b"IEND", b"")


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


def packed_words(rng: np.random.Generator) -> tuple[str, bytes]:
    """A small picture with megabytes of compressed text, or of a colour profile, in its header."""
    packed = zlib.compress(bytes(int(rng.integers(1, 64)) << 20), 9)
    kind, start = ((b"zTXt", b"Comment\0\0"), (b"iCCP", b"profile\0\0"), (b"iTXt", b"a\0\1\0\0\0"))[rng.integers(3)]
    return "png", png(16, 16, zlib.compress(bytes(16 * 49)), more=chunk(kind, start + packed) * int(rng.integers(1, 4)))


def odd_kind_of_pixels(rng: np.random.Generator) -> tuple[str, bytes]:
    """Depths and kinds of colour that a PNG may not have, or has seldom."""
    depth, colour = int(rng.choice([1, 2, 4, 8, 16, 32, 255])), int(rng.integers(8))
    return "png", png(32, 32, zlib.compress(rng.bytes(32 * 260)), depth, colour)


def tags(rng: np.random.Generator) -> tuple[str, bytes]:
    """A TIFF whose tags claim sizes, counts and places at random, or lead in a circle."""
    names = (256, 257, 258, 259, 262, 273, 274, 277, 278, 279, 282, 284, 317, 320, 322, 324, 325, 330, 338, 339)
    entries = b""
    for name in sorted(rng.choice(names, size=12, replace=False).tolist()):
        kind, count = int(rng.integers(1, 14)), int(2 ** rng.uniform(0, 31))
        value = int(rng.choice([0, 1, 8, 64, 2**16, 2**31 - 1, int(rng.integers(2**31))]))
        entries += struct.pack("<HHII", name, kind, count, value)
    following = int(rng.choice([0, 8, 2**31]))
    return "tif", struct.pack("<2sHIH", b"II", 42, 8, 12) + entries + struct.pack("<I", following) + rng.bytes(400)


def claimed_elsewhere(rng: np.random.Generator) -> tuple[str, bytes]:
    """A BMP, GIF, JPEG or WebP whose header claims another size than it has."""
    suffix, place = (("bmp", 18), ("gif", 6), ("jpg", -1), ("webp", 26))[rng.integers(4)]
    data = bytearray(sound(rng, suffix))
    place = data.index(b"\xff\xc0") + 5 if suffix == "jpg" else place
    data[place : place + 4] = rng.bytes(4)
    return suffix, bytes(data)


def many_pages(rng: np.random.Generator) -> tuple[str, bytes]:
    """A GIF with a frame for each few bytes of it: tens of thousands."""
    start = b"GIF89a" + struct.pack("<HHBBB", 16, 16, 0x80, 0, 0) + bytes(6)
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    return "gif", start + frame * int(rng.integers(100, 60_000)) + b"\x3b"


def dicom(rng: np.random.Generator) -> tuple[str, bytes]:
    """A DICOM file with an altered header, a claim of size, or sequences within sequences."""

    def element(group: int, number: int, kind: bytes, value: bytes) -> bytes:
        value += b"\0" * (len(value) % 2)
        long = kind in (b"OB", b"OW", b"SQ", b"UN")
        size = b"\0\0" + struct.pack("<I", len(value)) if long else struct.pack("<H", len(value))
        return struct.pack("<HH", group, number) + kind + size + value

    side = int(rng.choice([16, 64, 65_535]))
    syntax = element(2, 0x10, b"UI", b"1.2.840.10008.1.2.1")
    body = element(8, 0x16, b"UI", b"1.2.840.10008.5.1.4.1.1.7")
    for _ in range(int(rng.integers(200))):  # a sequence within a sequence within …
        body = element(0x40, 0x275, b"SQ", struct.pack("<HHI", 0xFFFE, 0xE000, len(body)) + body)
        if len(body) > 20_000:
            break
    body += element(0x28, 2, b"US", struct.pack("<H", 1)) + element(0x28, 4, b"CS", b"MONOCHROME2")
    body += element(0x28, 8, b"IS", str(int(rng.choice([1, 5, 10**9]))).encode())
    body += b"".join(element(0x28, number, b"US", struct.pack("<H", side)) for number in (0x10, 0x11))
    body += b"".join(element(0x28, n, b"US", struct.pack("<H", v)) for n, v in ((0x100, 8), (0x101, 8), (0x102, 7)))
    body += element(0x28, 0x103, b"US", bytes(2)) + element(0x7FE0, 0x10, b"OW", rng.bytes(64 * 64))
    data = bytearray(bytes(128) + b"DICM" + element(2, 0, b"UL", struct.pack("<I", len(syntax))) + syntax + body)
    for position in rng.integers(132, len(data), size=int(rng.integers(6))):
        data[position] = rng.integers(256)
    return "dcm", bytes(data)


def unlike_its_name(rng: np.random.Generator) -> tuple[str, bytes]:
    inside, outside = rng.choice(list(FORMATS), size=2)
    return str(outside), sound(rng, str(inside))


CHEAP: tuple[Callable[[np.random.Generator], tuple[str, bytes]], ...] = (
    flipped, flipped_header, cut, noise, claimed_size, many_frames, unlike_its_name, many_scans, packed_words,
    odd_kind_of_pixels, tags, claimed_elsewhere, many_pages, dicom,
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
