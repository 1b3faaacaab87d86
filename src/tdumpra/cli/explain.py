"""The command ``explain``: an evidence page for each image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from tdumpra.cli.predict import Failures, expand, load_predictor
from tdumpra.data.images.masks import find_masks, without_masks
from tdumpra.data.images.new import Image, Pixels
from tdumpra.errors import InputFileError
from tdumpra.method.evidence import Match
from tdumpra.networks.predict import Predictor
from tdumpra.networks.training_images import TrainingImages
from tdumpra.report import kit
from tdumpra.report.evidence_page import Heatmap, evidence_page
from tdumpra.runtime.prediction import Prediction
from tdumpra.screen import print_json_list, printable, say
from tdumpra.writing import make_folder, write_bytes

FOLDER = Path("evidence")

_BATCH = 16  # images at once: each keeps its picture until its page is written
_SEEN = (
    "This image is itself one of the training images that stand for a prototype: the model has seen it, and looks "
    "surer than it would on a new case."
)


class Explained(NamedTuple):
    """One image: its prediction with the evidence, and where its page lies."""

    prediction: Prediction
    page: Path | None  # None where the prediction has an error


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
    """Write the pages and print each case's sentence; fails only if there is no page for any image."""
    if sources is not None and not sources.is_dir():
        raise InputFileError(f"--training-images names the folder of the training images, and {sources} is no folder")
    others: list[Path] = []
    paths = without_masks(list(expand(images, others)), masks)
    if not paths:
        raise InputFileError(f"{', '.join(map(str, images))} holds no image")
    cases = [Image(path, mask) for path, mask in zip(paths, find_masks(masks, paths), strict=True)]
    predictor = load_predictor(model, **options)
    failures = Failures(len(paths), "explained")

    def explained() -> Iterator[Explained]:
        heatmap_of = _heatmap if saliency else None
        for each in explain_images(
            predictor, cases, out or FOLDER, group=group, sources=sources, heatmap_of=heatmap_of
        ):
            failures.note(each.prediction)
            yield each

    if as_json:
        print_json_list(_document(each) for each in explained())
    else:
        for each in explained():
            _show(each)
    failures.tell(others)


def explain_images(
    predictor: Predictor,
    images: list[Image],
    folder: Path,
    *,
    group: str | None = None,
    sources: Path | None = None,
    heatmap_of: Callable[[Predictor, Pixels, Match], Heatmap] | None = None,
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
    training = TrainingImages.of(predictor, sources)
    paths, masks = [each.path for each in images], [each.mask for each in images]
    predictions = predictor.predict(
        paths, batch_size=_BATCH, evidence=True, groups=[group] * len(paths), masks=masks, recognise=training.find
    )
    for image, name, prediction in zip(images, names, predictions, strict=True):
        evidence, pixels = prediction.evidence, prediction.pixels
        if evidence is None or pixels is None:
            yield Explained(prediction, None)
            continue
        note = training.doubt(image) if prediction.exemplar is None else _SEEN
        html = evidence_page(
            evidence,
            case_id=printable(name),
            image=prediction.picture,
            pictures={**training.pictures(evidence), **predictor.pictures(evidence)},
            missing_reason=_why_missing(predictor, sources),
            saliency=None if heatmap_of is None else heatmap_of(predictor, pixels, evidence.matches[0]),
            notes=[] if note is None else [note],
        )
        page = folder / kit.page_name(name)
        write_bytes(page, html.encode())
        yield Explained(prediction, page)


def _heatmap(predictor: Predictor, pixels: Pixels, match: Match) -> Heatmap:
    from tdumpra.networks.saliency import occlusion_saliency
    from tdumpra.report.evidence_page import heatmap

    return heatmap(occlusion_saliency(predictor, pixels, match), match)


def _why_missing(predictor: Predictor, sources: Path | None) -> str:
    held = "holds no picture of them" if predictor.model.thumbnails else "was saved without pictures (for privacy)"
    if sources is None:
        return f"the model {held}, and --training-images can name the folder of the originals"
    return f"the model {held}, and {sources} has no readable image of that name, or several"


def _show(each: Explained) -> None:
    prediction = each.prediction
    if each.page is None or prediction.evidence is None:
        say(f"{prediction.path}: {prediction.error or 'no evidence'}", style="red")
        return
    say(f"{prediction.path}: {prediction.evidence.sentence}")
    say(f"  {each.page}")


def _document(each: Explained) -> dict[str, Any]:
    prediction = each.prediction
    return {
        "path": prediction.path,
        "page": None if each.page is None else str(each.page),
        "label": prediction.label,
        "opened": prediction.opened,
        "error": prediction.error,
        "evidence": None if prediction.evidence is None else asdict(prediction.evidence),
    }
