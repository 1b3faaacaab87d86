"""Real dermoscopic images for the benchmarks where they are at hand, otherwise pictures of a like size."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import FileReader


def image_manifest(folder: Path, count: int) -> Manifest:
    """``count`` JPEG files of HAM10000, found as the tests find it, or made into ``folder``."""
    paths = _ham10000(folder) or _made(folder, count)
    records = tuple(Record(path.stem, path, number % 7, path.stem) for number, path in enumerate(paths[:count]))
    return Manifest("benchmark", tuple("abcdefg"), records, FileReader())


def _ham10000(folder: Path) -> list[Path]:
    beside = Path(__file__).resolve().parents[2] / "shared" / "ham10000"
    source = Path(os.environ.get("TDUMPRA_HAM10000", beside))
    found = sorted(source.glob("**/ISIC_*.jpg"))
    if not found:
        for archive in source.glob("HAM10000_images_part_*.tar"):
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
        found = sorted(folder.glob("**/ISIC_*.jpg"))
    return found


def _made(folder: Path, count: int) -> list[Path]:
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).resize(
            (256, 192), Image.Resampling.BICUBIC
        )
        grain = np.asarray(coarse) + rng.normal(0, 6, (192, 256, 3))
        Image.fromarray(grain.clip(0, 255).astype(np.uint8)).save(folder / f"made_{number:05d}.jpg", quality=90)
    return sorted(folder.glob("made_*.jpg"))
