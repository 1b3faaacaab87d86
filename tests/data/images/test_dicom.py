from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdumpra.data.images.decode import decode_file, probe_file
from tdumpra.errors import BrokenImageError

pydicom = pytest.importorskip("pydicom")

RAMP = np.arange(16 * 16, dtype=np.uint16).reshape(16, 16) * 16  # 0 … 4080: twelve bits


def save(path: Path, pixels: np.ndarray, photometric: str, *, bits: int, **header: Any) -> Path:
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    dataset.SOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    dataset.SOPInstanceUID = pydicom.uid.generate_uid(entropy_srcs=["test"])
    colour = photometric in {"RGB", "YBR_FULL"}
    if pixels.ndim == (4 if colour else 3):
        dataset.NumberOfFrames = len(pixels)
    dataset.Rows, dataset.Columns = pixels.shape[-3:-1] if colour else pixels.shape[-2:]
    dataset.SamplesPerPixel = 3 if colour else 1
    if colour:
        dataset.PlanarConfiguration = 0
    dataset.PhotometricInterpretation = photometric
    dataset.BitsAllocated = pixels.dtype.itemsize * 8
    dataset.BitsStored, dataset.HighBit = bits, bits - 1
    dataset.PixelRepresentation = 0
    dataset.PixelData = pixels.tobytes()
    for name, value in header.items():
        setattr(dataset, name, value)
    dataset.save_as(path, enforce_file_format=True)
    return path


def test_monochrome2_without_a_window_is_stretched(tmp_path):
    decoded = decode_file(save(tmp_path / "a.dcm", RAMP, "MONOCHROME2", bits=12))
    np.testing.assert_array_equal(decoded[..., 0], np.round(RAMP / 4080 * 255))
    assert (decoded == decoded[..., :1]).all()


def test_monochrome1_is_turned_round(tmp_path):
    bright = decode_file(save(tmp_path / "a.dcm", RAMP, "MONOCHROME2", bits=12))
    dark = decode_file(save(tmp_path / "b.dcm", RAMP, "MONOCHROME1", bits=12))
    assert np.abs(bright.astype(int) + dark - 255).max() <= 1  # each is rounded by itself


def test_the_window_is_applied_after_the_modality_transform(tmp_path):
    # x = 2·v - 1000; the standard's linear window, c = 1000, w = 1001: y = (x - 999.5)/1000 + 0.5
    path = save(
        tmp_path / "a.dcm", RAMP, "MONOCHROME2", bits=12, WindowCenter=[1000, 5], WindowWidth=[1001, 5],
        RescaleSlope=2, RescaleIntercept=-1000,
    )  # fmt: skip
    expected = np.round(np.clip((2.0 * RAMP - 1000 - 999.5) / 1000 + 0.5, 0, 1) * 255)
    np.testing.assert_array_equal(decode_file(path)[..., 0], expected)


@pytest.mark.parametrize(("function", "middle"), [("SIGMOID", 128), ("LINEAR_EXACT", 128)])
def test_other_window_functions_put_their_centre_at_half(tmp_path, function, middle):
    path = save(
        tmp_path / "a.dcm", RAMP, "MONOCHROME2", bits=12, WindowCenter=1600, WindowWidth=800, VOILUTFunction=function
    )
    assert decode_file(path)[..., 0][RAMP == 1600] == middle


def test_a_voi_lookup_table_is_followed(tmp_path):
    table = pydicom.Dataset()
    table.LUTDescriptor = [4096, 0, 8]
    table.LUTData = [255 - (i >> 4) for i in range(4096)]
    table["LUTDescriptor"].VR, table["LUTData"].VR = "US", "US"
    path = save(tmp_path / "a.dcm", RAMP, "MONOCHROME2", bits=12, VOILUTSequence=pydicom.Sequence([table]))
    np.testing.assert_array_equal(decode_file(path)[..., 0], 255 - (RAMP >> 4))


def test_rgb_comes_back_exactly(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
    path = save(tmp_path / "a.dcm", pixels, "RGB", bits=8)
    np.testing.assert_array_equal(decode_file(path), pixels)
    assert probe_file(path) == (24, 16, "RGB", "DICOM")


def test_ybr_becomes_rgb(tmp_path):
    red = np.full((16, 16, 3), (76, 85, 255), np.uint8)  # ITU-R BT.601, full range
    decoded = decode_file(save(tmp_path / "a.dcm", red, "YBR_FULL", bits=8))
    assert np.abs(decoded[0, 0].astype(int) - (255, 0, 0)).max() <= 2


@pytest.mark.parametrize("entry_bits", [8, 16])
def test_a_palette_gives_its_colours(tmp_path, entry_bits):
    levels = np.arange(256, dtype=np.uint16)
    channels = {"Red": levels, "Green": levels[::-1], "Blue": levels // 2}
    header: dict[str, Any] = {}
    for name, level in channels.items():
        entries = level.astype(np.uint8) if entry_bits == 8 else level * 257
        header[f"{name}PaletteColorLookupTableDescriptor"] = [256, 0, entry_bits]
        header[f"{name}PaletteColorLookupTableData"] = entries.tobytes()
    indices = np.arange(256, dtype=np.uint8).reshape(16, 16)
    decoded = decode_file(save(tmp_path / "a.dcm", indices, "PALETTE COLOR", bits=8, **header))
    np.testing.assert_array_equal(decoded, np.stack([c[indices] for c in channels.values()], 2))


def test_the_first_of_several_frames_counts(tmp_path):
    frames = np.stack([np.full((16, 16, 3), v, np.uint8) for v in (10, 200)])
    assert (decode_file(save(tmp_path / "a.dcm", frames, "RGB", bits=8)) == 10).all()


def test_a_dicom_file_is_known_by_its_bytes_where_the_name_says_nothing(tmp_path):
    pixels = np.full((16, 16, 3), 7, np.uint8)
    assert (decode_file(save(tmp_path / "1.2.840.10008", pixels, "RGB", bits=8)) == 7).all()


def test_a_dicom_bomb_is_refused_from_its_header(tmp_path):
    path = save(tmp_path / "a.dcm", np.zeros((16, 16), np.uint8), "MONOCHROME2", bits=8, Rows=20_000, Columns=20_000)
    with pytest.raises(BrokenImageError, match=r"\(20000×20000\) are more than"):
        decode_file(path)


def test_what_is_no_dicom_image_is_broken(tmp_path):
    (tmp_path / "text.dcm").write_text("hello")
    with pytest.raises(BrokenImageError, match="but is none"):
        decode_file(tmp_path / "text.dcm")
    path = save(tmp_path / "a.dcm", RAMP, "MONOCHROME2", bits=12)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BrokenImageError, match="cannot be decoded"):
        decode_file(path)
