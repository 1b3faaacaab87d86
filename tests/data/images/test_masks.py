"""Masks laid out in the ways that people lay them out, and those that could be anybody's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdumpra.data.images.masks import find_masks, without_masks
from tdumpra.errors import InputFileError


def test_masks_by_the_images_names(tmp_path):
    paths = [Path(f"images/{name}.png") for name in "abcd"]
    (tmp_path / "some").mkdir()
    for path, end in zip(paths, ("", "_segmentation", "_mask"), strict=False):
        (tmp_path / "some" / f"{path.stem}{end}.png").touch()
    found = find_masks(tmp_path / "some", paths)
    assert [mask and mask.name for mask in found[:3]] == [
        f"{paths[0].stem}.png", f"{paths[1].stem}_segmentation.png", f"{paths[2].stem}_mask.png",
    ]  # fmt: skip
    assert found[3] is None
    assert find_masks(None, paths) == [None] * 4
    below = tmp_path / "below"
    for folder in ("A", "B"):
        (below / folder).mkdir(parents=True)
        (below / folder / "1.png").touch()
    assert find_masks(below, [Path("x/A/1.png"), Path("x/B/1.png")]) == [below / "A" / "1.png", below / "B" / "1.png"]
    with pytest.raises(InputFileError, match="could both be the mask of"):
        find_masks(below, [Path("x/C/1.png")])
    with pytest.raises(InputFileError, match=r"could be the mask of .* or of"):
        find_masks(below / "A", [Path("x/A/1.png"), Path("x/B/1.png")])


def test_masks_beside_their_images_are_neither_images_nor_their_own_masks(tmp_path):
    names = ("a.png", "a_mask.png", "b.png", "b_segmentation.png", "sub/c.png")
    (tmp_path / "sub").mkdir()
    for name in names:
        (tmp_path / name).touch()
    paths = without_masks(sorted(tmp_path.rglob("*.png")), tmp_path)
    assert paths == [tmp_path / name for name in ("a.png", "b.png", "sub/c.png")]
    found = find_masks(tmp_path, paths)
    assert found == [tmp_path / "a_mask.png", tmp_path / "b_segmentation.png", None]
    apart = without_masks(sorted(tmp_path.rglob("*.png")), tmp_path / "sub")
    assert tmp_path / "sub" / "c.png" not in apart
    with pytest.raises(InputFileError, match="no mask"):
        find_masks(tmp_path / "sub", [tmp_path / "sub" / "c.png"])
    (tmp_path / "sub" / "c.jpg").touch()
    with pytest.raises(InputFileError, match="is an image here"):
        find_masks(tmp_path, [tmp_path / "sub" / "c.png", tmp_path / "sub" / "c.jpg"])
