"""A manifest whose images are ready to be used: broken ones set apart, the others cached or streamed.

This is what ``tdumpra data prepare`` runs, and what every stage that reads pixels starts with: where the cache is
complete it costs a look at each file's size and time, and a checksum over the cache.
"""

from __future__ import annotations

import csv
import io
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from tdumpra import screen
from tdumpra.artifacts import fingerprint, write_bytes
from tdumpra.data.images.cache import Built, build, cache_folder
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.store import CachedImages, ImageStore, StreamedImages
from tdumpra.data.images.workers import available_cores
from tdumpra.data.manifest import Manifest
from tdumpra.errors import ArtifactError, SourceError

QUARANTINE = "quarantine.csv"

Mode = Literal["auto", "cache", "stream"]


class Quarantined(NamedTuple):
    """An image that cannot be used, and why."""

    id: str
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """The records whose pixels can be had, with those pixels under the same numbers."""

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
    mode: Mode = "auto",
    max_bytes: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> Prepared:
    """Decode every image once, and set apart those that cannot be.

    Args:
        manifest: the data set.
        out: folder of the cache and of ``quarantine.csv``, which lists every broken image with its reason.
        framing: size and fit of the cached images; 224×224, stretched, by default.
        mode: ``cache`` keeps the pixels on disk; ``stream`` decodes them again whenever they are needed, after trying
            each once; ``auto`` caches unless that would exceed ``max_bytes`` or the free space of the disk.
        max_bytes: the most that the cache may take.
        workers: processes that decode; all cores by default, 0 for this process alone.
        progress: whether to show a progress bar on stderr.
    """
    out, framing = Path(out), framing or Framing()
    if mode not in ("auto", "cache", "stream"):
        raise ValueError(f"mode must be 'auto', 'cache' or 'stream', not {mode!r}")
    obstacle = _obstacle(len(manifest), cache_folder(out, framing), framing, max_bytes) if mode != "stream" else None
    if mode == "cache" and obstacle:
        raise ArtifactError(f"{obstacle}: free some space, choose a smaller size, or stream the images")
    keep = mode != "stream" and obstacle is None
    with screen.progress("decoding images", show=progress) as on_progress:
        cores = available_cores() if workers is None else workers
        built = build(manifest, out, framing, keep=keep, workers=cores, on_progress=on_progress)
    quarantine = tuple(
        Quarantined(record.id, str(record.path or ""), built.reasons[number])
        for number, record in enumerate(manifest.records)
        if number in built.reasons
    )
    _write_quarantine(out / QUARANTINE, quarantine)
    if not built.good:
        raise SourceError(f"none of {len(manifest):,} images can be read; the first: {quarantine[0].reason}")
    return _prepared(manifest, built, framing, keep, quarantine, obstacle, out)


def _prepared(
    manifest: Manifest,
    built: Built,
    framing: Framing,
    keep: bool,
    quarantine: tuple[Quarantined, ...],
    obstacle: str | None,
    out: Path,
) -> Prepared:
    numbers = sorted(built.good)
    good = replace(manifest, records=tuple(manifest.records[number] for number in numbers))
    images: ImageStore
    if keep:
        images = CachedImages(built.pixels, np.array([built.rows[number] for number in numbers]), framing)
    else:
        images = StreamedImages(good.records, good.reader, framing)
    notes = [f"{obstacle}: images are streamed"] if obstacle else []
    whole = sum(record.mask is None for record in manifest.records) if framing.lesion_margin is not None else 0
    if whole:
        notes.append(f"{whole:,} of {len(manifest):,} images have no lesion mask: lesion_margin does nothing to them")
    if quarantine:
        notes.append(
            f"{len(quarantine):,} of {len(manifest):,} images are broken and left out ({_summary(quarantine)}); "
            f"{out / QUARANTINE} lists them"
        )
    emptied = set(manifest.labels.tolist()) - set(good.labels.tolist())
    notes += [f"class {manifest.class_names[label]} has no usable image left" for label in sorted(emptied)]
    content = fingerprint(*(built.keys[number] for number in numbers))
    return Prepared(good, images, quarantine, tuple(notes), content)


def _obstacle(count: int, folder: Path, framing: Framing, max_bytes: int | None) -> str | None:
    """Why a cache of ``count`` images cannot be, if it cannot."""
    needed = count * framing.nbytes
    if max_bytes is not None and needed > max_bytes:
        return f"the image cache would take {_gigabytes(needed)}, and {_gigabytes(max_bytes)} are allowed"
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    pixels = folder / "pixels.u8"
    present = pixels.stat().st_size if pixels.exists() else 0
    free = shutil.disk_usage(existing).free
    if needed - present > free:
        return f"the image cache needs {_gigabytes(needed - present)}, and {existing} has {_gigabytes(free)} free"
    return None


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2g} GB" if count < 1e11 else f"{count / 1e9:,.0f} GB"


def _summary(quarantine: tuple[Quarantined, ...]) -> str:
    counts = Counter(image.reason for image in quarantine).most_common()
    shown = ", ".join(f"{count} × {reason}" for reason, count in counts[:3])
    return shown + (f", and {len(counts) - 3} more reasons" if len(counts) > 3 else "")


def _write_quarantine(path: Path, quarantine: tuple[Quarantined, ...]) -> None:
    """Also when it is empty: a reader need not guess whether nothing was broken or nothing was checked."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(Quarantined._fields)
    table.writerows(quarantine)
    write_bytes(path, text.getvalue().encode("utf-8", "backslashreplace"))  # names need not be valid unicode
