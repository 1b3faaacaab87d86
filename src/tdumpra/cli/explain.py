"""The command ``explain``: an evidence page for each image."""

from __future__ import annotations

import filecmp
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
import typer
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from tdumpra.artifacts import jsonable, make_folder, write_bytes
from tdumpra.cli.predict import expand, load_predictor
from tdumpra.data.images.decode import decode_file
from tdumpra.data.images.framing import EvalTransform
from tdumpra.data.images.masks import find_masks, without_masks
from tdumpra.data.sources.files import IMAGE_SUFFIXES, is_file, is_image
from tdumpra.errors import BrokenImageError, InputFileError
from tdumpra.method.bank import Exemplar
from tdumpra.method.evidence import Evidence, Match
from tdumpra.networks.predict import Image, Prediction, Predictor
from tdumpra.report import kit
from tdumpra.report.evidence_page import Heatmap, evidence_page
from tdumpra.runs.model import thumbnail
from tdumpra.screen import printable

FOLDER = Path("evidence")

_BATCH = 16
_SAME = 3.0  # grey levels, on average, by which the same picture may differ when it was saved or shrunk anew
_FLAT = 2.0  # grey levels of deviation: a picture of one colour is like any other
_SEEN = (
    "This image is itself one of the training images that stand for a prototype: the model has seen it, and looks "
    "surer than it would on a new case."
)


class Explained(NamedTuple):
    """One image: its prediction with the evidence, and where its page lies."""

    prediction: Prediction
    page: Path | None  # None where the image could not be read


def explain_command(
    model: Path,
    images: list[Path],
    *,
    out: Path | None,
    group: str | None,
    sources: Path | None,
    masks: Path | None,
    saliency: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the pages and print each case's sentence; refused only if not a single image can be read."""
    if sources is not None and not sources.is_dir():
        raise InputFileError(f"--images names the folder of the training images, and {sources} is no folder")
    paths = without_masks(list(expand(images)), masks)
    if not paths:
        raise InputFileError(f"{', '.join(map(str, images))} holds no image")
    cases = [Image(path, mask) for path, mask in zip(paths, find_masks(masks, paths), strict=True)]
    predictor = load_predictor(model, **options)
    written = []
    for each in explain_images(
        predictor, cases, out or FOLDER, group=group, sources=sources, heatmap_of=_heatmap if saliency else None
    ):
        written.append(each)
        if not as_json:
            _show(each)
    if as_json:
        typer.echo(json.dumps([_document(each) for each in written], indent=2))
    if all(each.page is None for each in written):
        first = written[0].prediction
        raise InputFileError(f"none of {len(paths)} images could be read; {first.path}: {first.error}")


def explain_images(
    predictor: Predictor,
    images: list[Image],
    folder: Path,
    *,
    group: str | None = None,
    sources: Path | None = None,
    heatmap_of: Callable[[Predictor, Prediction, Match], Heatmap] | None = None,
) -> Iterator[Explained]:
    """Write a page for each image as it is decided.

    Args:
        predictor: decides.
        images: files, with their masks if the model wants them.
        folder: of the pages.
        group: lesion or patient that all the images show.
        sources: folder with the original training images, for those of which the model holds no picture.
        heatmap_of: draws the saliency of an image's nearest prototype.
    """
    make_folder(folder)
    stems = Counter(image.path.stem for image in images)
    names = [image.path.stem if stems[image.path.stem] == 1 else str(image.path) for image in images]
    training = _TrainingImages.of(predictor, sources)
    for image, name, prediction, note in _predictions(predictor, images, names, training, group):
        if prediction.evidence is None:
            yield Explained(prediction, None)
            continue
        evidence = prediction.evidence
        html = evidence_page(
            evidence,
            case_id=printable(name),
            image=decode_file(image.path),
            pictures={**training.pictures(evidence), **predictor.pictures(evidence)},
            missing_reason=_why_missing(predictor, sources),
            saliency=None if heatmap_of is None else heatmap_of(predictor, prediction, evidence.matches[0]),
            notes=[] if note is None else [note],
        )
        page = folder / kit.page_name(name)
        write_bytes(page, html.encode())
        yield Explained(prediction, page)


def _predictions(
    predictor: Predictor, images: list[Image], names: list[str], training: _TrainingImages, group: str | None
) -> Iterator[tuple[Image, str, Prediction, str | None]]:
    """Each image with its prediction and, where the model may have seen it, a note; a batch at a time."""
    for start in range(0, len(images), _BATCH):
        some = images[start : start + _BATCH]
        seen = [training.find(image) for image in some]
        groups = [group if group is not None or own is None else own.group for own in seen]
        notes = [training.doubt(image) if own is None else _SEEN for image, own in zip(some, seen, strict=True)]
        paths, masks = zip(*some, strict=True)
        predictions = predictor.predict(paths, batch_size=_BATCH, evidence=True, groups=groups, masks=masks)
        yield from zip(some, names[start : start + _BATCH], predictions, notes, strict=True)


@dataclass(frozen=True, slots=True)
class _TrainingImages:
    """The exemplars of a bank: which of them an image is, told by content, since names are given twice."""

    exemplars: dict[str, Exemplar]
    transform: EvalTransform
    thumbnails: Mapping[str, Tensor]
    originals: dict[str, Path]

    @classmethod
    def of(cls, predictor: Predictor, sources: Path | None) -> _TrainingImages:
        model = predictor.model
        exemplars = {each.id: each for c in model.decision.bank.exemplars for k in c for each in k}
        originals = {} if sources is None else find_originals(sources, exemplars)
        return cls(exemplars, model.classifier.transform, model.thumbnails, originals)

    def find(self, image: Image) -> Exemplar | None:
        """The exemplar that ``image`` shows: a file of the same bytes, or the same picture once shrunk."""
        if not is_file(image.path):
            return None
        for name, original in self.originals.items():
            if _same_bytes(image.path, original):
                return self.exemplars[name]
        comparable = self._comparable(image)
        if not comparable:
            return None
        try:
            picture = thumbnail(self.transform.read(*image)).short()
        except BrokenImageError:
            return None
        same = (name for name, held in comparable.items() if _alike(picture, held) and name in self.exemplars)
        return next((self.exemplars[name] for name in same), None)

    def doubt(self, image: Image) -> str | None:
        """A note on an image that has an exemplar's name, where there is no picture to compare it with."""
        shown = {*self._comparable(image), *self.originals}
        name = next((each for each in self.exemplars if each not in shown and _bare(each) == image.path.stem), None)
        if name is None:
            return None
        return (
            f"One of the training images that stand for a prototype has the same name ({printable(name)}), and there "
            "is no picture to compare the two by. If this is that image, the model has seen it: name its lesion or "
            "patient with --group, or the folder of the originals with --images."
        )

    def _comparable(self, image: Image) -> Mapping[str, Tensor]:
        """None where the pictures show lesions cut out, and nobody said where this image's lesion is."""
        cut_out = self.transform.framing.lesion_margin is not None
        return {} if cut_out and image.mask is None else self.thumbnails

    def pictures(self, evidence: Evidence) -> dict[str, np.ndarray]:
        """The originals behind ``evidence``, as far as they can be read."""
        found = {}
        for name in self.originals.keys() & set(evidence.exemplar_ids):
            try:
                found[name] = decode_file(self.originals[name])
            except BrokenImageError:  # the page names it among the missing
                continue
        return found


def find_originals(root: Path, ids: Iterable[str]) -> dict[str, Path]:
    """The files of images by id: where the id says, with or without a suffix; else the only file of that name."""
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
    """An id without folders and without the suffix of an image; ``a.b`` has none."""
    last = PurePosixPath(name.replace("\\", "/"))
    return last.stem if last.suffix.lower() in IMAGE_SUFFIXES else last.name


def _same_bytes(one: Path, other: Path) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:  # what may not be read is the decoder's to report
        return False


def _alike(picture: Tensor, held: Tensor) -> bool:
    if picture.shape != held.shape or float(held.float().std()) < _FLAT:
        return picture.shape == held.shape and torch.equal(picture, held.short())
    return float((picture - held.short()).abs().float().mean()) <= _SAME


def _heatmap(predictor: Predictor, prediction: Prediction, match: Match) -> Heatmap:
    from tdumpra.networks.saliency import occlusion_saliency
    from tdumpra.report.heatmap import heatmap

    assert prediction.pixels is not None  # as it has evidence
    return heatmap(occlusion_saliency(predictor, prediction.pixels, match), match)


def _why_missing(predictor: Predictor, sources: Path | None) -> str:
    held = "holds no picture of them" if predictor.model.thumbnails else "was saved without pictures (for privacy)"
    if sources is None:
        return f"the model {held}, and --images can name the folder of the originals"
    return f"the model {held}, and {sources} has no readable image of that name, or several"


def _show(each: Explained) -> None:
    console = Console(soft_wrap=True)
    prediction = each.prediction
    if each.page is None or prediction.evidence is None:
        console.print(f"[red]{escape(printable(prediction.path))}[/]: {escape(prediction.error or 'no evidence')}")
        return
    console.print(f"[bold]{escape(printable(prediction.path))}[/]: {escape(prediction.evidence.sentence)}")
    console.print(f"  {escape(str(each.page))}", highlight=False)


def _document(each: Explained) -> dict[str, Any]:
    prediction = each.prediction
    return {
        "path": prediction.path,
        "page": None if each.page is None else str(each.page),
        "label": prediction.label,
        "opened": prediction.opened,
        "error": prediction.error,
        "evidence": None if prediction.evidence is None else jsonable(asdict(prediction.evidence)),
    }
