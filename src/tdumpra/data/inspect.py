"""Count what a data set holds: classes, splits, groups, sizes, colour modes, missing and broken files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from tdumpra.checks import SPLITS
from tdumpra.data.images.decode import ImageProbe, probe_file
from tdumpra.data.images.workers import scan
from tdumpra.data.manifest import Manifest, Record
from tdumpra.errors import BrokenImageError

LISTED = 1000  # ids of missing files that the document names; their count is exact


def inspect_manifest(
    manifest: Manifest, *, decode: bool = True, on_step: Callable[[], object] | None = None
) -> dict[str, Any]:
    """Look at every image of a data set and return counts as JSON values.

    Without ``decode`` only headers are read, which is much quicker and overlooks files that were cut short. ``on_step``
    is called after each image.
    """

    def look(record: Record) -> ImageProbe:
        if record.path is None:
            height, width, _ = manifest.reader(record).shape
            return ImageProbe(width, height, "RGB", "array")
        probe = probe_file(record.path)
        if decode:
            manifest.reader(record)
        return probe

    absent = set(manifest.missing)
    present = [record for record in manifest.records if record.id not in absent]
    found = scan(present, look, on_step=on_step)
    probes = [probe for probe in found if isinstance(probe, ImageProbe)]
    sizes = Counter((probe.width, probe.height) for probe in probes).most_common()
    broken = {
        record.id: str(error)
        for record, error in zip(present, found, strict=True)
        if isinstance(error, BrokenImageError)
    }
    return {
        "source": manifest.name,
        "images": len(manifest),
        "groups": len(np.unique(manifest.groups)),
        "masks": sum(record.mask is not None for record in manifest.records),
        "classes": {name: _class_counts(manifest, label) for label, name in enumerate(manifest.class_names)},
        "sizes": [{"width": width, "height": height, "images": count} for (width, height), count in sizes],
        "modes": dict(Counter(probe.mode for probe in probes).most_common()),
        "formats": dict(Counter(probe.format for probe in probes).most_common()),
        "missing": {"images": len(manifest.missing), "ids": list(manifest.missing[:LISTED])},
        "broken": {"images": len(broken), "reasons": broken},
        "notes": list(manifest.notes),
    }


def _class_counts(manifest: Manifest, label: int) -> dict[str, Any]:
    """Count images and groups of one class, and its images by the split that the source itself names."""
    records = [record for record in manifest.records if record.label == label]
    named = Counter(record.split for record in records if record.split)
    return {
        "images": len(records),
        "groups": len({record.group for record in records}),
        "splits": {part: named[part] for part in SPLITS if part in named},
    }
