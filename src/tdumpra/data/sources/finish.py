"""From what a source found to a manifest: the checks and counts that every kind of source shares."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from tdumpra.checks import SPLITS
from tdumpra.data.groups import merge_groups
from tdumpra.data.manifest import Manifest, Reader, Record
from tdumpra.data.sources.files import FileReader
from tdumpra.data.sources.tables import read_table
from tdumpra.errors import SourceError
from tdumpra.screen import nearest

# How the diagnosis was confirmed tells the diagnosis (every `follow_up` in HAM10000 is a nevus):
# such a column never reaches a record, so that nothing downstream can learn from it.
LEAKING_COLUMNS = frozenset({"dx_type", "diagnosis_confirm_type"})

SPLIT_WORDS = {
    **{word: word for word in SPLITS},
    **{str(code): word for code, word in enumerate(SPLITS)},
    "training": "train",
    "valid": "val",
    "validation": "val",
    "testing": "test",
}

_SHOWN = 3  # how many ids a sentence names


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the user may ask of any source."""

    allow_missing: bool = False  # images without a file, and files without a label, are counted and left out
    metadata_only: bool = False  # images without a file stay: enough for splits and leaks, not for pixels
    group_column: str | None = None  # which column says that images belong together; None is the source's own
    duplicates: Path | None = None  # a table `from_img,to_img` of images whose groups are one


@dataclass(frozen=True, slots=True)
class Found:
    """What a source found. A record of a file-based source whose file is not there has no path."""

    name: str
    place: Path
    class_names: tuple[str, ...]
    records: Sequence[Record]
    unlabelled: Sequence[str] = ()  # files that no table mentions
    duplicates: Sequence[tuple[str, str]] = ()  # image ids, from the data set's own list
    notes: tuple[str, ...] = ()


def assemble(found: Found, options: SourceOptions, *, reader: Reader | None = None) -> Manifest:
    """Check what all sources must satisfy, merge groups, and settle what is missing.

    Without a ``reader`` the records are files. Groups are merged before missing images go: two images may be
    connected through a third that is not here.
    """
    records = list(found.records)
    if not records:
        raise SourceError(f"{found.place} holds no images: check the path after '{found.name}:'")
    if any(not r.id for r in records):
        raise SourceError(f"a row in {found.place} names no image: fill its id, or remove the row")
    twice = [image for image, count in Counter(r.id for r in records).items() if count > 1]
    if twice:
        raise SourceError(
            f"{_count(len(twice), 'image id')} stand{'s' if len(twice) == 1 else ''} in {found.place} more than once "
            f"({_some(twice)}): keep one row of each"
        )
    if len(found.class_names) < 2:
        raise SourceError(
            f"{found.place} holds the one class {found.class_names[0]!r}, and a classifier needs two: check the labels"
        )
    records, notes = _merge(records, [*found.duplicates, *_listed_duplicates(options.duplicates, records)])
    missing = [r.id for r in records if r.path is None] if reader is None else []
    records, more = _settle(found, records, missing, options)
    return Manifest(
        name=found.name,
        class_names=found.class_names,
        records=tuple(records),
        reader=reader or FileReader(),
        notes=(*found.notes, *notes, *more),
        missing=tuple(missing),
    )


def class_order(names: Iterable[str], place: Path) -> tuple[str, ...]:
    """The classes of a source that has no official order: numbers by value, otherwise by name."""
    distinct = set(names)
    folded: dict[str, str] = {}
    for name in sorted(distinct):
        other = folded.setdefault(name.casefold(), name)
        if other != name:
            raise SourceError(f"{place} has the classes {other!r} and {name!r}: write them the same way, or rename one")
    if all(re.fullmatch(r"\d{1,9}", name) for name in distinct):
        return tuple(sorted(distinct, key=int))
    return tuple(sorted(distinct))


def class_index(name: str, class_names: Sequence[str], where: str) -> int:
    """The number of a class by its name; an unknown one is refused."""
    if name not in class_names:
        known = ", ".join(class_names)
        raise SourceError(f"{where}: unknown class {name!r}{nearest(name, class_names)} (the classes are {known})")
    return class_names.index(name)


def one_hot_class(row: Mapping[str, str], columns: Sequence[str], where: str) -> str:
    """The class of a row of an ISIC challenge table, which has a column of 0 and 1 for each."""
    try:
        marked = [column for column in columns if float(row[column]) == 1]
        others = sum(float(row[column]) != 0 for column in columns) - len(marked)
    except ValueError:
        raise SourceError(f"{where}: the class columns must hold 0 and 1 only") from None
    if len(marked) != 1 or others:
        raise SourceError(f"{where}: exactly one class must be 1 and the others 0; {len(marked)} are 1")
    return marked[0]


def group_column(asked: str | None, default: str | None, columns: Sequence[str], place: Path) -> str | None:
    """The column that names groups: the one asked for (``lesion`` finds ``lesion_id``), else the source's own."""
    if asked is None:
        return default if default in columns else None
    for column in (asked, f"{asked}_id"):
        if column in columns:
            return column
    has = f"its columns are {', '.join(columns)}" if columns else "it has no table; list the images in a 'csv:'"
    raise SourceError(f"{place} has no column {asked!r} to group by{nearest(asked, columns)} ({has})")


def metadata(row: Mapping[str, str], *, without: Iterable[str]) -> dict[str, str]:
    """What a row says beyond id and label, for subgroups: empty cells and columns that give the label away left out."""
    dropped = {*without, *LEAKING_COLUMNS}
    return {column: value for column, value in row.items() if value and column not in dropped}


def duplicate_pairs(path: Path) -> list[tuple[str, str]]:
    """Pairs of image ids from a table with the columns ``from_img`` and ``to_img`` (the form HAM10000 uses)."""
    rows = read_table(path, ("from_img", "to_img")).rows
    return [(row["from_img"], row["to_img"]) for row in rows]


def _listed_duplicates(path: Path | None, records: Sequence[Record]) -> list[tuple[str, str]]:
    if path is None:
        return []
    pairs = [(bare_id(a), bare_id(b)) for a, b in duplicate_pairs(path)]
    known = {bare_id(r.id): r.id for r in records}
    usable = [(known[a], known[b]) for a, b in pairs if a in known and b in known]
    if not usable:
        raise SourceError(f"none of the {len(pairs)} pairs in {path} names two images of this data set")
    return usable


def bare_id(image: str) -> str:
    """An image's id without the suffix that tables sometimes give it (``ISIC_0033481.jpg``)."""
    return str(PurePath(image).with_suffix("")) if image.lower().endswith((".jpg", ".jpeg", ".png")) else image


def _merge(records: list[Record], pairs: Sequence[tuple[str, str]]) -> tuple[list[Record], tuple[str, ...]]:
    groups, joined = merge_groups({r.id: r.group for r in records}, pairs)
    if not joined:
        return records, ()
    merged = [r if groups[r.id] == r.group else replace(r, group=groups[r.id]) for r in records]
    return merged, (f"groups merged along {_count(joined, 'duplicate pair')}",)


def _settle(
    found: Found, records: list[Record], missing: Sequence[str], options: SourceOptions
) -> tuple[list[Record], list[str]]:
    """Refuse, count, or keep the images without a file and the files without a label."""
    lenient = options.allow_missing or options.metadata_only
    notes = []
    if missing:
        what = f"{len(missing):,} of {len(records):,} labelled images have no file ({_some(missing)})"
        if not lenient:
            raise SourceError(f"{what} in {found.place}: add the files, or leave these out with --allow-missing")
        if not options.metadata_only:
            records = [r for r in records if r.path is not None]
            if not records:
                raise SourceError(f"none of the {len(missing):,} labelled images has a file in {found.place}")
        notes.append(f"{what}; {'kept for their metadata' if options.metadata_only else 'left out'}")
    if found.unlabelled:
        what = f"{_count(len(found.unlabelled), 'image file')} without a label ({_some(found.unlabelled)})"
        if not lenient:
            raise SourceError(f"{found.place} has {what}: add the labels, or leave these out with --allow-missing")
        notes.append(f"{what}; left out")
    return records, notes


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(name if len(name) <= 60 else f"{name[:57]}…" for name in names[:_SHOWN])
    return f"{shown}, …" if len(names) > _SHOWN else shown
