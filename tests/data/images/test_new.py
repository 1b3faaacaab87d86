"""New images of any origin: each is framed or told why not, within the limits, and none ends the reading."""

from __future__ import annotations

import multiprocessing
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hostile_images import write_hostile
from PIL import Image as Picture

from tdumpra.data.images.framing import Framing
from tdumpra.data.images.new import Framed, Image, read_batches, read_images
from tdumpra.errors import BrokenImageError
from tdumpra.limits import MIB

SMALL, LARGE = Framing(height=16, width=16), Framing(height=32, width=24)
LIMITS = f"image_seconds=2, image_memory={256 * MIB}"


def read(paths: list[Path], **options: bool) -> list[Framed | BrokenImageError]:
    return list(read_images([Image(path) for path in paths], SMALL, LARGE, picture=options.get("picture", False)))


def test_an_image_is_framed_for_both_networks(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (1200, 900, 3), dtype=np.uint8)
    Picture.fromarray(pixels).save(tmp_path / "a.png")
    (framed,) = read([tmp_path / "a.png"], picture=True)
    assert isinstance(framed, Framed)
    np.testing.assert_array_equal(framed.first, SMALL.apply(pixels))
    np.testing.assert_array_equal(framed.second, LARGE.apply(pixels))
    assert framed.picture is not None
    assert framed.picture.shape == (1024, 768, 3)
    (without,) = read([tmp_path / "a.png"])
    assert isinstance(without, Framed)
    assert without.picture is None


def survive(folder: Path, count: int, seed: int) -> dict[str, float]:
    """Read hostile images with sound ones between them; return figures for the record."""
    paths = list(write_hostile(folder, count, seed=seed))
    good = folder / "good.png"
    Picture.fromarray(np.full((40, 40, 3), 77, np.uint8)).save(good)
    mixed = [each for path in paths for each in (path, good)]
    started = time.perf_counter()
    found = read(mixed)
    assert len(found) == len(mixed)
    assert all(isinstance(each, Framed) and (each.first == 77).all() for each in found[1::2])
    reasons = [str(each) for each in found[::2] if isinstance(each, BrokenImageError)]
    assert all("\n" not in reason for reason in reasons)
    return {
        "read": count - len(reasons),
        "refused": len(reasons),
        "out of time": sum("takes more than 2 s" in reason for reason in reasons),
        "out of memory": sum("memory" in reason for reason in reasons),
        "seconds": round(time.perf_counter() - started, 1),
    }


@pytest.mark.skipif(sys.platform != "linux", reason="limits of processes are Linux's")
def test_hostile_images_cost_no_more_than_the_limits(tmp_path, monkeypatch):
    monkeypatch.setenv("TDUMPRA_LIMITS", LIMITS)
    figures = survive(tmp_path / "in", 40, seed=1)
    assert figures["refused"] > 15


@pytest.mark.skipif(sys.platform != "linux", reason="limits of processes are Linux's")
def test_an_image_that_takes_too_long_costs_itself_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TDUMPRA_LIMITS", "image_scans=1e9, image_seconds=0.3")
    rng = np.random.default_rng(3)
    large = Picture.fromarray(rng.integers(0, 256, (1500, 1500, 3), dtype=np.uint8))
    large.save(tmp_path / "slow.jpg", progressive=True)
    data = (tmp_path / "slow.jpg").read_bytes()
    start = data.rindex(b"\xff\xda")
    (tmp_path / "slow.jpg").write_bytes(data[:start] + data[start:-2] * 60 + data[-2:])
    Picture.new("RGB", (32, 32), (1, 2, 3)).save(tmp_path / "good.png")
    slow, good = read([tmp_path / "slow.jpg", tmp_path / "good.png"])
    assert "takes more than 0.3 s" in str(slow)
    assert isinstance(good, Framed)


# --- ahead of the networks, in batches


@pytest.fixture
def some_broken(tmp_path) -> list[Image]:
    paths = [tmp_path / f"{i:02}.png" for i in range(23)]
    for i, path in enumerate(paths):
        if i in (0, 4, 5, 21, 22):
            path.write_bytes(b"no image")
        else:
            Picture.new("RGB", (12, 10), (i, 0, 0)).save(path)
    return [Image(path) for path in paths]


def test_order_is_kept_and_batches_are_full_of_what_can_be_read(some_broken):
    batches = list(read_batches(some_broken, SMALL, SMALL, batch_size=5))
    flat = [each for batch in batches for each in batch]
    assert [i for i, each in enumerate(flat) if isinstance(each, BrokenImageError)] == [0, 4, 5, 21, 22]
    assert all(each.first[0, 0, 0] == i for i, each in enumerate(flat) if isinstance(each, Framed))
    assert [sum(isinstance(each, Framed) for each in batch) for batch in batches] == [5, 5, 5, 3]


def test_both_networks_share_what_they_see_alike(some_broken):
    ((one,),) = read_batches(some_broken[1:2], SMALL, SMALL, batch_size=1)
    assert isinstance(one, Framed)
    assert one.first is one.second


def test_a_reader_that_stops_early_leaves_no_process(some_broken):
    batches = read_batches(some_broken * 20, SMALL, SMALL, batch_size=3)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


def test_more_workers_than_cores_leave_each_image_its_own_pixels(tmp_path):
    framing = Framing(height=8, width=8)
    paths = []
    for i in range(240):
        paths.append(Image(tmp_path / f"{i}.png"))
        Picture.fromarray(np.full((8, 8, 3), i, dtype=np.uint8)).save(paths[-1].path)
    found = []
    for each in read_images(paths, framing, framing, picture=False, workers=16):
        assert isinstance(each, Framed)
        found.append(int(each.first[0, 0, 0]))
        time.sleep(0.002)  # so that the workers are as far ahead as they may be
    assert found == list(range(240))
