"""Find the masks of new images by their names, for ``--masks``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tdumpra.data.sources.files import is_file, is_image
from tdumpra.errors import InputFileError
from tdumpra.screen import printable

_MASK_ENDS = ("_segmentation", "_mask", "")


def find_masks(folder: Path | None, images: list[Path]) -> list[Path | None]:
    """Return each image's mask below ``folder``: of the same name, or that name with ``_segmentation`` or ``_mask``.

    Where several have that name, take the one whose folder is named like the image's.
    """
    if folder is None:
        return [None] * len(images)
    if not folder.is_dir():
        raise InputFileError(f"--masks names the folder of the lesions' masks, and {folder} is no folder")
    held = defaultdict(list)
    for path in sorted(folder.rglob("*")):
        if is_image(path) and is_file(path):
            held[path.stem].append(path)
    found = [_mask_of(image, held) for image in images]
    if not any(found):
        names = ", ".join(f"{printable(images[0].stem)}{end}.png" for end in _MASK_ENDS)
        raise InputFileError(f"{folder} holds no mask of any of the {len(images)} images; a mask is named like {names}")
    whose: dict[Path, Path] = {}
    own = {image.resolve() for image in images}
    for image, mask in zip(images, found, strict=True):
        if mask is None:
            continue
        if mask.resolve() in own:
            raise InputFileError(f"{mask} is an image here, and would be the mask of {image}: put masks elsewhere")
        if whose.setdefault(mask, image) != image:
            raise InputFileError(f"{mask} could be the mask of {whose[mask]} or of {image}: name masks like the images")
    return found


def _mask_of(image: Path, held: Mapping[str, list[Path]]) -> Path | None:
    for end in _MASK_ENDS:
        named = [path for path in held.get(image.stem + end, ()) if path.resolve() != image.resolve()]
        alike = [path for path in named if path.parent.name == image.parent.name]
        some = alike if len(named) > 1 and alike else named
        if len(some) > 1:
            raise InputFileError(f"{some[0]} and {some[1]} could both be the mask of {image}")
        if some:
            return some[0]
    return None


def without_masks(paths: list[Path], masks: Path | None) -> list[Path]:
    """Return the images among ``paths`` if a folder also holds their masks."""
    if masks is None:
        return paths
    names = {path.stem for path in paths}
    masks_here = {name + end for name in names for end in _MASK_ENDS if end}
    own = [path for path in paths if path.stem not in masks_here]
    apart = [path for path in own if not path.resolve().is_relative_to(masks.resolve())]
    return apart or own
