"""Read a MedMNIST ``.npz``: arrays ``{train,val,test}_images`` and ``{train,val,test}_labels``, the official split.

The file names no classes: they are numbers, except in DermaMNIST, a small HAM10000 with the same classes. Nor does it
name lesions, so each image is its own group, and only the near-duplicate search guards against leaks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.finish import SourceOptions, finish, group_column
from tdumpra.data.sources.ham10000 import HAM10000_CLASSES
from tdumpra.errors import BrokenImageError, InputFileError, SourceError
from tdumpra.foreign import Header, open_npz
from tdumpra.limits import refuse_above
from tdumpra.values import SPLITS


@dataclass(slots=True)
class ArrayReader:
    """Read a record's row of the image array; each process opens the file once, on first use."""

    path: Path
    _images: dict[str, NDArray[Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, record: Record) -> UInt8[np.ndarray, "height width 3"]:
        """Return the record's image as RGB; grey ones have three equal channels."""
        split, _, row = record.id.partition("/")
        if split not in self._images:
            try:
                with open_npz(self.path) as archive:
                    (self._images[split],) = archive.load([f"{split}_images"]).values()
            except InputFileError as error:
                raise BrokenImageError(str(error)) from error
        image = self._images[split][int(row)]
        return np.repeat(image[..., None], 3, axis=-1) if image.ndim == 2 else image

    def __getstate__(self) -> Path:
        return self.path  # the arrays stay behind: a worker loads its own

    def __setstate__(self, path: Path) -> None:
        self.path, self._images = path, {}


def read_medmnist(path: Path, options: SourceOptions) -> Manifest:
    """Read the images of a MedMNIST file in its order; ids are ``train/0`` and so on."""
    group_column(options.group_column, None, (), path)  # there is no column to ask for
    labels = _read_labels(path)
    n_classes = 1 + max(int(values.max()) for values in labels.values())
    derma = path.name.startswith("dermamnist") and n_classes == len(HAM10000_CLASSES)
    names = HAM10000_CLASSES if derma else tuple(str(c) for c in range(n_classes))
    records = [
        Record(id=f"{split}/{row}", path=None, label=int(label), group=f"{split}/{row}", split=split)
        for split, values in labels.items()
        for row, label in enumerate(values)
    ]
    notes = ("MedMNIST names no lesions: each image is taken as a group of its own",)
    return finish("medmnist", path, names, records, options, notes=notes, reader=ArrayReader(path.resolve()))


def _read_labels(path: Path) -> dict[str, NDArray[np.int64]]:
    """Return the labels of each split, checked against the shape of its images, which are not loaded."""
    with open_npz(path, SourceError) as archive:
        headers = archive.headers
        found = [split for split in SPLITS if f"{split}_images" in headers and f"{split}_labels" in headers]
        if not found:
            raise SourceError(f"{path} is no MedMNIST file: it lacks train_images and train_labels")
        labels = archive.load([f"{split}_labels" for split in found])
    return {
        split: _check(labels[f"{split}_labels"], headers[f"{split}_images"], f"{path.name}, {split}") for split in found
    }


def _check(labels: NDArray[Any], images: Header, where: str) -> NDArray[np.int64]:
    shape, dtype = images.shape, images.dtype
    if dtype != np.uint8 or not (len(shape) == 3 or (len(shape) == 4 and shape[-1] == 3)):
        raise SourceError(
            f"{where}: images must be uint8 of shape (n, h, w) or (n, h, w, 3), not {dtype} {shape} "
            "(the three-dimensional sets are not supported)"
        )
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise SourceError(f"{where}: labels have {labels.shape[1]} columns: a multi-label task, which is not supported")
    flat = labels.reshape(-1)
    if len(flat) != shape[0] or not len(flat):
        raise SourceError(f"{where}: {shape[0]} images and {len(flat)} labels")
    if flat.dtype.kind not in "ui" or int(flat.min()) < 0:
        raise SourceError(f"{where}: labels must be whole numbers from 0 upwards")
    if reason := refuse_above("table_columns", int(flat.max()) + 1, "classes"):
        raise SourceError(f"{where}: {reason}")
    return flat.astype(np.int64)
