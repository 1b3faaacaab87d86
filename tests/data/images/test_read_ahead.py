"""Reading ahead: the order is kept, broken files are set apart, and few images wait in memory."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

from tdumpra.data.images import read_ahead as module
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.read_ahead import Image, read_ahead

FRAMING = Framing(height=8, width=8)


@pytest.fixture
def images(tmp_path) -> list[Image]:
    paths = [tmp_path / f"{i:02}.png" for i in range(23)]
    for i, path in enumerate(paths):
        if i in (0, 4, 5, 21, 22):
            path.write_bytes(b"no image")
        else:
            Picture.new("RGB", (12, 10), (i, 0, 0)).save(path)
    return [Image(path) for path in paths]


def test_order_is_kept_and_batches_are_full_of_what_can_be_read(images):
    parts = list(read_ahead(images, FRAMING, FRAMING, batch_size=5))
    flat = [each for part in parts for each in part.results]
    assert [i for i, each in enumerate(flat) if isinstance(each, str)] == [0, 4, 5, 21, 22]
    assert all(each.first[0, 0, 0] == i for i, each in enumerate(flat) if not isinstance(each, str))
    assert [len(part.framed) for part in parts] == [5, 5, 5, 3]


def test_images_that_cannot_be_read_at_the_end_come_out_too(images):
    parts = list(read_ahead(images[1:4] + images[21:], FRAMING, FRAMING, batch_size=3))
    assert [len(part.framed) for part in parts] == [3, 0]
    assert len(parts[1].results) == 2


def test_both_networks_share_what_they_see_alike(images):
    (one,) = (part.framed[0] for part in read_ahead(images[1:2], FRAMING, FRAMING, batch_size=1))
    assert one.first is one.second
    (two,) = (part.framed[0] for part in read_ahead(images[1:2], FRAMING, Framing(height=9, width=9), batch_size=1))
    assert two.second.shape == (9, 9, 3)


def test_no_more_is_read_than_two_batches_ahead(images, monkeypatch):
    read, lock = [0], threading.Lock()

    def counted(path: Path) -> np.ndarray:
        with lock:
            read[0] += 1
        return np.zeros((8, 8, 3), np.uint8)

    monkeypatch.setattr(module, "decode_file", counted)
    parts = read_ahead(images, FRAMING, FRAMING, batch_size=3)
    next(parts)
    parts.close()  # type: ignore[attr-defined]
    assert read[0] <= 3 * 3
