"""Open a data source by its name, ``KIND:PLACE``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tdumpra.data.manifest import Manifest
from tdumpra.data.sources.csv_file import read_csv
from tdumpra.data.sources.finish import SourceOptions
from tdumpra.data.sources.folder import read_folder
from tdumpra.data.sources.ham10000 import read_ham10000
from tdumpra.data.sources.isic import read_isic2018_test, read_isic2019
from tdumpra.data.sources.medmnist import read_medmnist
from tdumpra.errors import SourceError, nearest

_READERS: dict[str, Callable[[Path, SourceOptions], Manifest]] = {
    "ham10000": read_ham10000,
    "isic2019": read_isic2019,
    "isic2018-task3": read_isic2018_test,
    "folder": read_folder,
    "csv": read_csv,
    "medmnist": read_medmnist,
}

SOURCE_KINDS = (*_READERS, "synthetic")


def open_source(
    spec: str,
    *,
    allow_missing: bool = False,
    metadata_only: bool = False,
    group_column: str | None = None,
    duplicates: str | Path | None = None,
    partial: bool = False,
) -> Manifest:
    """Read a data set's tables and folders, not yet its pixels.

    Args:
        spec: ``ham10000:DIR``, ``isic2019:DIR``, ``isic2018-task3:DIR``, ``folder:DIR``, ``csv:FILE``,
            ``medmnist:FILE.npz``, or ``synthetic:`` with options (``synthetic:n=600,seed=1``).
        allow_missing: count and leave out images without a file and files without a label, instead of refusing.
        metadata_only: keep images without a file; enough for splits and leak audits.
        group_column: the column that says which images belong together (``lesion``, ``patient``, ...).
        duplicates: a table ``from_img,to_img`` of images that show the same thing; their groups are merged.
        partial: for a finished model: labels may be missing (-1 in the records), and one class will do.

    Raises:
        SourceError: the data set is not laid out as its kind promises; the message says how to fix it.
    """
    kind, colon, place = spec.partition(":")
    if kind not in SOURCE_KINDS or not colon:
        hint = f"; for a folder of images write 'folder:{spec}'" if Path(spec).is_dir() else nearest(kind, SOURCE_KINDS)
        raise SourceError(
            f"{spec!r} names no data source; write KIND:PLACE, KIND one of {', '.join(SOURCE_KINDS)}{hint}"
        )
    if kind == "synthetic":
        if group_column is not None:
            raise SourceError(f"synthetic lesions have their own groups: {group_column!r} is no column of theirs")
        if duplicates is not None:
            raise SourceError(f"synthetic lesions have no duplicates: {duplicates} does nothing to them, leave it out")
        return _synthetic(place)
    if not place:
        raise SourceError(f"{spec!r} lacks the place: write '{kind}:PATH'")
    options = SourceOptions(
        allow_missing=allow_missing,
        metadata_only=metadata_only,
        group_column=group_column,
        duplicates=Path(duplicates) if duplicates is not None else None,
        partial=partial,
    )
    return _READERS[kind](Path(place).expanduser(), options)


def _synthetic(options: str) -> Manifest:
    """Pass ``n=600,seed=1`` to the generator as keyword arguments."""
    from tdumpra.data.synthetic import synthetic_manifest

    known = inspect.signature(synthetic_manifest).parameters
    arguments: dict[str, Any] = {}
    for part in filter(None, options.split(",")):
        name, _, text = part.partition("=")
        name = name.strip()
        if name not in known:
            raise SourceError(f"'synthetic:' has no option {name!r}{nearest(name, known)} (it has {', '.join(known)})")
        kind = type(known[name].default)
        try:
            arguments[name] = kind(text)
        except ValueError:
            raise SourceError(f"'synthetic:' option {name} must be of type {kind.__name__}, not {text!r}") from None
    manifest: Manifest = synthetic_manifest(**arguments)
    return manifest
