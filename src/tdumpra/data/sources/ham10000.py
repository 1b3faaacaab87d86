"""Read HAM10000 in its official layout.

::

    DIR/HAM10000_metadata.csv                 lesion_id,image_id,dx,dx_type,age,sex,localization
    DIR/HAM10000_images_part_1/*.jpg          both parts, or HAM10000_images/, or the images in DIR itself
    DIR/HAM10000_images_part_2/*.jpg
    DIR/HAM10000_segmentations_lesion/*.png   optional: ID_segmentation.png
    DIR/newly_discovered_duplicates.csv       optional: pairs whose lesions are one (similarity,from_img,to_img)
    DIR/HAM10000_sites.csv                    optional: where each image was taken (image_id,site)

A record's ``site`` is the column ``dataset`` of newer metadata tables, or what ``HAM10000_sites.csv`` says.

Tschandl, Rosendahl, Kittler: The HAM10000 dataset. Scientific Data 5, 180161 (2018).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import images_by_id, require_folder
from tdumpra.data.sources.finish import SourceOptions, finish, group_column, metadata, read_pairs
from tdumpra.data.sources.tables import Table, read_table
from tdumpra.errors import SourceError, nearest

HAM10000_CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")

_IMAGE_FOLDERS = ("HAM10000_images_part_1", "HAM10000_images_part_2", "HAM10000_images")
_MASK_FOLDER = "HAM10000_segmentations_lesion"


def read_ham10000(folder: Path, options: SourceOptions) -> Manifest:
    """Read the images of HAM10000, sorted by id; a group is a lesion."""
    root = require_folder(folder, "ham10000")
    table = read_table(root / "HAM10000_metadata.csv", ("lesion_id", "image_id", "dx"))
    images = images_by_id(existing_folders(root, _IMAGE_FOLDERS), root)
    masks = images_by_id([root / _MASK_FOLDER], root) if (root / _MASK_FOLDER).is_dir() else {}
    listed = root / "newly_discovered_duplicates.csv"
    sites = _sites(root, table)
    records = [
        replace(record, meta={**record.meta, "site": sites[record.id]}) if sites.get(record.id) else record
        for record in records_by_dx(table, images, masks, options)
    ]
    pairs = read_pairs(listed) if listed.is_file() else ()
    return finish("ham10000", root, HAM10000_CLASSES, records, options, files=images, duplicates=pairs)


def _sites(root: Path, table: Table) -> dict[str, str]:
    """Return where each image was taken, as far as the tables say."""
    if "dataset" in table.columns:
        return {row["image_id"]: row["dataset"] for row in table.rows}
    listed = root / "HAM10000_sites.csv"
    if not listed.is_file():
        return {}
    return {row["image_id"]: row["site"] for row in read_table(listed, ("image_id", "site")).rows}


def records_by_dx(
    table: Table, images: dict[str, Path], masks: dict[str, Path], options: SourceOptions, *, split: str | None = None
) -> list[Record]:
    """Return the records of a table in HAM10000's form, sorted by id."""
    by_group = group_column(options.group_column, "lesion_id", table.columns, table.path)
    records = []
    for number, row in enumerate(table.rows):
        image, name = row["image_id"], row["dx"]
        if name not in HAM10000_CLASSES:
            raise SourceError(
                f"{table.where(number)}: unknown class {name!r}{nearest(name, HAM10000_CLASSES)} "
                f"(the classes are {', '.join(HAM10000_CLASSES)})"
            )
        records.append(
            Record(
                id=image,
                path=images.get(image),
                label=HAM10000_CLASSES.index(name),
                group=(row[by_group] if by_group else "") or image,
                split=split,
                mask=masks.get(f"{image}_segmentation"),
                meta=metadata(row, without=("image_id", "dx")),
            )
        )
    return sorted(records, key=lambda record: record.id)


def existing_folders(root: Path, names: tuple[str, ...]) -> list[Path]:
    """Return the folders below ``root`` that exist, or ``root`` itself."""
    return [root / name for name in names if (root / name).is_dir()] or [root]
