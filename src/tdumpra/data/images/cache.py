"""Decode each image once, into a file of equal rows that are read from then on.

A cache is a folder with a subfolder for each framing::

    CACHE/224x224-stretch-1a2b3c4d/
        pixels.u8      row after row of height × width × 3 bytes
        journal.tsv    which image is in which row, with a checksum; a line is appended once its row is written
        files.json     digests of files that need not be read again
        lock           held by the one process that builds; others wait, and then find the work done

Rows are named by content (see :mod:`tdumpra.data.images.identity`). A killed build loses the last moments of work: the
next one goes on from the journal. Every row is checked against its checksum before it is used again, so that rows
damaged by a power cut are built anew. A cache may be deleted at any time.
"""

from __future__ import annotations

import logging
import os
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tdumpra.data.images.framing import Framing
from tdumpra.data.images.identity import FileStamp, KnownFiles, hash_file, image_files, image_key, reader_key
from tdumpra.data.images.store import frame_record, read_rows
from tdumpra.data.images.workers import Died, run_tasks
from tdumpra.data.manifest import Manifest
from tdumpra.errors import ArtifactError, BrokenImageError
from tdumpra.locks import exclusive

log = logging.getLogger(__name__)

_LINE = re.compile(rb"([0-9a-f]{16})\t(\d{1,12}|-)\t(\d{1,12})\n")  # int() refuses thousands of digits
_FLUSH_SECONDS = 2.0

_Task = tuple[int, int | None]  # the number of a record, and the row to write it to


class Entry(NamedTuple):
    """The row of an image and the CRC-32 of its bytes. Without a row: it was decoded, and not kept."""

    row: int | None
    checksum: int


@dataclass(frozen=True, slots=True)
class Built:
    """The outcome of a build, by record number: a key for each good record, a reason for each other one."""

    pixels: Path
    keys: dict[int, str] = field(default_factory=dict)  # another picture, another key
    rows: dict[int, int] = field(default_factory=dict)  # empty where no pixels are kept
    reasons: dict[int, str] = field(default_factory=dict)


class _Outcome(NamedTuple):
    number: int
    stamps: tuple[FileStamp, ...]
    key: str = ""
    entry: Entry | None = None  # None: the image is broken
    reason: str = ""


def cache_folder(cache: Path, framing: Framing) -> Path:
    """Return the folder for the images of one framing."""
    return cache / f"{framing.height}x{framing.width}-{framing.fit}-{framing.fingerprint[:8]}"


def build(
    manifest: Manifest,
    cache: Path,
    framing: Framing,
    *,
    keep: bool = True,
    workers: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Built:
    """Bring every record of ``manifest`` into the cache, or find out why it cannot be decoded.

    Without ``keep`` the images are only tried. ``workers`` are processes; 0 works in this one. ``on_progress`` is
    called with the number of records done, and of all.
    """
    folder = cache_folder(cache, framing)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / "lock", on_wait=lambda: log.info("another process builds %s: waiting for it", folder)):
            return _Build(manifest, folder, framing, keep).run(workers, on_progress)
    except OSError as error:  # no space, no permission: about the cache, for an image's own troubles are reasons by now
        raise ArtifactError(f"cannot write the image cache {folder}: {error.strerror or error}") from error


class _Build:
    """One build, under the lock."""

    def __init__(self, manifest: Manifest, folder: Path, framing: Framing, keep: bool) -> None:
        self.manifest, self.framing, self.keep = manifest, framing, keep
        self.journal = folder / "journal.tsv"
        self.files = KnownFiles(folder / "files.json")
        self.reader_key = reader_key(manifest.reader)
        self.built = Built(folder / "pixels.u8")
        self.entries = _sound_entries(self.journal, self.built.pixels, framing)

    def run(self, workers: int, on_progress: Callable[[int, int], None]) -> Built:
        total = len(self.manifest)
        todo = [number for number in range(total) if not self._is_cached(number)]
        done = total - len(todo)
        on_progress(done, total)
        if not todo:
            return self.built
        rows = self._reserve_rows(len(todo)) if self.keep else [None] * len(todo)
        framer = _Framer(self.manifest, self.reader_key, self.framing, self.built.pixels, dict(self.entries))
        with _Journal(self.journal, self.built.pixels) as journal:
            from_files = all(record.path is not None for record in self.manifest.records)
            tasks = list(zip(todo, rows, strict=True))
            for outcomes in run_tasks(framer, tasks, workers=workers, limited=from_files):
                for outcome in outcomes:
                    self._settle(outcome, journal)
                journal.flush_now_and_then()
                done += len(outcomes)
                on_progress(done, total)
        self.files.save()
        return self.built

    def _is_cached(self, number: int) -> bool:
        """Return whether the cache already has what this record needs; if so, note it."""
        record = self.manifest.records[number]
        digests = [self.files.digest(path) for path in image_files(record, self.framing)]
        known = [digest for digest in digests if digest is not None]
        if len(known) < len(digests):
            return False
        key = image_key(record, known, self.reader_key)
        entry = self.entries.get(key)
        if entry is None or (self.keep and entry.row is None):
            return False
        self._note(number, key, entry)
        return True

    def _note(self, number: int, key: str, entry: Entry) -> None:
        self.built.keys[number] = key
        if entry.row is not None:
            self.built.rows[number] = entry.row

    def _settle(self, outcome: _Outcome | Died[_Task], journal: _Journal) -> None:
        if isinstance(outcome, Died):
            self.built.reasons[outcome.task[0]] = outcome.reason
            return
        for stamp in outcome.stamps:
            self.files.remember(stamp)
        if outcome.entry is None:
            self.built.reasons[outcome.number] = outcome.reason
            return
        if self.entries.get(outcome.key) != outcome.entry:
            self.entries[outcome.key] = outcome.entry
            journal.add(outcome.key, outcome.entry)
        self._note(outcome.number, outcome.key, outcome.entry)

    def _reserve_rows(self, count: int) -> list[int | None]:
        """Return row numbers that no image has, and make room for them in the file."""
        taken = {entry.row for entry in self.entries.values()}
        rows = [row for row in range(len(taken) + count) if row not in taken][:count]
        needed = (1 + rows[-1]) * self.framing.nbytes
        with self.built.pixels.open("ab") as file:
            if file.tell() < needed:
                file.truncate(needed)
        return [*rows]


@dataclass(frozen=True, slots=True)
class _Framer:
    """Hash, decode, frame and write one record, in a worker process."""

    manifest: Manifest
    reader_key: str
    framing: Framing
    pixels: Path
    entries: dict[str, Entry]  # as they were before this build

    def __call__(self, task: _Task) -> _Outcome:
        number, row = task
        record = self.manifest.records[number]
        stamps: tuple[FileStamp, ...] = ()
        try:
            stamps = tuple(hash_file(path) for path in image_files(record, self.framing))
            key = image_key(record, [stamp.digest for stamp in stamps], self.reader_key)
            known = self.entries.get(key)
            if known is not None and (known.row is not None or row is None):
                return _Outcome(number, stamps, key, known)
            pixels = np.ascontiguousarray(frame_record(record, self.manifest.reader, self.framing)).data
        except BrokenImageError as error:
            return _Outcome(number, stamps, reason=str(error))
        if row is not None:
            with self.pixels.open("r+b") as file:
                file.seek(row * self.framing.nbytes)
                file.write(pixels)
        return _Outcome(number, stamps, key, Entry(row, zlib.crc32(pixels)))


class _Journal:
    """Append lines in batches. A line is never written before its row was handed to the operating system."""

    def __init__(self, path: Path, pixels: Path) -> None:
        self.path, self.pixels = path, pixels
        self.lines: list[str] = []

    def __enter__(self) -> _Journal:
        self.file = self.path.open("ab+")
        if self.file.tell():
            self.file.seek(-1, os.SEEK_END)
            if self.file.read(1) != b"\n":
                self.file.write(b"\n")  # the last build was killed in the middle of a line
        self.flushed = time.monotonic()
        return self

    def __exit__(self, *exception: object) -> None:
        self._flush()
        if self.pixels.exists():
            with self.pixels.open("rb+") as file:
                os.fsync(file.fileno())
        os.fsync(self.file.fileno())
        self.file.close()

    def add(self, key: str, entry: Entry) -> None:
        self.lines.append(f"{key}\t{'-' if entry.row is None else entry.row}\t{entry.checksum}\n")

    def flush_now_and_then(self) -> None:
        if time.monotonic() - self.flushed > _FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        self.file.write("".join(self.lines).encode())
        self.file.flush()
        self.lines.clear()
        self.flushed = time.monotonic()


def _sound_entries(journal: Path, pixels: Path, framing: Framing) -> dict[str, Entry]:
    """Read the journal and drop the entries whose pixels are missing or damaged.

    Later lines win. A line that a crash cut short matches nothing.
    """
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    entries = {
        match[1].decode(): Entry(None if match[2] == b"-" else int(match[2]), int(match[3]))
        for match in map(_LINE.fullmatch, lines)
        if match
    }
    stored = any(entry.row is not None for entry in entries.values())
    if not stored or not pixels.exists() or pixels.stat().st_size < framing.nbytes:
        return {key: entry for key, entry in entries.items() if entry.row is None}
    rows = sorted({entry.row for entry in entries.values() if entry.row is not None})  # in the order of the file
    checksums = {
        row: zlib.crc32(found.data)
        for row, found in zip(rows, read_rows(pixels, framing, rows), strict=True)
        if found is not None
    }
    sound = {
        key: entry for key, entry in entries.items() if entry.row is None or checksums.get(entry.row) == entry.checksum
    }
    if len(sound) < len(entries):
        log.warning("%d damaged images in %s are made again", len(entries) - len(sound), pixels)
    return sound
