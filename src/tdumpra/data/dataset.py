"""Read, split and decode the images of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tdumpra.checks import SPLITS
from tdumpra.data.images.prepare import Prepared, prepare
from tdumpra.data.manifest import Manifest
from tdumpra.data.settings import DataConfig
from tdumpra.data.sources import open_source, with_external_test
from tdumpra.data.splits import Split, make_split, val_folds
from tdumpra.errors import SourceError


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Images that can be read, and which part each belongs to."""

    prepared: Prepared
    codes: np.ndarray  # 0 train, 1 val, 2 test, by record of ``prepared``
    split: Split
    notes: tuple[str, ...] = ()  # what a user should know of source, split and pixels

    @property
    def manifest(self) -> Manifest:
        """The records that can be decoded."""
        return self.prepared.manifest

    def rows(self, *parts: str) -> np.ndarray:
        """Return the numbers of the images of these parts, in the manifest's order."""
        wanted = [SPLITS.index(part) for part in parts]
        return np.flatnonzero(np.isin(self.codes, wanted))


def _test_manifest(data: DataConfig, source: str, *, metadata_only: bool) -> Manifest:
    """Open the test source, grouped like the training source where possible."""
    opened = partial(open_source, source, allow_missing=data.allow_missing, metadata_only=metadata_only)
    try:
        return opened(group_column=data.group_by)
    except SourceError:
        if data.group_by is None:
            raise
    test = opened()
    note = f"{source} cannot be grouped by {data.group_by!r}: who is both in training and in test cannot be told"
    return replace(test, notes=(*test.notes, note))


def split_data(data: DataConfig, seed: int = 0, *, metadata_only: bool = False) -> tuple[Manifest, Split]:
    """Read the source and split it; ``seed`` matters only where ``val_by_seed`` is set.

    With ``metadata_only`` the tables of the source suffice.
    """
    manifest = open_source(
        data.source, allow_missing=data.allow_missing, metadata_only=metadata_only, group_column=data.group_by,
        duplicates=data.duplicates,
    )  # fmt: skip
    if data.test_source is not None:
        manifest = with_external_test(manifest, _test_manifest(data, data.test_source, metadata_only=metadata_only))
    if data.split_file is not None:
        split = Split.read(data.split_file, manifest)
    else:
        split = make_split(
            manifest,
            data.protocol,
            seed=data.split_seed,
            test_share=data.test_share,
            val_share=data.val_share,
            val_fold=seed % val_folds(data.val_share) if data.val_by_seed else 0,
            hold_out=data.hold_out,
            outer_folds=data.outer_folds,
            fold=data.fold,
        )
    return manifest, split


def open_data(data: DataConfig, seed: int = 0, *, progress: bool = False) -> Dataset:
    """Read the source, split it, and decode its images once.

    The split is drawn over all records before any pixel is looked at, so that a broken image moves no other one.
    """
    manifest, split = split_data(data, seed)
    prepared = prepare(manifest, data.cache, data.framing, progress=progress)
    where = dict(zip(split.ids, split.codes.tolist(), strict=True))
    codes = np.array([where[record.id] for record in prepared.manifest.records], dtype=np.int8)
    return Dataset(prepared, codes, split, (*manifest.notes, *split.notes, *prepared.notes))
