"""Join two sources: one to train on, and another, collected apart, to test on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import UInt8

from tdumpra.data.manifest import Manifest, Reader, Record
from tdumpra.errors import SourceError


@dataclass(frozen=True, slots=True)
class JoinedReader:
    """Read each record with the reader of its own source."""

    train: Reader
    test: Reader

    def __call__(self, record: Record) -> UInt8[np.ndarray, "height width 3"]:
        """Return the record's image as RGB."""
        return (self.test if record.split == "test" else self.train)(record)


def with_external_test(train: Manifest, test: Manifest) -> Manifest:
    """Return ``train`` with all images of ``test`` as its test part; classes are matched by name, ignoring case."""
    known = {name.casefold(): label for label, name in enumerate(train.class_names)}
    used = sorted({record.label for record in test.records})
    unknown = [test.class_names[label] for label in used if test.class_names[label].casefold() not in known]
    if unknown:
        raise SourceError(
            f"the test source {test.name} has the class {unknown[0]!r}, which {train.name} does not know "
            f"(it has {', '.join(train.class_names)})"
        )
    kept = [record for record in train.records if record.split != "test"]
    shared = {record.id for record in kept} & {record.id for record in test.records}
    if shared:
        raise SourceError(
            f"{len(shared):,} images are in both {train.name} and the test source {test.name}, "
            f"for example {min(shared)}: a test set must be apart"
        )
    moved = [
        replace(record, label=known[test.class_names[record.label].casefold()], split="test") for record in test.records
    ]
    own_test = len(train) - len(kept)
    left_out = (f"{own_test:,} test images of {train.name} itself left out",) if own_test else ()
    return Manifest(
        name=f"{train.name}+{test.name}",
        class_names=train.class_names,
        records=(*kept, *moved),
        reader=train.reader if train.reader == test.reader else JoinedReader(train.reader, test.reader),
        notes=(*train.notes, *left_out, *test.notes),
        missing=(*train.missing, *test.missing),
    )
