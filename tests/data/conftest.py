"""Real tables, where they are at hand, and small manifests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import FileReader


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
        return Manifest("test", ("benign", "malignant"), tuple(records), FileReader())

    return make
