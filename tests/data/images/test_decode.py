from __future__ import annotations

import builtins
import contextlib
import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tdumpra.data.images.decode import BACKGROUND, decode_file, decode_mask, probe_file
from tdumpra.errors import BrokenImageError, MissingExtraError
from tdumpra.limits import limits


def photograph(height: int = 48, width: int = 64) -> np.ndarray:
    """Smooth enough to survive JPEG, with no symmetry that could hide a rotation."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([255 * x / width, 255 * y / height, 255 * (x + y) / (width + height)], 2).astype(np.uint8)


def reason(path: Path) -> str:
    with pytest.raises(BrokenImageError) as caught:
        decode_file(path)
    return str(caught.value)


def png_that_claims(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header announces any size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff"])
def test_lossless_rgb_comes_back_exactly(tmp_path, suffix):
    Image.fromarray(photograph()).save(tmp_path / f"a.{suffix}")
    np.testing.assert_array_equal(decode_file(tmp_path / f"a.{suffix}"), photograph())


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_lossy_rgb_comes_back_closely(tmp_path, suffix):
    Image.fromarray(photograph()).save(tmp_path / f"a.{suffix}", quality=95)
    decoded = decode_file(tmp_path / f"a.{suffix}")
    assert decoded.dtype == np.uint8
    assert np.abs(decoded.astype(int) - photograph()).mean() < 3


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.95])
def test_a_truncated_jpeg_is_broken(tmp_path, kept, progressive):
    path = tmp_path / "a.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)).save(
        path, progressive=progressive
    )
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    assert reason(path)


def test_an_empty_file_is_broken(tmp_path):
    (tmp_path / "a.jpg").touch()
    assert reason(tmp_path / "a.jpg") == "the file is empty"


def test_text_named_jpg_is_broken(tmp_path):
    (tmp_path / "a.jpg").write_text("Not Found")
    assert "not an image of a format that is read" in reason(tmp_path / "a.jpg")


def test_the_reason_names_the_formats_that_would_be_taken(tmp_path):
    (tmp_path / "a.jpg").write_text("Not Found")
    with pytest.raises(BrokenImageError) as raised:
        decode_file(tmp_path / "a.jpg", formats=("PNG", "BMP"))
    assert "PNG, BMP" in str(raised.value)
    assert "DICOM" not in str(raised.value)


def test_a_format_off_the_list_is_broken(tmp_path):
    Image.fromarray(photograph()).save(tmp_path / "a.ppm")
    assert "not an image of a format that is read" in reason(tmp_path / "a.ppm")


def test_one_pixel_is_broken(tmp_path):
    Image.new("RGB", (1, 1)).save(tmp_path / "a.png")
    assert reason(tmp_path / "a.png").startswith("1×1")


@pytest.mark.parametrize("side", [8_001, 10_000, 20_000])  # above our cap, above Pillow's warning, above its error
def test_a_decompression_bomb_is_refused_from_its_header(tmp_path, side):
    (tmp_path / "bomb.png").write_bytes(png_that_claims(side, side))
    assert f"{side**2:,} pixels" in reason(tmp_path / "bomb.png")
    with pytest.raises(BrokenImageError, match="image_pixels"):
        probe_file(tmp_path / "bomb.png")
    assert side**2 > limits().image_pixels


def jpeg_of_scans(count: int) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    picture = io.BytesIO()
    Image.fromarray(photograph()).save(picture, "JPEG", progressive=True)
    data = picture.getvalue()
    start = data.rindex(b"\xff\xda")
    scans = data.count(b"\xff\xda")
    return data[:start] + data[start:-2] * (count - scans + 1) + data[-2:]


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    (tmp_path / "a.jpg").write_bytes(jpeg_of_scans(400))
    assert "scans are more than the 100" in reason(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").write_bytes(jpeg_of_scans(100))
    assert decode_file(tmp_path / "b.jpg").shape == (48, 64, 3)
    monkeypatch.setenv("TDUMPRA_LIMITS", "image_scans=99")
    assert "image_scans" in reason(tmp_path / "b.jpg")


def test_marks_of_scans_in_other_parts_of_a_jpeg_do_not_count(tmp_path):
    picture = io.BytesIO()
    Image.fromarray(photograph()).save(picture, "JPEG", comment=b"\xff\xda" * 200)
    (tmp_path / "a.jpg").write_bytes(picture.getvalue() + b"\xff\xda" * 200)  # a phone's film after the end
    assert decode_file(tmp_path / "a.jpg").shape == (48, 64, 3)


def test_long_sides_many_frames_and_large_files_are_refused(tmp_path, monkeypatch):
    (tmp_path / "long.png").write_bytes(png_that_claims(8, 7_999_999))
    assert "image_side" in reason(tmp_path / "long.png")
    frames = [Image.new("L", (16, 16), 20 * i) for i in range(12)]
    for name in ("a.gif", "a.tif", "a.webp", "a.png"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
        assert decode_file(tmp_path / name).shape == (16, 16, 3)
        monkeypatch.setenv("TDUMPRA_LIMITS", "image_frames=11")
        assert "12 frames" in reason(tmp_path / name)
        monkeypatch.setenv("TDUMPRA_LIMITS", "image_bytes=50")
        assert "image_bytes" in reason(tmp_path / name)
        monkeypatch.delenv("TDUMPRA_LIMITS")


def test_a_limit_may_be_raised_beyond_that_of_pillow(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(png_that_claims(20_000, 20_000))
    monkeypatch.setenv("TDUMPRA_LIMITS", "image_pixels=5e8")
    assert probe_file(tmp_path / "a.png")[:2] == (20_000, 20_000)


def test_cmyk_becomes_rgb(tmp_path):
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=95)
    red = decode_file(tmp_path / "a.jpg").reshape(-1, 3).mean(0)
    assert red[0] > 240
    assert red[1:].max() < 15


def test_sixteen_bit_grey_keeps_its_scale(tmp_path):
    ramp = np.linspace(0, 65535, 16 * 16).astype(np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / "a.png")
    np.testing.assert_array_equal(decode_file(tmp_path / "a.png"), np.repeat((ramp >> 8)[..., None], 3, 2))


def test_pixels_without_a_range_are_broken(tmp_path):
    Image.fromarray(np.ones((16, 16), np.float32)).save(tmp_path / "a.tiff")
    assert "floating-point" in reason(tmp_path / "a.tiff")


def test_a_palette_gives_its_colours(tmp_path):
    quantised = Image.fromarray(photograph()).quantize(16)
    quantised.save(tmp_path / "a.png")
    np.testing.assert_array_equal(decode_file(tmp_path / "a.png"), np.asarray(quantised.convert("RGB")))


def test_a_transparent_palette_is_composited(tmp_path):
    image = Image.new("P", (16, 16), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.paste(1, (0, 0, 8, 16))
    image.save(tmp_path / "a.png", transparency=0)
    decoded = decode_file(tmp_path / "a.png")
    assert tuple(decoded[0, 0]) == (200, 100, 50)
    assert tuple(decoded[0, 15]) == BACKGROUND


@pytest.mark.parametrize(
    ("mode", "colour", "expected"), [("RGBA", (200, 0, 0, 128), (227, 127, 127)), ("LA", (0, 0), BACKGROUND)]
)
def test_alpha_is_composited_over_the_background(tmp_path, mode, colour, expected):
    # 200·128/255 + 255·127/255 = 227.4, and 127 for a channel at zero
    Image.new(mode, (16, 16), colour).save(tmp_path / "a.png")
    assert np.abs(decode_file(tmp_path / "a.png")[3, 3].astype(int) - expected).max() <= 1


@pytest.mark.parametrize("mode", ["L", "1"])
def test_grey_has_three_equal_channels(tmp_path, mode):
    Image.fromarray(photograph()).convert(mode).save(tmp_path / "a.png")
    decoded = decode_file(tmp_path / "a.png")
    assert decoded.shape == (48, 64, 3)
    assert (decoded == decoded[..., :1]).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_undone(tmp_path, orientation):
    upright = Image.fromarray(photograph())
    inverse = {5: 5, 6: 8, 7: 7, 8: 6}  # the others undo themselves
    stored = upright
    steps = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # Image.Transpose: how a viewer turns each orientation
    if orientation > 1:
        stored = upright.transpose(Image.Transpose(steps[inverse.get(orientation, orientation)]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(decode_file(tmp_path / "a.png"), photograph())


def test_a_damaged_exif_block_costs_only_the_rotation(tmp_path):
    Image.fromarray(photograph()).save(tmp_path / "a.jpg", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff garbage")
    assert decode_file(tmp_path / "a.jpg").shape == (48, 64, 3)


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue", "lime")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert tuple(decode_file(tmp_path / "a.gif")[5, 5]) == (255, 0, 0)


def test_symbolic_links_are_followed_out_of_the_folder(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "set").mkdir()
    Image.fromarray(photograph()).save(tmp_path / "store" / "a.png")
    (tmp_path / "set" / "link.png").symlink_to(tmp_path / "store" / "a.png")
    assert decode_file(tmp_path / "set" / "link.png").shape == (48, 64, 3)


def test_links_that_lead_nowhere_are_broken(tmp_path):
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "gone.jpg")
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    assert reason(tmp_path / "dangling.jpg") == "a symbolic link to nothing"
    assert "symbolic links" in reason(tmp_path / "loop.jpg")


def test_what_is_no_file_is_broken(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    assert reason(tmp_path / "pipe.jpg") == "not a regular file"
    assert reason(tmp_path) == "not a regular file"
    assert reason(tmp_path / "absent.jpg") == "no such file"
    assert reason(tmp_path / ("x" * 300 + ".jpg")) == "File name too long"
    assert "null" in reason(tmp_path / "a\0b.jpg")


def test_unicode_and_long_names_are_read(tmp_path):
    for name in ("läsion 痣 🩺.png", "x" * 250 + ".png"):
        Image.fromarray(photograph()).save(tmp_path / name)
        assert decode_file(tmp_path / name).shape == (48, 64, 3)


@pytest.mark.parametrize("seed", range(60))
def test_damaged_bytes_give_pixels_or_a_reason_and_nothing_else(tmp_path, seed):
    rng = np.random.default_rng(seed)
    suffix = ["jpg", "png", "gif", "tiff", "webp", "bmp"][seed % 6]
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(photograph()).save(path)
    data = bytearray(path.read_bytes())
    for position in rng.integers(0, len(data), 12):
        data[position] = rng.integers(256)
    path.write_bytes(data)
    with contextlib.suppress(BrokenImageError):
        assert decode_file(path).shape[2] == 3


def test_probe_reads_the_header(tmp_path):
    Image.fromarray(photograph()).convert("L").save(tmp_path / "a.png")
    assert probe_file(tmp_path / "a.png") == (64, 48, "L", "PNG")


@pytest.mark.parametrize("kind", ["labels of 16 bits", "of 32 bits", "transparent outside", "opaque", "one bit"])
def test_a_mask_however_it_was_saved(tmp_path, kind):
    inside = np.zeros((20, 30), bool)
    inside[5:9, 7:12] = True
    if kind == "transparent outside":
        image = Image.fromarray(np.dstack([np.zeros((20, 30, 3), np.uint8), np.uint8(255) * inside]))
    elif kind == "opaque":
        image = Image.fromarray(np.dstack([*3 * [np.uint8(255) * inside], np.full((20, 30), 255, np.uint8)]))
    elif kind == "one bit":
        image = Image.fromarray(np.uint8(255) * inside).convert("1")
    else:
        image = Image.fromarray(inside.astype(np.uint16 if "16" in kind else np.int32))
    name = tmp_path / ("m.tif" if "32" in kind else "m.png")
    image.save(name)
    np.testing.assert_array_equal(decode_mask(name), np.uint8(255) * inside)


def test_a_mask_is_one_channel(tmp_path):
    mask = np.zeros((20, 30), np.uint8)
    mask[5:9, 7:12] = 255
    Image.fromarray(mask).save(tmp_path / "m.png")
    np.testing.assert_array_equal(decode_mask(tmp_path / "m.png"), mask)


def test_dicom_without_its_extra_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.dcm").write_bytes(b"\0" * 128 + b"DICM")
    real_import = builtins.__import__

    def without_pydicom(name, *args, **kwargs):
        if name.startswith("pydicom"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pydicom)
    with pytest.raises(MissingExtraError, match=r"tdumpra\[dicom\]"):
        decode_file(tmp_path / "a.dcm")
