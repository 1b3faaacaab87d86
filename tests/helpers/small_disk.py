"""A disk of a few MiB that can be filled: a file system in memory, which only root may mount."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """Where it is mounted, and how it is filled and emptied."""

    def __init__(self, place: Path) -> None:
        self.place, self._ballast = place, place / "ballast"

    def fill(self) -> None:
        """Leave no byte free."""
        with self._ballast.open("wb", buffering=0) as file:
            for size in (2**20, 4096, 1):
                try:
                    while True:
                        if not file.write(bytes(size)):
                            break
                except OSError:
                    continue

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink()


@contextmanager
def small_disk(place: Path, mebibytes: int) -> Iterator[SmallDisk]:
    """A small disk at ``place``, or a skipped test where none may be mounted."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, timeout=20, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode != 0:
        pytest.skip("only root may mount a small disk")
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=20)
