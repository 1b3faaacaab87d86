"""Make the images of a manifest ready for use: set broken ones apart, cache or stream the others.

``tdumpra data prepare`` runs this, and so does every stage that reads pixels: where the cache is complete, it costs a
look at each file's size and time, and a checksum over the cache.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tdumpra import screen
from tdumpra.artifacts import fingerprint
from tdumpra.data.images.cache import build, cache_folder
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.store import CachedImages, ImageStore, StreamedImages
from tdumpra.data.images.workers import available_cores
from tdumpra.data.manifest import Manifest
from tdumpra.errors import SourceError
from tdumpra.writing import write_bytes

QUARANTINE = "quarantine.csv"


class Quarantined(NamedTuple):
    """An image that cannot be used, and why."""

    id: str
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """The records that can be decoded, with their pixels under the same numbers."""

    manifest: Manifest
    images: ImageStore
    quarantine: tuple[Quarantined, ...]
    notes: tuple[str, ...]  # for the screen: what was left out, and whether images are streamed
    content: str = ""  # changes when a picture, or a mask that is looked at, does


def prepare(
    manifest: Manifest,
    out: str | Path,
    framing: Framing | None = None,
    *,
    workers: int | None = None,
    progress: bool = False,
) -> Prepared:
    """Decode every image once, and set apart those that cannot be decoded.

    The pixels are cached on disk. Where the disk has no room for them, each image is tried once, and decoded again
    whenever it is needed. ``out`` is the folder of the cache and of ``quarantine.csv``, which lists every broken image
    with its reason. ``workers`` are processes: all cores by default, 0 for this process alone.
    """
    out, framing = Path(out), framing or Framing()
    obstacle = _obstacle(len(manifest), cache_folder(out, framing), framing)
    with screen.progress("decoding images", show=progress) as on_progress:
        cores = available_cores() if workers is None else workers
        built = build(manifest, out, framing, keep=obstacle is None, workers=cores, on_progress=on_progress)
    quarantine = tuple(
        Quarantined(record.id, str(record.path or ""), built.reasons[number])
        for number, record in enumerate(manifest.records)
        if number in built.reasons
    )
    _write_quarantine(out / QUARANTINE, quarantine)
    if not built.keys:
        raise SourceError(f"none of {len(manifest):,} images can be read; the first: {quarantine[0].reason}")
    numbers = sorted(built.keys)
    good = replace(manifest, records=tuple(manifest.records[number] for number in numbers))
    images: ImageStore
    if obstacle is None:
        images = CachedImages(built.pixels, np.array([built.rows[number] for number in numbers]), framing)
    else:
        images = StreamedImages(good.records, good.reader, framing)
    notes = [f"{obstacle}: images are streamed"] if obstacle else []
    notes += _notes(manifest, good, framing, quarantine, out)
    return Prepared(good, images, quarantine, tuple(notes), fingerprint(*(built.keys[number] for number in numbers)))


def _notes(
    manifest: Manifest, good: Manifest, framing: Framing, quarantine: tuple[Quarantined, ...], out: Path
) -> list[str]:
    notes = []
    whole = sum(record.mask is None for record in manifest.records) if framing.lesion_margin is not None else 0
    if whole:
        notes.append(f"{whole:,} of {len(manifest):,} images have no lesion mask: lesion_margin does nothing to them")
    if quarantine:
        notes.append(
            f"{len(quarantine):,} of {len(manifest):,} images are broken and left out ({_summary(quarantine)}); "
            f"{out / QUARANTINE} lists them"
        )
    emptied = set(manifest.labels.tolist()) - set(good.labels.tolist())
    return notes + [f"class {manifest.class_names[label]} has no usable image left" for label in sorted(emptied)]


def _obstacle(count: int, folder: Path, framing: Framing) -> str | None:
    """Say why a cache of ``count`` images does not fit on the disk, if it does not."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    pixels = folder / "pixels.u8"
    needed = count * framing.nbytes - (pixels.stat().st_size if pixels.exists() else 0)
    free = shutil.disk_usage(existing).free
    if needed > free:
        return f"the image cache needs {_gigabytes(needed)}, and {existing} has {_gigabytes(free)} free"
    return None


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2g} GB" if count < 1e11 else f"{count / 1e9:,.0f} GB"


def _summary(quarantine: tuple[Quarantined, ...]) -> str:
    counts = Counter(image.reason for image in quarantine).most_common()
    shown = ", ".join(f"{count} × {reason}" for reason, count in counts[:3])
    return shown + (f", and {len(counts) - 3} more reasons" if len(counts) > 3 else "")


def _write_quarantine(path: Path, quarantine: tuple[Quarantined, ...]) -> None:
    """Write the table even if it is empty, so that nobody wonders whether anything was checked."""
    write_bytes(path, screen.csv_text([Quarantined._fields, *quarantine]).encode())
