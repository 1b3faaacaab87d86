"""The ISIC 2019 challenge: eight classes for training, and a ninth, UNK, in the test set only.

::

    DIR/ISIC_2019_Training_GroundTruth.csv    image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK
    DIR/ISIC_2019_Training_Metadata.csv       image,age_approx,anatom_site_general,lesion_id,sex
    DIR/ISIC_2019_Training_Input/*.jpg        or the images in DIR itself
    DIR/ISIC_2019_Test_GroundTruth.csv        optional, with its Metadata and Input: the official test set

Some ids end in ``_downsampled``; that is their name in the tables and of their files. An image without a
``lesion_id`` is a group of its own. Test images of the class UNK are counted and left out: no training image shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import images_by_id, require_folder
from tdumpra.data.sources.finish import Found, SourceOptions, assemble, group_column, metadata, one_hot_class
from tdumpra.data.sources.tables import Table, read_table
from tdumpra.errors import SourceError

ISIC2019_CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")

_UNKNOWN = "UNK"


@dataclass(frozen=True, slots=True)
class _Part:
    """The training or the test set: its tables, its images, and what its records say of their split."""

    name: str
    truth: Table
    details: Table
    images: dict[str, Path]
    split: str | None


def read_isic2019(folder: Path, options: SourceOptions) -> Manifest:
    """The training images, and the official test images where their table is there, each sorted by id."""
    root = require_folder(folder, "isic2019")
    parts = [_open_part(root, "Training", None)]
    if (root / "ISIC_2019_Test_GroundTruth.csv").is_file():
        parts.append(_open_part(root, "Test", "test"))
    records: list[Record] = []
    unknown: set[str] = set()
    for part in parts:
        more, without_class = _records(part, options)
        records += more
        unknown |= without_class
    known = {record.id for record in records} | unknown
    notes = (f"{len(unknown):,} test images of the class {_UNKNOWN} left out: no training image shows it",)
    return assemble(
        Found(
            "isic2019",
            root,
            ISIC2019_CLASSES,
            records,
            unlabelled=sorted({image for part in parts for image in part.images} - known),
            notes=notes if unknown else (),
        ),
        options,
    )


def _open_part(root: Path, name: str, split: str | None) -> _Part:
    classes = (*ISIC2019_CLASSES, _UNKNOWN) if split else ISIC2019_CLASSES
    official = root / f"ISIC_2019_{name}_Input"
    return _Part(
        name,
        read_table(root / f"ISIC_2019_{name}_GroundTruth.csv", ("image", *classes)),
        read_table(root / f"ISIC_2019_{name}_Metadata.csv", ("image",)),
        images_by_id([official if official.is_dir() else root], root),
        split,
    )


def _records(part: _Part, options: SourceOptions) -> tuple[list[Record], set[str]]:
    details = {row["image"]: row for row in part.details.rows}
    truth = part.truth
    # The official test metadata has no lesion_id: there the default finds no column, and each image stands alone.
    by_group = group_column(options.group_column, "lesion_id", part.details.columns, part.details.path)
    columns = [column for column in (*ISIC2019_CLASSES, _UNKNOWN) if column in truth.columns]
    records, unknown = [], set()
    for number, row in enumerate(truth.rows):
        image, name = row["image"], one_hot_class(row, columns, truth.where(number))
        if name == _UNKNOWN:
            if part.split is None:
                raise SourceError(f"{truth.where(number)}: the class {_UNKNOWN} belongs to the test set only")
            unknown.add(image)
            continue
        if image not in details:
            raise SourceError(f"{image} has a label and no row in {part.details.path.name}: add the row")
        row = details[image]
        records.append(
            Record(
                id=image,
                path=part.images.get(image),
                label=ISIC2019_CLASSES.index(name),
                group=(row[by_group] if by_group else "") or image,
                split=part.split,
                meta=metadata(row, without=("image",)),
            )
        )
    return sorted(records, key=lambda record: record.id), unknown
