"""The official test set of ISIC 2018 Task 3: the external test for models trained on HAM10000.

::

    DIR/ISIC2018_Task3_Test_GroundTruth.csv   image,MEL,NV,BCC,AKIEC,BKL,DF,VASC          (ISIC archive)
                                              lesion_id,image_id,dx,dx_type,age,sex,…     (Harvard Dataverse)
    DIR/ISIC2018_Task3_Test_Input/*.jpg       or ISIC2018_Task3_Test_Images/, or the images in DIR itself

Both forms of the table are read; the archive's folder ``ISIC2018_Task3_Test_GroundTruth/`` around it too. Classes have
HAM10000's names and order. The archive's form names no lesions: there each image is a group of its own.
"""

from __future__ import annotations

from pathlib import Path

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import images_by_id, require_folder
from tdumpra.data.sources.finish import Found, SourceOptions, assemble, group_column, one_hot_class
from tdumpra.data.sources.ham10000 import HAM10000_CLASSES, records_by_dx
from tdumpra.data.sources.tables import Table, read_table

_COLUMNS = tuple(name.upper() for name in HAM10000_CLASSES)
_TABLE = "ISIC2018_Task3_Test_GroundTruth.csv"
_IMAGE_FOLDERS = ("ISIC2018_Task3_Test_Input", "ISIC2018_Task3_Test_Images")


def read_isic2018_test(folder: Path, options: SourceOptions) -> Manifest:
    """The test images, sorted by id; every record says ``test``."""
    root = require_folder(folder, "isic2018-task3")
    nested = root / Path(_TABLE).stem / _TABLE
    path = nested if nested.is_file() else root / _TABLE
    images = images_by_id([root / name for name in _IMAGE_FOLDERS if (root / name).is_dir()] or [root], root)
    table = read_table(path, ())
    if "dx" in table.columns:
        records = records_by_dx(read_table(path, ("image_id", "dx")), images, {}, options, split="test")
    else:
        records = _records_by_columns(read_table(path, ("image", *_COLUMNS)), images, options)
    known = {record.id for record in records}
    return assemble(
        Found(
            "isic2018-task3",
            root,
            HAM10000_CLASSES,
            records,
            unlabelled=[image for image in images if image not in known],
        ),
        options,
    )


def _records_by_columns(table: Table, images: dict[str, Path], options: SourceOptions) -> list[Record]:
    by_group = group_column(options.group_column, "lesion_id", table.columns, table.path)
    records = [
        Record(
            id=row["image"],
            path=images.get(row["image"]),
            label=_COLUMNS.index(one_hot_class(row, _COLUMNS, table.where(number))),
            group=(row[by_group] if by_group else "") or row["image"],
            split="test",
        )
        for number, row in enumerate(table.rows)
    ]
    return sorted(records, key=lambda record: record.id)
