"""Decode DICOM files to 8-bit RGB. Needs the extra ``dicom``, which is imported only when a DICOM file turns up.

Grey images go through the modality transform, then through the window that the file itself states (its VOI lookup
table, or its first window centre and width); a file that states none is stretched from its darkest to its brightest
value, as viewers do. MONOCHROME1, where large values are dark, is turned round. Of several frames the first counts.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tdumpra.errors import BrokenImageError, MissingExtraError

if TYPE_CHECKING:
    from jaxtyping import Float64, UInt8

DICOM_SUFFIXES = frozenset({".dcm", ".dicom", ".ima"})
RASTER_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


def is_dicom(file: BinaryIO, suffix: str) -> bool:
    """Recognise DICOM by its suffix or, where that says nothing (it is often a number), by the first bytes."""
    suffix = suffix.lower()
    return suffix in DICOM_SUFFIXES or (suffix not in RASTER_SUFFIXES and starts_as_dicom(file))


def starts_as_dicom(file: BinaryIO) -> bool:
    """Return whether a file has the letters DICM after DICOM's preamble of 128 bytes."""
    file.seek(0)
    return file.read(132)[128:] == b"DICM"


def probe_dicom(file: BinaryIO) -> tuple[int, int, str, int]:
    """Read width, height, photometric interpretation and number of frames from the header."""
    header = _read(file, stop_before_pixels=True)
    try:
        frames = int(header.get("NumberOfFrames") or 1)
        return int(header.Columns), int(header.Rows), str(header.PhotometricInterpretation), frames
    except AttributeError:
        raise BrokenImageError("a DICOM file without an image") from None


def decode_dicom(file: BinaryIO) -> UInt8[np.ndarray, "h w 3"]:
    """Decode the first frame of a file with the window and colours of its header."""
    pixels = _pydicom().pixels
    dataset = _read(file)
    photometric = str(dataset.PhotometricInterpretation)
    frame = pixels.pixel_array(dataset, index=0)  # YBR arrives as RGB
    if photometric.startswith("MONOCHROME"):
        shade = _grey(frame, dataset, pixels)
        if photometric == "MONOCHROME1":
            shade = 1 - shade
        grey = np.round(shade * 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if photometric == "PALETTE COLOR":
        frame = pixels.apply_color_lut(frame, dataset)[..., :3]
        bits = 8 * frame.dtype.itemsize
    else:
        bits = int(dataset.BitsStored)
    if frame.ndim != 3 or frame.shape[2] != 3:
        raise BrokenImageError(f"DICOM pixels of the kind {photometric} are not read")
    return np.ascontiguousarray((frame >> max(bits - 8, 0)).astype(np.uint8))


def _grey(frame: np.ndarray, dataset: Any, pixels: ModuleType) -> Float64[np.ndarray, "h w"]:
    """Return the frame as shades from 0 to 1."""
    values = np.asarray(pixels.apply_modality_lut(frame, dataset), dtype=np.float64)
    if dataset.get("VOILUTSequence"):
        return _look_up(values, dataset.VOILUTSequence[0])
    if dataset.get("WindowCenter") is not None and dataset.get("WindowWidth") is not None:
        return _window(values, _first(dataset.WindowCenter), _first(dataset.WindowWidth), dataset)
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def _look_up(values: Float64[np.ndarray, "h w"], table: Any) -> Float64[np.ndarray, "h w"]:
    """Apply a VOI lookup table (C.11.2.1.1). pydicom 3.0's own wraps round at 256 where the entries have eight bits."""
    first, bits = int(table.LUTDescriptor[1]), int(table.LUTDescriptor[2])
    data = table.LUTData
    entries = np.frombuffer(data, "<u2") if isinstance(data, bytes) else np.asarray(data)
    index = np.clip(values - first, 0, len(entries) - 1).astype(np.int64)
    return np.asarray(np.clip(entries[index] / (2.0**bits - 1), 0, 1))


def _window(
    values: Float64[np.ndarray, "h w"], center: float, width: float, dataset: Any
) -> Float64[np.ndarray, "h w"]:
    """Apply a window (DICOM PS3.3, C.11.2.1.2 and C.11.2.1.3), onto 0…1."""
    function = str(dataset.get("VOILUTFunction") or "LINEAR")
    if function == "SIGMOID":
        return 1 / (1 + np.exp(-4 * (values - center) / width))
    if function == "LINEAR_EXACT":
        return np.clip((values - center) / width + 0.5, 0, 1)
    if width <= 1:  # the standard's limit case: a step
        return (values > center - 0.5).astype(np.float64)
    return np.clip((values - (center - 0.5)) / (width - 1) + 0.5, 0, 1)


def _first(value: Any) -> float:
    return float(value[0] if hasattr(value, "__len__") and not isinstance(value, str) else value)


def _read(file: BinaryIO, *, stop_before_pixels: bool = False) -> Any:
    pydicom = _pydicom()
    file.seek(0)
    try:
        return pydicom.dcmread(file, stop_before_pixels=stop_before_pixels)
    except pydicom.errors.InvalidDicomError:
        raise BrokenImageError("named like a DICOM file, but is none") from None


def _pydicom() -> ModuleType:
    try:
        import pydicom
        import pydicom.pixels
    except ImportError:
        raise MissingExtraError("pydicom", "dicom", "reading DICOM files") from None
    return pydicom
