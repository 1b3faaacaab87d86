"""Decode each image once, into a file of equal rows that is memory-mapped ever after.

A cache is a folder with a subfolder for each framing::

    CACHE/224x224-stretch-1a2b3c4d/
        pixels.u8      row after row of height × width × 3 bytes
        journal.tsv    which image lies in which row, with a checksum; a line is appended once the row is written
        files.json     digests of files that need not be read again
        lock           held by the one process that builds; others wait, and then find the work done

Rows are named by content (see :mod:`tdumpra.data.images.identity`). A killed build loses the last moments of work: the
next goes on from the journal. Every row is checked against its checksum before it is used again, so that rows which a
power cut tore are built anew. A cache may be deleted at any time.
"""

from __future__ import annotations

import logging
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tdumpra.data.images.framing import Framing
from tdumpra.data.images.identity import FileStamp, KnownFiles, hash_file, image_files, image_key, reader_key
from tdumpra.data.images.store import frame_record, map_rows
from tdumpra.data.images.workers import Died, run_tasks
from tdumpra.data.manifest import Manifest
from tdumpra.errors import ArtifactError, BrokenImageError
from tdumpra.locks import exclusive

log = logging.getLogger(__name__)

DIED = "decoding it kills the process"

_LINE = re.compile(rb"([0-9a-f]{16})\t(\d+|-)\t(\d+)\n")
_FLUSH_SECONDS = 2.0


class Entry(NamedTuple):
    """Where an image lies, and the CRC-32 of its bytes. No row: it was decoded well, and not kept."""

    row: int | None
    checksum: int


@dataclass(frozen=True, slots=True)
class Built:
    """The outcome of a build: a row for each good record of the manifest, a reason for each other one."""

    pixels: Path
    rows: dict[int, int] = field(default_factory=dict)  # by record number; empty where nothing was to be kept
    good: set[int] = field(default_factory=set)
    reasons: dict[int, str] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)  # of the good records: another picture, another key


class _Task(NamedTuple):
    number: int  # of the record in the manifest
    row: int | None


class _Outcome(NamedTuple):
    number: int
    key: str = ""
    entry: Entry | None = None
    stamps: tuple[FileStamp, ...] = ()
    reason: str = ""


def cache_folder(cache: Path, framing: Framing) -> Path:
    """Where the images of one framing lie."""
    name = f"{framing.height}x{framing.width}-{framing.fit}-{framing.fingerprint[:8]}"
    return cache / name


def build(
    manifest: Manifest,
    cache: Path,
    framing: Framing,
    *,
    keep: bool = True,
    workers: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Built:
    """Bring every record of ``manifest`` into the cache, or find out why it cannot be.

    Args:
        manifest: whose records are framed; their order does not matter to the cache.
        cache: the folder of all caches; made if need be.
        framing: size and fit.
        keep: whether to store the pixels; without it the images are only tried.
        workers: processes; 0 works in this one.
        on_progress: told the number of records settled, and of all.
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
        self.manifest, self.folder, self.framing, self.keep = manifest, folder, framing, keep
        self.pixels = folder / "pixels.u8"
        self.journal = folder / "journal.tsv"
        self.files = KnownFiles(folder / "files.json")
        self.reader_key = reader_key(manifest.reader)
        self.entries = _sound_entries(self.journal, self.pixels, framing)
        self.built = Built(self.pixels)

    def run(self, workers: int, on_progress: Callable[[int, int], None]) -> Built:
        total = len(self.manifest)
        todo = [number for number in range(total) if not self._settled(number)]
        on_progress(total - len(todo), total)
        if todo:
            self._frame(todo, workers, lambda done: on_progress(total - len(todo) + done, total))
            self.files.save()
        return self.built

    def _settled(self, number: int) -> bool:
        """Whether the cache already has what this record needs; if so, it is noted."""
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
        self.built.good.add(number)
        self.built.keys[number] = key
        if entry.row is not None:
            self.built.rows[number] = entry.row

    def _frame(self, todo: list[int], workers: int, on_progress: Callable[[int], None]) -> None:
        rows = self._reserve_rows(len(todo)) if self.keep else [None] * len(todo)
        tasks = [_Task(number, row) for number, row in zip(todo, rows, strict=True)]
        framer = _Framer(self.manifest, self.reader_key, self.framing, self.pixels, self.entries)
        done = 0
        with _Journal(self.journal, self.pixels) as journal:
            for outcomes in run_tasks(framer, tasks, workers=workers):
                for outcome in outcomes:
                    self._settle(outcome, journal)
                journal.flush_now_and_then()
                done += len(outcomes)
                on_progress(done)

    def _settle(self, outcome: _Outcome | Died[_Task], journal: _Journal) -> None:
        if isinstance(outcome, Died):
            self.built.reasons[outcome.task.number] = DIED
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
        """Row numbers that no image has, with room for them in the file (a file system fills it as it is written)."""
        taken = {entry.row for entry in self.entries.values()}
        free = (row for row in range(len(taken) + count) if row not in taken)
        rows: list[int | None] = [next(free) for _ in range(count)]
        needed = (1 + max(row for row in rows if row is not None)) * self.framing.nbytes
        with self.pixels.open("ab") as file:
            if file.tell() < needed:
                file.truncate(needed)
        return rows


class _Framer:
    """What a worker process does to each record: hash, decode, frame, write."""

    def __init__(
        self, manifest: Manifest, reader_key: str, framing: Framing, pixels: Path, entries: dict[str, Entry]
    ) -> None:
        self.records, self.reader, self.reader_key = manifest.records, manifest.reader, reader_key
        self.framing, self.pixels = framing, pixels
        self.entries = dict(entries)  # as they were before this build

    def __call__(self, task: _Task) -> _Outcome:
        record = self.records[task.number]
        stamps: tuple[FileStamp, ...] = ()
        try:
            stamps = tuple(hash_file(path) for path in image_files(record, self.framing))
            key = image_key(record, [stamp.digest for stamp in stamps], self.reader_key)
            known = self.entries.get(key)
            if known is not None and (known.row is not None or task.row is None):
                return _Outcome(task.number, key, known, stamps)
            pixels = np.ascontiguousarray(frame_record(record, self.reader, self.framing)).data
        except BrokenImageError as error:
            return _Outcome(task.number, stamps=stamps, reason=str(error))
        if task.row is not None:
            with self.pixels.open("r+b") as file:
                file.seek(task.row * self.framing.nbytes)
                file.write(pixels)
        return _Outcome(task.number, key, Entry(task.row, zlib.crc32(pixels)), stamps)


class _Journal:
    """Appends lines in batches. A line never stands before its row was handed to the operating system."""

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
    """What the journal says, less what the pixels do not bear out."""
    entries = dict(_journal_entries(journal))
    stored = [entry for entry in entries.values() if entry.row is not None]
    if not stored or not pixels.exists() or pixels.stat().st_size < framing.nbytes:
        return {key: entry for key, entry in entries.items() if entry.row is None}
    rows = map_rows(pixels, framing)
    sound = {
        key: entry
        for key, entry in entries.items()
        if entry.row is None or (entry.row < len(rows) and zlib.crc32(rows[entry.row]) == entry.checksum)
    }
    if len(sound) < len(entries):
        log.warning("%d damaged images in %s are made again", len(entries) - len(sound), pixels)
    return sound


def _journal_entries(journal: Path) -> Iterator[tuple[str, Entry]]:
    """Later lines win. A line that a crash cut short matches nothing and counts nothing."""
    lines: Iterable[bytes] = journal.read_bytes().splitlines(keepends=True) if journal.exists() else ()
    for line in lines:
        match = _LINE.fullmatch(line)
        if match:
            row = None if match[2] == b"-" else int(match[2])
            yield match[1].decode(), Entry(row, int(match[3]))
