"""Small manifests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import FileReader


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
