"""An audit of four grey images, small enough to count by hand."""

from __future__ import annotations

import numpy as np

from tdumpra.data.audit import Audit
from tdumpra.data.duplicates import DuplicatePair, NearDuplicates
from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.splits import Split
from tdumpra.errors import BrokenImageError


class Grey:
    def __call__(self, record: Record) -> np.ndarray:
        if record.id == "gone":
            raise BrokenImageError("no <such> file")
        return np.full((30, 40, 3), 99, dtype=np.uint8)


def toy_audit(ids: list[str], pairs: list[DuplicatePair] | None = None) -> Audit:
    # a: train and test, mel; b: train, nv; c: test, nv
    records = tuple(
        Record(image, None, label, group)
        for image, label, group in zip(ids, (0, 0, 1, 1), ("a", "a", "b", "c"), strict=True)
    )
    manifest = Manifest("toy", ("mel", "nv"), records, Grey(), notes=("a note",))
    split = Split("paper", 0, manifest.fingerprint, tuple(ids), np.array([0, 2, 0, 2]))
    return Audit(manifest, split, NearDuplicates(pairs, {}, []) if pairs is not None else None)
