"""Read a folder per class, with or without folders for the splits above them.

::

    DIR/CLASS/**/*.jpg
    DIR/train/CLASS/**/*.jpg    DIR/val/CLASS/…    DIR/test/CLASS/…

An image's id is its path below DIR. A folder does not say which images show the same lesion: each is its own group.
"""

from __future__ import annotations

from pathlib import Path

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import is_image, is_there, require_folder, walk_files
from tdumpra.data.sources.finish import (
    SPLIT_WORDS,
    UNLABELLED,
    SourceOptions,
    class_order,
    finish,
    group_column,
    refuse_untrained_classes,
)
from tdumpra.errors import SourceError


def read_folder(folder: Path, options: SourceOptions) -> Manifest:
    """Read the images of a folder, sorted by path; classes are sorted by name (numbers by value)."""
    root = require_folder(folder, "folder")
    group_column(options.group_column, None, (), root)  # there is no column to ask for
    depth = 2 if _has_split_folders(root) else 1
    found = {path: is_image(path) for path in walk_files(root, root, recursive=True)}
    images = [path.relative_to(root) for path, counts in found.items() if counts]
    labelled = [place for place in images if len(place.parts) > depth]
    names = class_order({place.parts[depth - 1] for place in labelled}, root)
    taken = images if options.partial else labelled
    records = [
        Record(
            id=place.as_posix(),
            path=root / place if is_there(root / place) else None,  # None: a link to nowhere
            label=names.index(place.parts[depth - 1]) if len(place.parts) > depth else UNLABELLED,
            group=place.as_posix(),
            split=SPLIT_WORDS[place.parts[0].lower()] if depth == 2 and len(place.parts) > 1 else None,
        )
        for place in taken
    ]
    if not options.partial:
        refuse_untrained_classes(records, names, root)
    notes = ["a folder names no lesions: each image is taken as a group of its own"]
    others = [path.name for path, counts in found.items() if not counts]
    if others:
        notes.append(f"{len(others):,} files are no images by their names ({others[0]}, …); passed over")
    files = [place.as_posix() for place in images]
    return finish("folder", root, names, records, options, files=files, notes=tuple(notes))


def _has_split_folders(root: Path) -> bool:
    """Return whether the first level of folders names splits; splits beside classes are refused."""
    level = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    # A class may well be called "0": digits are split codes in a column, never as a folder.
    splits = [name for name in level if name.lower() in SPLIT_WORDS and not name.isdigit()]
    others = [name for name in level if name not in splits]
    if splits and others:
        raise SourceError(
            f"{root} has folders for splits ({', '.join(splits)}) beside others ({', '.join(others[:3])}): "
            "keep either class folders, or split folders with class folders in them"
        )
    return bool(splits)
