"""What is in a data set: counts per class and split, groups, sizes, colour modes, and what is missing or broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tdumpra.checks import SPLITS
from tdumpra.data.images.scan import scan
from tdumpra.data.manifest import Manifest, Record
from tdumpra.errors import BrokenImageError

LISTED = 1000  # ids of missing files that the JSON names; the count is exact


class Shape(NamedTuple):
    """What one image is like as stored."""

    width: int
    height: int
    mode: str  # RGB, L, CMYK, ...: Pillow's word, or DICOM's photometric interpretation
    format: str


class ClassCounts(NamedTuple):
    """Images and groups of one class, and its images by what the source itself says of their split."""

    images: int
    groups: int
    splits: dict[str, int]


@dataclass(frozen=True, slots=True)
class Inspection:
    """The contents of a data set, in numbers."""

    source: str
    images: int
    groups: int
    masks: int
    classes: dict[str, ClassCounts]
    sizes: dict[tuple[int, int], int]  # (width, height): images, the most frequent first
    modes: dict[str, int]
    formats: dict[str, int]
    missing: tuple[str, ...]
    broken: dict[str, str]  # id: reason
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The inspection as JSON values."""
        return {
            "source": self.source,
            "images": self.images,
            "groups": self.groups,
            "masks": self.masks,
            "classes": {name: counts._asdict() for name, counts in self.classes.items()},
            "sizes": [{"width": w, "height": h, "images": count} for (w, h), count in self.sizes.items()],
            "modes": self.modes,
            "formats": self.formats,
            "missing": {"images": len(self.missing), "ids": list(self.missing[:LISTED])},
            "broken": {"images": len(self.broken), "reasons": self.broken},
            "notes": list(self.notes),
        }


def inspect_manifest(
    manifest: Manifest, *, decode: bool = True, on_step: Callable[[], object] | None = None
) -> Inspection:
    """Look at every image of a data set.

    Args:
        manifest: the data set.
        decode: whether to decode each image in full; otherwise only headers are read, which is much quicker and
            overlooks files that were cut short.
        on_step: called after each image, for a progress bar.
    """

    def look(record: Record) -> Shape:
        if record.path is None:
            height, width, _ = manifest.reader(record).shape
            return Shape(width, height, "RGB", "array")
        from tdumpra.data.images.decode import probe_file

        shape = Shape(*probe_file(record.path))
        if decode:
            manifest.reader(record)
        return shape

    absent = set(manifest.missing)
    present = [record for record in manifest.records if record.id not in absent]
    found = scan(present, look, on_step=on_step)
    shapes = [shape for shape in found if not isinstance(shape, BrokenImageError)]
    return Inspection(
        source=manifest.name,
        images=len(manifest),
        groups=len(np.unique(manifest.groups)),
        masks=sum(record.mask is not None for record in manifest.records),
        classes={name: _class_counts(manifest, label) for label, name in enumerate(manifest.class_names)},
        sizes=dict(Counter((shape.width, shape.height) for shape in shapes).most_common()),
        modes=dict(Counter(shape.mode for shape in shapes).most_common()),
        formats=dict(Counter(shape.format for shape in shapes).most_common()),
        missing=manifest.missing,
        broken={
            record.id: str(result)
            for record, result in zip(present, found, strict=True)
            if isinstance(result, BrokenImageError)
        },
        notes=manifest.notes,
    )


def _class_counts(manifest: Manifest, label: int) -> ClassCounts:
    records = [record for record in manifest.records if record.label == label]
    named = Counter(record.split for record in records if record.split)
    return ClassCounts(
        images=len(records),
        groups=len({record.group for record in records}),
        splits={part: named[part] for part in SPLITS if part in named},
    )
