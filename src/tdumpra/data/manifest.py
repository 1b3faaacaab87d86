"""The form in which every data source arrives: records, class names, and a reader of pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from tdumpra.artifacts import fingerprint

if TYPE_CHECKING:
    from jaxtyping import UInt8


@dataclass(frozen=True, slots=True)
class Record:
    """One image: its name, file, class, and group."""

    id: str
    path: Path | None  # None where the pixels come from no file of their own (an array, a generator)
    label: int
    group: str  # lesion, patient, ...: images of one group never stand in two parts of a split
    split: str | None = None  # train, val or test, where the source says so itself
    mask: Path | None = None  # a lesion segmentation
    meta: Mapping[str, str] = field(default_factory=dict)  # sex, age, site, source, ...: for subgroups, never a feature


class Reader(Protocol):
    """Turns a record into pixels. It must be picklable for worker processes."""

    def __call__(self, record: Record) -> UInt8[np.ndarray, "height width 3"]:
        """Return the record's image as RGB, or raise ``BrokenImageError`` with the reason."""
        ...


@dataclass(frozen=True, slots=True)
class Manifest:
    """A data set, read but not decoded. The order of records is fixed by the source, not by the file system."""

    name: str
    class_names: tuple[str, ...]
    records: tuple[Record, ...]
    reader: Reader
    notes: tuple[str, ...] = ()  # what the source has to say on the screen: missing files, merged groups, ...
    missing: tuple[str, ...] = ()  # ids of labelled images without a file, whether or not their records were kept

    def __len__(self) -> int:
        return len(self.records)

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class of each record."""
        return np.array([r.label for r in self.records], dtype=np.int64)

    @property
    def groups(self) -> NDArray[np.str_]:
        """The group of each record."""
        return np.array([r.group for r in self.records], dtype=np.str_)

    @property
    def fingerprint(self) -> str:
        """A hash that changes when a record, a label, a group or the class order does; not when the folder moves."""
        rows = (f"{r.id}\t{r.label}\t{r.group}\t{r.split}" for r in self.records)
        return fingerprint(self.name, "\n".join(self.class_names), "\n".join(rows))
