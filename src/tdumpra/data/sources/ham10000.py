"""HAM10000 in its official layout.

::

    DIR/HAM10000_metadata.csv                 lesion_id,image_id,dx,dx_type,age,sex,localization
    DIR/HAM10000_images_part_1/*.jpg          both parts, or HAM10000_images/, or the images in DIR itself
    DIR/HAM10000_images_part_2/*.jpg
    DIR/HAM10000_segmentations_lesion/*.png   optional: ID_segmentation.png
    DIR/newly_discovered_duplicates.csv       optional: pairs whose lesions are one (similarity,from_img,to_img)

Tschandl, Rosendahl, Kittler: The HAM10000 dataset. Scientific Data 5, 180161 (2018).
"""

from __future__ import annotations

from pathlib import Path

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import images_by_id, require_folder
from tdumpra.data.sources.finish import (
    Found,
    SourceOptions,
    assemble,
    bare_id,
    class_index,
    duplicate_pairs,
    group_column,
    metadata,
)
from tdumpra.data.sources.tables import Table, read_table

HAM10000_CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")

_IMAGE_FOLDERS = ("HAM10000_images_part_1", "HAM10000_images_part_2", "HAM10000_images")
_MASK_FOLDER = "HAM10000_segmentations_lesion"
_MASK_ENDING = "_segmentation"


def read_ham10000(folder: Path, options: SourceOptions) -> Manifest:
    """The images of HAM10000, sorted by id; a group is a lesion."""
    root = require_folder(folder, "ham10000")
    table = read_table(root / "HAM10000_metadata.csv", ("lesion_id", "image_id", "dx"))
    images = images_by_id(_image_folders(root), root)
    masks = images_by_id([root / _MASK_FOLDER], root) if (root / _MASK_FOLDER).is_dir() else {}
    listed = root / "newly_discovered_duplicates.csv"
    records = records_by_dx(table, images, masks, options)
    known = {r.id for r in records}
    return assemble(
        Found(
            "ham10000",
            root,
            HAM10000_CLASSES,
            records,
            unlabelled=[image for image in images if image not in known],
            duplicates=[(bare_id(a), bare_id(b)) for a, b in duplicate_pairs(listed)] if listed.is_file() else (),
        ),
        options,
    )


def records_by_dx(
    table: Table, images: dict[str, Path], masks: dict[str, Path], options: SourceOptions, *, split: str | None = None
) -> list[Record]:
    """Records from a table in HAM10000's form, sorted by id."""
    by_group = group_column(options.group_column, "lesion_id", table.columns, table.path)
    records = []
    for number, row in enumerate(table.rows):
        image = row["image_id"]
        records.append(
            Record(
                id=image,
                path=images.get(image),
                label=class_index(row["dx"], HAM10000_CLASSES, table.where(number)),
                group=(row[by_group] if by_group else "") or image,
                split=split,
                mask=masks.get(f"{image}{_MASK_ENDING}"),
                meta=metadata(row, without=("image_id", "dx")),
            )
        )
    return sorted(records, key=lambda record: record.id)


def _image_folders(root: Path) -> list[Path]:
    return [root / name for name in _IMAGE_FOLDERS if (root / name).is_dir()] or [root]
