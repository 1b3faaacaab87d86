"""Building the image cache against a bare parallel loop that decodes and resizes with Pillow, and keeps nothing.

The cache also hashes each file, checks it, writes the pixels and a journal, and syncs them to disk. Both use all cores
and the same filter.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.common import Row, best_times, faster
from benchmarks.images import image_manifest
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.prepare import prepare
from tdumpra.data.images.workers import available_cores

COUNT, SIDE = 4000, 224


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        manifest = image_manifest(Path(folder), COUNT)
        paths = [record.path for record in manifest.records]

        def ours() -> None:
            with tempfile.TemporaryDirectory() as out:
                prepare(manifest, out, Framing(height=SIDE, width=SIDE))

        def theirs() -> None:
            with ProcessPoolExecutor(available_cores(), mp_context=get_context("fork")) as pool:
                for _ in pool.map(_decode_and_resize, paths, chunksize=32):
                    pass

        mine, other = best_times(ours, theirs, repeats=4)
    name = f"image cache, {len(manifest):,} JPEG to {SIDE}×{SIDE}"
    return [faster(name, mine, other, at_least=0.9, against="a bare Pillow loop")]


def _decode_and_resize(path: Path) -> int:
    image = Image.open(path).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return int(np.asarray(image)[0, 0, 0])
