"""Turn what a source found into a manifest: the checks and counts that every kind of source shares."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from tdumpra.data.manifest import Manifest, Reader, Record
from tdumpra.data.sources.files import FileReader
from tdumpra.data.sources.tables import read_table
from tdumpra.errors import NoImagesError, SourceError, nearest
from tdumpra.screen import csv_name
from tdumpra.values import SPLITS

UNLABELLED = -1  # the label of a record without one, which only data for a finished model may have

# How a diagnosis was confirmed gives it away (every `follow_up` in HAM10000 is a nevus), so that no record gets these.
LEAKING_COLUMNS = frozenset({"dx_type", "diagnosis_confirm_type"})

SPLIT_WORDS = {
    **{word: word for word in SPLITS},
    **{str(code): word for code, word in enumerate(SPLITS)},
    "training": "train",
    "valid": "val",
    "validation": "val",
    "testing": "test",
}

_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
_SHOWN = 3  # ids that a sentence names


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of every source."""

    allow_missing: bool = False  # count and leave out images without a file, and files without a label
    metadata_only: bool = False  # keep images without a file: enough for splits and leaks, not for pixels
    group_column: str | None = None  # the column that says which images belong together; None is the source's own
    duplicates: Path | None = None  # a table `from_img,to_img` of images whose groups are merged
    partial: bool = False  # data for a finished model: labels may be missing, and one class will do


def finish(
    name: str,
    place: Path,
    class_names: tuple[str, ...],
    records: Sequence[Record],
    options: SourceOptions,
    *,
    files: Iterable[str] = (),
    duplicates: Sequence[tuple[str, str]] = (),
    notes: tuple[str, ...] = (),
    reader: Reader | None = None,
) -> Manifest:
    """Check what all sources must satisfy, merge groups, and settle what is missing.

    ``files`` holds the ids of all image files, so that those without a record are noticed; ``duplicates`` holds pairs
    of ids from the data set's own list. Without a ``reader`` the records are files, and one without a path is missing.
    Groups are merged before missing images go: two images may be connected through a third that is missing.
    """
    if not records:
        raise SourceError(f"{place} holds no images: check the path after '{name}:'")
    if any(not r.id for r in records):
        raise SourceError(f"a row in {place} names no image: fill its id, or remove the row")
    counts = Counter(r.id for r in records)
    if twice := [image for image, count in counts.items() if count > 1]:
        raise SourceError(
            f"{_count(len(twice), 'image id')} stand{'s' if len(twice) == 1 else ''} in {place} more than once "
            f"({_some(twice)}): keep one row of each"
        )
    if len(class_names) < 2 and not options.partial:
        raise SourceError(
            f"{place} holds the one class {class_names[0]!r}, and a classifier needs two: check the labels"
        )
    pairs = [*duplicates, *_listed_pairs(options.duplicates, records)]
    groups, joined = merge_groups({r.id: r.group for r in records}, pairs)
    if joined:
        records = [replace(r, group=groups[r.id]) for r in records]
        notes = (*notes, f"groups merged along {_count(joined, 'duplicate pair')}")
    missing = [r.id for r in records if r.path is None] if reader is None else []
    unlabelled = [image for image in files if image not in counts]
    notes += _missing_notes(place, len(records), missing, unlabelled, options)
    if missing and not options.metadata_only:
        records = [r for r in records if r.path is not None]
    return Manifest(name, class_names, tuple(records), reader or FileReader(), notes, tuple(missing))


def merge_groups(groups: Mapping[str, str], pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, str], int]:
    """Merge the groups of images that are duplicates of each other; a pair with an unknown id is skipped.

    Return the merged group of each image, named after the smallest name in it, and how many pairs joined two groups.
    """
    parent: dict[str, str] = {}  # union-find: a group that was merged into another points to it

    def find(group: str) -> str:
        while (above := parent.get(group, group)) != group:
            parent[group] = parent.get(above, above)  # halves the path for the next search
            group = above
        return group

    joined = 0
    for first, second in pairs:
        if first in groups and second in groups:
            low, high = sorted((find(groups[first]), find(groups[second])))
            if low != high:
                parent[high] = low
                joined += 1
    return {image: find(group) for image, group in groups.items()}, joined


def class_order(names: Iterable[str], place: Path) -> tuple[str, ...]:
    """Return the classes of a source that has no official order: numbers by value, otherwise by name."""
    distinct = set(names)
    folded: dict[str, str] = {}
    for name in sorted(distinct):
        other = folded.setdefault(name.casefold(), name)
        if other != name:
            raise SourceError(f"{place} has the classes {other!r} and {name!r}: write them the same way, or rename one")
    if all(re.fullmatch(r"\d{1,9}", name) for name in distinct):
        return tuple(sorted(distinct, key=int))
    return tuple(sorted(distinct))


def refuse_untrained_classes(records: Sequence[Record], class_names: tuple[str, ...], place: Path) -> None:
    """Raise ``SourceError`` if a class of the source's validation or test part is missing from its training part."""
    in_train = {r.label for r in records if r.split in ("train", None)}
    for record in records:
        if in_train and record.label not in in_train:
            raise SourceError(
                f"{place} has the class {class_names[record.label]!r} in {record.split} and not in train "
                f"({record.id}): check its spelling, or leave it out"
            )


def group_column(asked: str | None, default: str | None, columns: Sequence[str], place: Path) -> str | None:
    """Return the column that names groups: the one asked for (``lesion`` finds ``lesion_id``), else the default."""
    if asked is None:
        return default if default in columns else None
    for column in (asked, f"{asked}_id"):
        if column in columns:
            return column
    has = f"its columns are {', '.join(columns)}" if columns else "it has no table; list the images in a 'csv:'"
    raise SourceError(f"{place} has no column {asked!r} to group by{nearest(asked, columns)} ({has})")


def metadata(row: Mapping[str, str], *, without: Iterable[str]) -> dict[str, str]:
    """Return the further cells of a row, without empty ones and columns that give the label away."""
    dropped = {*without, *LEAKING_COLUMNS}
    return {column: value for column, value in row.items() if value and column not in dropped}


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Read pairs of image ids from a table with the columns ``from_img`` and ``to_img``; suffixes are dropped."""
    rows = read_table(path, ("from_img", "to_img")).rows
    return [(_bare_id(csv_name(row["from_img"])), _bare_id(csv_name(row["to_img"]))) for row in rows]


def _listed_pairs(path: Path | None, records: Sequence[Record]) -> list[tuple[str, str]]:
    if path is None:
        return []
    pairs = read_pairs(path)
    known = {_bare_id(r.id): r.id for r in records}
    usable = [(known[a], known[b]) for a, b in pairs if a in known and b in known]
    if not usable:
        raise SourceError(f"none of the {len(pairs)} pairs in {path} names two images of this data set")
    return usable


def _bare_id(image: str) -> str:
    """Return an image's id without the suffix that tables sometimes give it (``ISIC_0033481.jpg``)."""
    return str(PurePath(image).with_suffix("")) if image.lower().endswith((".jpg", ".jpeg", ".png")) else image


def _missing_notes(
    place: Path, total: int, missing: Sequence[str], unlabelled: Sequence[str], options: SourceOptions
) -> tuple[str, ...]:
    """Refuse images without a file and files without a label, or count them where the options allow it."""
    lenient = options.allow_missing or options.metadata_only
    notes = []
    if missing:
        what = f"{len(missing):,} of {total:,} labelled images have no file ({_some(missing)})"
        gone = len(missing) == total
        add = _unpack(place) if gone else "add the files, or leave these out with --allow-missing"
        if options.metadata_only and (gone or not options.allow_missing):
            notes.append(f"{what} in {place}, so that a run would be refused: {add}")
        elif gone:
            raise NoImagesError(f"{what} in {place}: {add}")
        elif not lenient:
            raise SourceError(f"{what} in {place}: {add}")
        else:
            notes.append(f"{what}; left out")
    if unlabelled:
        what = f"{_count(len(unlabelled), 'image file')} without a label ({_some(unlabelled)})"
        if not lenient:
            raise SourceError(f"{place} has {what}: add the labels, or leave these out with --allow-missing")
        notes.append(f"{what}; left out")
    return tuple(notes)


def _unpack(place: Path) -> str:
    """Say what to do where no image is there."""
    folder = place if place.is_dir() else place.parent
    archives = sorted(path.name for path in folder.iterdir() if path.name.lower().endswith(_ARCHIVES))
    return f"unpack {_some(archives)} there" if archives else "add the files"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(name if len(name) <= 60 else f"{name[:57]}…" for name in names[:_SHOWN])
    return f"{shown}, …" if len(names) > _SHOWN else shown
