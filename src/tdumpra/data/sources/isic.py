"""Read the ISIC challenges of 2018 (Task 3, test set) and 2019.

::

    DIR/ISIC2018_Task3_Test_GroundTruth.csv   image,MEL,NV,BCC,AKIEC,BKL,DF,VASC          (ISIC archive)
                                              lesion_id,image_id,dx,dx_type,age,sex,…     (Harvard Dataverse)
    DIR/ISIC2018_Task3_Test_Input/*.jpg       or ISIC2018_Task3_Test_Images/, or the images in DIR itself

    DIR/ISIC_2019_Training_GroundTruth.csv    image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK
    DIR/ISIC_2019_Training_Metadata.csv       image,age_approx,anatom_site_general,lesion_id,sex
    DIR/ISIC_2019_Training_Input/*.jpg        or the images in DIR itself
    DIR/ISIC_2019_Test_GroundTruth.csv        optional, with its Metadata and Input: the official test set

The test set of 2018 is the external test for models trained on HAM10000, whose class names and order it takes. The
archive's folder ``ISIC2018_Task3_Test_GroundTruth/`` around its table is found too. An image without a ``lesion_id`` is
a group of its own. Test images of the class UNK are counted and left out: no training image shows it.
"""

from __future__ import annotations

from pathlib import Path

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import images_by_id, require_folder
from tdumpra.data.sources.finish import SourceOptions, finish, group_column, metadata
from tdumpra.data.sources.ham10000 import HAM10000_CLASSES, existing_folders, records_by_dx
from tdumpra.data.sources.tables import Table, read_table
from tdumpra.errors import SourceError

ISIC2019_CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")

_COLUMNS_2018 = tuple(name.upper() for name in HAM10000_CLASSES)
_TABLE_2018 = "ISIC2018_Task3_Test_GroundTruth.csv"
_IMAGES_2018 = ("ISIC2018_Task3_Test_Input", "ISIC2018_Task3_Test_Images")
_UNKNOWN = "UNK"


def read_isic2018_test(folder: Path, options: SourceOptions) -> Manifest:
    """Read the test images of 2018, sorted by id; every record says ``test``."""
    root = require_folder(folder, "isic2018-task3")
    nested = root / Path(_TABLE_2018).stem / _TABLE_2018
    table = read_table(nested if nested.is_file() else root / _TABLE_2018)
    images = images_by_id(existing_folders(root, _IMAGES_2018), root)
    if "dx" in table.columns:
        table.require(("image_id",))
        records = records_by_dx(table, images, {}, options, split="test")
    else:
        table.require(("image", *_COLUMNS_2018))
        records, _ = _records(table, table, _COLUMNS_2018, images, "test", options)
    return finish("isic2018-task3", root, HAM10000_CLASSES, records, options, files=images)


def read_isic2019(folder: Path, options: SourceOptions) -> Manifest:
    """Read the training images and, where their table exists, the official test images, each sorted by id."""
    root = require_folder(folder, "isic2019")
    records: list[Record] = []
    files: set[str] = set()
    unknown: set[str] = set()
    for part, split in (("Training", None), ("Test", "test")):
        truth = root / f"ISIC_2019_{part}_GroundTruth.csv"
        if split and not truth.is_file():
            continue
        images = images_by_id(existing_folders(root, (f"ISIC_2019_{part}_Input",)), root)
        columns = ("image", *ISIC2019_CLASSES, *([_UNKNOWN] if split else []))
        details = read_table(root / f"ISIC_2019_{part}_Metadata.csv", ("image",))
        more, without_class = _records(read_table(truth, columns), details, ISIC2019_CLASSES, images, split, options)
        records += more
        unknown |= without_class
        files |= images.keys()
    notes = []
    if unknown:
        notes.append(f"{len(unknown):,} test images of the class {_UNKNOWN} left out: no training image shows it")
    if alone := sum(record.split is None and record.group == record.id for record in records):
        notes.append(f"{alone:,} training images name no group: each is taken as a group of its own")
    left = sorted(files - unknown)
    return finish("isic2019", root, ISIC2019_CLASSES, records, options, files=left, notes=tuple(notes))


def _records(
    truth: Table,
    details: Table,
    classes: tuple[str, ...],
    images: dict[str, Path],
    split: str | None,
    options: SourceOptions,
) -> tuple[list[Record], set[str]]:
    """Return the records of a table with a column per class, sorted by id, and the images of the class UNK."""
    rows = {row["image"]: row for row in details.rows}
    # The official test metadata has no lesion_id: there the default finds no column, and each image stands alone.
    by_group = group_column(options.group_column, "lesion_id", details.columns, details.path)
    columns = [column for column in (*classes, _UNKNOWN) if column in truth.columns]
    records, unknown = [], set()
    for number, row in enumerate(truth.rows):
        image, name = row["image"], _marked_class(row, columns, truth.where(number))
        if name == _UNKNOWN:
            if split is None:
                raise SourceError(f"{truth.where(number)}: the class {_UNKNOWN} belongs to the test set only")
            unknown.add(image)
            continue
        if image not in rows:
            raise SourceError(f"{image} has a label and no row in {details.path.name}: add the row")
        records.append(
            Record(
                id=image,
                path=images.get(image),
                label=classes.index(name),
                group=(rows[image][by_group] if by_group else "") or image,
                split=split,
                meta=metadata(rows[image], without=("image", *columns)),
            )
        )
    return sorted(records, key=lambda record: record.id), unknown


def _marked_class(row: dict[str, str], columns: list[str], where: str) -> str:
    """Return the one column of a row that holds 1 where all others hold 0."""
    try:
        marked = [column for column in columns if float(row[column]) == 1]
        others = sum(float(row[column]) != 0 for column in columns) - len(marked)
    except ValueError:
        raise SourceError(f"{where}: the class columns must hold 0 and 1 only") from None
    if len(marked) != 1 or others:
        raise SourceError(f"{where}: exactly one class must be 1 and the others 0; {len(marked)} are 1")
    return marked[0]
