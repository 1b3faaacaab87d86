"""The images that an export is compared and calibrated on: given ones, or the small pictures in the model itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image as Picture

from tdumpra.data.images.framing import Framing
from tdumpra.data.images.new import Framed, Image, read_images, record_batches
from tdumpra.data.sources import SOURCE_KINDS, open_source
from tdumpra.data.sources.files import is_image
from tdumpra.data.synthetic import synthetic_manifest
from tdumpra.errors import BrokenImageError, InputFileError
from tdumpra.export.quantise import LEAST_IMAGES, MOST_IMAGES
from tdumpra.networks.model_file import Model

T = TypeVar("T")

_MOST_PICTURES = 128  # of a model's own
_SYNTHETIC = 32  # lesions, for a model that holds no pictures


class Frames(NamedTuple):
    """Images in the frames of both networks, (n, h, w, 3) each."""

    first: np.ndarray
    second: np.ndarray


@contextmanager
def pictures_of(model: Model) -> Iterator[tuple[list[Path], str]]:
    """Yield files of the small pictures that a model holds, and what they are; synthetic lesions if it holds none."""
    names = _spread(sorted(model.thumbnails), _MOST_PICTURES)
    pixels, what = [model.thumbnails[name].numpy() for name in names], "pictures of the model"
    if not pixels:
        manifest = synthetic_manifest(n=_SYNTHETIC)
        pixels, what = [manifest.reader(record) for record in manifest.records], "synthetic lesions"
    with tempfile.TemporaryDirectory() as folder:
        yield [_save(Path(folder) / f"{i:04d}.png", each) for i, each in enumerate(pixels)], what


def calibration_frames(place: str, first: Framing, second: Framing) -> Frames:
    """Return framed images of a data source ``KIND:PLACE`` or a folder, spread over all of it."""
    framed = [each for each in _read(place, first, second) if isinstance(each, Framed)]
    if len(framed) < LEAST_IMAGES:
        raise InputFileError(
            f"{place} holds {len(framed)} readable images, and calibrating int8 needs at least {LEAST_IMAGES}: name a "
            "folder of training images"
        )
    return Frames(np.stack([each.first for each in framed]), np.stack([each.second for each in framed]))


def _read(place: str, first: Framing, second: Framing) -> Iterator[Framed | BrokenImageError]:
    kind, colon, _ = place.partition(":")
    if colon and kind in SOURCE_KINDS:
        manifest = open_source(place, allow_missing=True)
        some = replace(manifest, records=tuple(_spread(manifest.records, MOST_IMAGES)))
        for batch in record_batches(some, first, second, batch_size=MOST_IMAGES):
            yield from batch
    elif Path(place).is_dir():
        paths = sorted(path for path in Path(place).rglob("*") if is_image(path))
        yield from read_images([Image(path) for path in _spread(paths, MOST_IMAGES)], first, second, picture=False)
    else:
        raise InputFileError(
            f"{place} is no folder: calibrating int8 needs one of at least {LEAST_IMAGES} images, or a data source "
            "KIND:PLACE"
        )


def _spread(items: Sequence[T], most: int) -> list[T]:
    return list(items[:: max(1, -(-len(items) // most))])


def _save(path: Path, pixels: np.ndarray) -> Path:
    Picture.fromarray(pixels).save(path)
    return path
