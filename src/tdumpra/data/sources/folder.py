"""A folder per class, with or without folders for the splits above them.

::

    DIR/CLASS/**/*.jpg
    DIR/train/CLASS/**/*.jpg    DIR/val/CLASS/…    DIR/test/CLASS/…

An image's id is its path below DIR. Nothing here says which images show the same lesion: each is its own group.
"""

from __future__ import annotations

from pathlib import Path

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import is_file, is_image, require_folder, walk_files
from tdumpra.data.sources.finish import SPLIT_WORDS, Found, SourceOptions, assemble, class_order, group_column
from tdumpra.errors import SourceError


def read_folder(folder: Path, options: SourceOptions) -> Manifest:
    """The images of a folder, sorted by path; classes by name (numbers by value)."""
    root = require_folder(folder, "folder")
    group_column(options.group_column, None, (), root)  # there is no column to ask for
    parts = _split_folders(root)
    depth = 2 if parts else 1
    labelled: list[Path] = []
    unlabelled: list[Path] = []
    passed_over: list[Path] = []
    for path in walk_files(root, root, recursive=True):
        if not is_image(path):
            passed_over.append(path)
        elif len(path.relative_to(root).parts) > depth:
            labelled.append(path)
        else:
            unlabelled.append(path)
    names = class_order((path.relative_to(root).parts[depth - 1] for path in labelled), root) if labelled else ()
    records = [_record(path, root, depth, names) for path in labelled]
    refuse_untrained_classes(records, names, root)
    return assemble(
        Found(
            "folder",
            root,
            names,
            records,
            unlabelled=[path.relative_to(root).as_posix() for path in unlabelled],
            notes=_notes(passed_over),
        ),
        options,
    )


def refuse_untrained_classes(records: list[Record], class_names: tuple[str, ...], place: Path) -> None:
    """Where a source has a training part, a class of its validation or test part must occur there."""
    in_train = {r.label for r in records if r.split in ("train", None)}
    for record in records:
        if in_train and record.label not in in_train:
            raise SourceError(
                f"{place} has the class {class_names[record.label]!r} in {record.split} and not in train "
                f"({record.id}): check its spelling, or leave it out"
            )


def _split_folders(root: Path) -> bool:
    """Whether the first level of folders names splits. Splits beside classes are refused: who can tell them apart?"""
    level = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    splits = [name for name in level if _is_split(name)]
    others = [name for name in level if not _is_split(name)]
    if splits and others:
        raise SourceError(
            f"{root} has folders for splits ({', '.join(splits)}) beside others ({', '.join(others[:3])}): "
            "keep either class folders, or split folders with class folders in them"
        )
    return bool(splits)


def _is_split(folder: str) -> bool:
    # A class may well be called "0": digits are split codes in a column, never as a folder.
    return folder.lower() in SPLIT_WORDS and not folder.isdigit()


def _record(path: Path, root: Path, depth: int, class_names: tuple[str, ...]) -> Record:
    place = path.relative_to(root)
    return Record(
        id=place.as_posix(),
        path=path if is_file(path) else None,  # a link to nowhere
        label=class_names.index(place.parts[depth - 1]),
        group=place.as_posix(),
        split=SPLIT_WORDS[place.parts[0].lower()] if depth == 2 else None,
    )


def _notes(passed_over: list[Path]) -> tuple[str, ...]:
    groups = "a folder names no lesions: each image is taken as a group of its own"
    if not passed_over:
        return (groups,)
    return (groups, f"{len(passed_over):,} files are no images by their names ({passed_over[0].name}, …); passed over")
