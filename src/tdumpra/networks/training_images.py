"""Training images that stand for the prototypes of a bank: their small pictures, and which of them an image is."""

from __future__ import annotations

import filecmp
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from PIL import Image as Picture
from torch import Tensor

from tdumpra.data.images.decode import decode_file
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.new import Image, Pixels
from tdumpra.data.sources.files import IMAGE_SUFFIXES, is_file, is_image
from tdumpra.errors import BrokenImageError
from tdumpra.method.bank import Exemplar
from tdumpra.method.evidence import Evidence
from tdumpra.networks.predict import Predictor
from tdumpra.screen import printable

THUMBNAIL_SIZE = 96  # pixels of the longer side: enough to recognise a lesion, too little to measure one

_SAME = 3.0  # grey levels, on average, by which the same picture may differ when it was saved or shrunk anew
_FLAT = 2.0  # grey levels of deviation: a picture of one colour is like any other


def thumbnail(pixels: np.ndarray) -> Tensor:
    """Return a small picture, no larger than it was."""
    image = Picture.fromarray(pixels)
    image.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE), Picture.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image))


@dataclass(frozen=True, slots=True)
class TrainingImages:
    """The exemplars of a bank. Which of them an image is, is told by content: names are given twice."""

    exemplars: dict[str, Exemplar]
    framing: Framing  # what the thumbnails were framed by: the classifier's
    thumbnails: Mapping[str, Tensor]
    originals: dict[str, Path]

    @classmethod
    def of(cls, predictor: Predictor, sources: Path | None) -> TrainingImages:
        """Collect them from a model, and from the folder of the original images if there is one."""
        model = predictor.model
        exemplars = {each.id: each for c in model.decision.bank.exemplars for k in c for each in k}
        originals = {} if sources is None else find_originals(sources, exemplars)
        return cls(exemplars, model.classifier.transform.framing, model.thumbnails, originals)

    def find(self, image: Image, pixels: Pixels) -> Exemplar | None:
        """Return the exemplar that ``image`` shows: a file of the same bytes, or the same picture once shrunk.

        ``pixels`` are framed for the classifier.
        """
        for name, original in self.originals.items():
            if _same_bytes(image.path, original):
                return self.exemplars[name]
        picture, comparable = thumbnail(pixels).short(), self._comparable(image)
        same = (name for name, held in comparable.items() if alike(picture, held) and name in self.exemplars)
        return next((self.exemplars[name] for name in same), None)

    def doubt(self, image: Image) -> str | None:
        """Return a note on an image that has an exemplar's name, where there is no picture to compare it with."""
        shown = {*self._comparable(image), *self.originals}
        name = next((each for each in self.exemplars if each not in shown and _bare(each) == image.path.stem), None)
        if name is None:
            return None
        return (
            f"One of the training images that stand for a prototype has the same name ({printable(name)}), and there "
            "is no picture to compare the two by. If this is that image, the model has seen it: name its lesion or "
            "patient with --group, or the folder of the originals with --training-images."
        )

    def _comparable(self, image: Image) -> Mapping[str, Tensor]:
        """Return the thumbnails; none where they show lesions cut out, and this image has no mask."""
        cut_out = self.framing.lesion_margin is not None
        return {} if cut_out and image.mask is None else self.thumbnails

    def pictures(self, evidence: Evidence) -> dict[str, np.ndarray]:
        """Return the originals behind ``evidence``, as far as they can be read."""
        found = {}
        for name in self.originals.keys() & set(evidence.exemplar_ids):
            try:
                found[name] = decode_file(self.originals[name])
            except BrokenImageError:  # the page names it among the missing
                continue
        return found


def find_originals(root: Path, ids: Iterable[str]) -> dict[str, Path]:
    """Return the file of each id: where the id says, with or without a suffix; else the only file of that name."""
    by_name: dict[str, list[Path]] = defaultdict(list)
    for path in root.rglob("*"):
        if is_image(path) and is_file(path):
            by_name[path.stem].append(path)
    files = {name: _placed(root, name) or by_name.get(_bare(name), []) for name in ids}
    return {name: found[0] for name, found in files.items() if len(found) == 1}


def _placed(root: Path, name: str) -> list[Path]:
    place = PurePosixPath(name.replace("\\", "/"))
    if place.is_absolute() or ".." in place.parts:  # a model has no say over what is read outside the folder
        return []
    if is_file(exact := root / place) and is_image(exact):
        return [exact]
    low, high = (
        [path for suffix in sorted(IMAGE_SUFFIXES) if is_file(path := root / f"{place}{of(suffix)}")]
        for of in (str.lower, str.upper)
    )
    return low or high


def _bare(name: str) -> str:
    """Return an id without folders and without the suffix of an image; ``a.b`` has none."""
    last = PurePosixPath(name.replace("\\", "/"))
    return last.stem if last.suffix.lower() in IMAGE_SUFFIXES else last.name


def _same_bytes(one: Path, other: Path) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:  # what may not be read is the decoder's to report
        return False


def alike(picture: Tensor, held: Tensor) -> bool:
    """Return whether two thumbnails show the same picture, saved or shrunk anew."""
    if picture.shape != held.shape or float(held.float().std()) < _FLAT:
        return picture.shape == held.shape and torch.equal(picture, held.short())
    return float((picture - held.short()).abs().float().mean()) <= _SAME
