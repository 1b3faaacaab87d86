from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from tdumpra.data.duplicates import (
    MAX_DISTANCE,
    find_near_duplicates,
    hash_neighbours,
    orient,
    perceptual_hashes,
    phase_correlation,
    small_version,
)
from tdumpra.data.manifest import Manifest, Record
from tdumpra.errors import BrokenImageError


def skin(seed: int, height: int = 120, width: int = 160) -> NDArray[np.uint8]:
    """A dark spot on pale, textured skin: pictures that a coarse hash takes for one another."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    spot = 90 * np.exp(-(x**2 + y**2) / 0.1)
    texture = gaussian_filter(rng.standard_normal((height, width)), 2) * 60
    grey = np.clip(200 - spot + texture, 0, 255)
    return np.repeat(grey[..., None], 3, axis=-1).astype(np.uint8)


class Pictures:
    """A reader of pictures in memory; ``None`` is a broken one."""

    def __init__(self, pictures: list[NDArray[np.uint8] | None]) -> None:
        self.pictures = pictures

    def __call__(self, record: Record) -> NDArray[np.uint8]:
        picture = self.pictures[int(record.id)]
        if picture is None:
            raise BrokenImageError("cut short")
        return picture

    def manifest(self, groups: list[str] | None = None) -> Manifest:
        records = tuple(
            Record(str(row), None, row % 2, groups[row] if groups else str(row)) for row in range(len(self.pictures))
        )
        return Manifest("pictures", ("a", "b"), records, self)


def found(pictures: list[NDArray[np.uint8] | None], groups: list[str] | None = None) -> list[tuple[int, int]]:
    result = find_near_duplicates(Pictures(pictures).manifest(groups))
    return sorted((pair.first, pair.second) for pair in result.pairs)


@pytest.mark.parametrize("orientation", range(8))
def test_the_hash_of_a_turned_image_comes_from_the_same_transform(orientation):
    small = np.stack([small_version(skin(seed)) for seed in range(3)])
    turned = perceptual_hashes(np.ascontiguousarray(orient(small, orientation)))[0]
    different_bits = np.bitwise_count(perceptual_hashes(small)[orientation] ^ turned).sum(axis=1)
    assert (different_bits <= 1).all()  # a coefficient of rounding size may fall on either side of zero


def test_neighbours_are_those_of_the_naive_search():
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**63, (8, 150, 3)).astype(np.uint64)
    hashes[3, 5] = hashes[0, 120] ^ np.uint64(0b111)  # nine bits apart, in orientation 3
    hashes[6, 70] = hashes[0, 71]
    groups = np.arange(150) // 2  # 70 and 71 share a group
    expected = []
    for first in range(150):
        for second in range(first + 1, 150):
            distances = [
                sum(int(a ^ b).bit_count() for a, b in zip(hashes[turn, first], hashes[0, second], strict=True))
                for turn in range(8)
            ]
            if min(distances) <= 70 and groups[first] != groups[second]:
                expected.append((first, second, min(distances), int(np.argmin(distances))))
    assert (5, 120, 9, 3) in expected
    assert [tuple(row) for row in hash_neighbours(hashes, groups, 70)] == sorted(expected)


def test_phase_correlation_of_the_same_and_of_another_picture():
    small = np.stack([small_version(skin(0)), small_version(skin(0)), small_version(skin(1))])
    same, other = phase_correlation(small, np.array([[0, 1, 0, 0], [0, 2, 0, 0]]))
    assert same == pytest.approx(1, abs=1e-3)
    assert other < 0.35


def resized(image: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))


def saved_anew(image: NDArray[np.uint8], tmp_path: Path) -> NDArray[np.uint8]:
    Image.fromarray(image).save(tmp_path / "x.jpg", quality=70)
    return np.asarray(Image.open(tmp_path / "x.jpg"))


def test_the_same_picture_is_found_in_every_guise(tmp_path):
    picture = skin(0)
    brighter = np.clip(picture * 0.8 + 30, 0, 255).astype(np.uint8)
    guises = {
        "as it is": picture,
        "mirrored": picture[:, ::-1],
        "a quarter turn": np.ascontiguousarray(np.rot90(picture)),
        "half the size": resized(picture, 80, 60),
        "brighter": brighter,
        "saved anew": saved_anew(picture, tmp_path),
        "cropped a little": resized(picture[4:, 5:], 160, 120),
    }
    for name, guise in guises.items():
        assert found([skin(7), picture, skin(8), np.ascontiguousarray(guise)]) == [(1, 3)], name


def test_spots_on_other_skin_are_not_taken_for_duplicates():
    assert found([skin(seed) for seed in range(40)]) == []


def test_pictures_that_only_the_hash_takes_for_one_are_told_apart():
    lighting = np.random.default_rng(9).integers(0, 256, (14, 14, 3), dtype=np.uint8)
    coarse = resized(lighting, 160, 120).astype(float)
    pictures = []
    for seed in range(2):
        texture = gaussian_filter(np.random.default_rng(seed).standard_normal((120, 160, 1)), (1, 1, 0)) * 40
        pictures.append(np.clip(0.7 * coarse + 38 + texture, 0, 255).astype(np.uint8))
    small = np.stack([small_version(picture) for picture in pictures])
    assert len(hash_neighbours(perceptual_hashes(small), np.arange(2), MAX_DISTANCE)) == 1
    assert found(list(pictures)) == []


def test_duplicates_within_a_group_are_no_news():
    assert found([skin(0), skin(0), skin(1)], ["a", "a", "b"]) == []


def test_broken_and_flat_images_are_set_aside():
    grey = np.full((50, 50, 3), 128, dtype=np.uint8)
    result = find_near_duplicates(Pictures([skin(0), None, grey, grey, skin(0)]).manifest())
    assert [(pair.first, pair.second) for pair in result.pairs] == [(0, 4)]
    assert result.broken == {"1": "cut short"}
    assert result.flat == ["2", "3"]


@pytest.mark.parametrize("pictures", [[], [skin(0)], [None]])
def test_too_few_images_have_no_pairs(pictures):
    assert found(pictures) == []


def test_the_most_similar_pair_comes_first(tmp_path):
    pictures = [skin(0), saved_anew(skin(0), tmp_path), skin(1), skin(1)]
    result = find_near_duplicates(Pictures(list(pictures)).manifest())
    assert [(pair.first, pair.second) for pair in result.pairs] == [(2, 3), (0, 1)]
    assert result.pairs[0].similarity == pytest.approx(1, abs=1e-3)
    assert result.pairs[0].distance == 0


def test_every_image_advances_the_progress_bar():
    steps: list[None] = []
    find_near_duplicates(Pictures([skin(0), None, skin(1)]).manifest(), on_step=lambda: steps.append(None))
    assert len(steps) == 3
