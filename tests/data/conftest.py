"""Small data sets on disk, in the layouts that users have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tdumpra.data.images.decode import read_record
from tdumpra.data.manifest import Manifest, Record

WriteImage = Callable[..., Path]
WriteTable = Callable[[Path, Iterable[str]], Path]


@pytest.fixture(scope="session")
def write_image() -> WriteImage:
    """Writes a small picture that its seed determines."""

    def write(path: Path, seed: int = 0, size: tuple[int, int] = (32, 24)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, quality=95)
        return path

    return write


@pytest.fixture(scope="session")
def write_table() -> WriteTable:
    """Writes lines to a file."""

    def write(path: Path, lines: Iterable[str]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


@pytest.fixture
def ham_folder(tmp_path: Path, write_image: WriteImage, write_table: WriteTable) -> Path:
    """HAM10000 in small: eight images of six lesions, in two parts, with masks and one duplicate pair."""
    root = tmp_path / "ham"
    rows = [
        ("HAM_1", "ISIC_1", "nv"),
        ("HAM_1", "ISIC_2", "nv"),
        ("HAM_2", "ISIC_3", "mel"),
        ("HAM_3", "ISIC_4", "mel"),
        ("HAM_4", "ISIC_5", "bcc"),
        ("HAM_5", "ISIC_6", "akiec"),
        ("HAM_5", "ISIC_7", "akiec"),
        ("HAM_6", "ISIC_8", "vasc"),
    ]
    header = "lesion_id,image_id,dx,dx_type,age,sex,localization"
    write_table(
        root / "HAM10000_metadata.csv",
        [header, *(f"{lesion},{image},{dx},histo,50.0,female,back" for lesion, image, dx in reversed(rows))],
    )
    write_table(root / "newly_discovered_duplicates.csv", ["similarity,from_img,to_img", "0.98,ISIC_4.jpg,ISIC_3.jpg"])
    for number, (_, image, _) in enumerate(rows):
        write_image(root / f"HAM10000_images_part_{1 + number % 2}" / f"{image}.jpg", seed=number)
    write_image(root / "HAM10000_segmentations_lesion" / "ISIC_1_segmentation.png")
    return root


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder beside the repository where real data may lie."""
    return Path(__file__).parents[3] / "shared"


@pytest.fixture(scope="session")
def ham10000_metadata(shared: Path) -> Path:
    """The folder of the real HAM10000 tables: ``TDUMPRA_HAM10000``, or ``../shared/ham10000`` beside the repository."""
    folder = Path(os.environ.get("TDUMPRA_HAM10000", shared / "ham10000"))
    if not (folder / "HAM10000_metadata.csv").is_file():
        pytest.skip("HAM10000 is not here: set TDUMPRA_HAM10000 to its folder")
    return folder


@pytest.fixture(scope="session")
def isic2019_tables(shared: Path) -> Path:
    """The folder of the real ISIC 2019 tables: ``TDUMPRA_ISIC2019``, or ``../shared/isic2019``."""
    folder = Path(os.environ.get("TDUMPRA_ISIC2019", shared / "isic2019"))
    if not (folder / "ISIC_2019_Training_GroundTruth.csv").is_file():
        pytest.skip("the ISIC 2019 tables are not here: set TDUMPRA_ISIC2019 to their folder")
    return folder


def picture(number: int, height: int = 24, width: int = 32) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture
def make_manifest(tmp_path: Path) -> Callable[..., Manifest]:
    """Writes n small PNG files, and a manifest of them with two classes and pairs of images as groups."""

    def make(n: int, folder: str = "images") -> Manifest:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        records = []
        for number in range(n):
            path = place / f"{number:04d}.png"
            Image.fromarray(picture(number)).save(path)
            records.append(Record(f"image{number:04d}", path, number % 2, f"group{number // 2}"))
        return Manifest("test", ("benign", "malignant"), tuple(records), read_record)

    return make
