"""The command ``explain``: an evidence page for each image."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape

from tdumpra.artifacts import jsonable, make_folder, write_bytes
from tdumpra.commands_predict import expand, load_predictor
from tdumpra.data.decode import decode_file
from tdumpra.data.sources.files import is_image, printable
from tdumpra.errors import BrokenImageError, InputFileError
from tdumpra.evidence import Evidence, Match
from tdumpra.pages import kit
from tdumpra.pages.evidence_page import Heatmap, evidence_page
from tdumpra.predict import Prediction, Predictor

FOLDER = Path("evidence")


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
    saliency: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the pages and print each case's sentence; refused only if not a single image can be read."""
    if sources is not None and not sources.is_dir():
        raise InputFileError(f"--images names the folder of the training images, and {sources} is no folder")
    paths = list(expand(images))
    if not paths:
        raise InputFileError(f"{', '.join(map(str, images))} holds no image")
    predictor = load_predictor(model, **options)
    written = []
    for each in explain_images(
        predictor, paths, out or FOLDER, group=group, sources=sources, heatmap_of=_heatmap if saliency else None
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
    paths: list[Path],
    folder: Path,
    *,
    group: str | None = None,
    sources: Path | None = None,
    heatmap_of: Callable[[Predictor, Path, Match], Heatmap] | None = None,
) -> Iterator[Explained]:
    """Write a page for each image as it is decided.

    Args:
        predictor: decides.
        paths: images.
        folder: of the pages.
        group: lesion or patient that all the images show.
        sources: folder with the original training images, for those of which the model holds no picture.
        heatmap_of: draws the saliency of an image's nearest prototype.
    """
    make_folder(folder)
    stems = Counter(path.stem for path in paths)
    names = [path.stem if stems[path.stem] == 1 else str(path) for path in paths]
    trained = _groups_of_exemplars(predictor)
    groups = [group if group is not None else trained.get(path.stem) for path in paths]
    originals = None if sources is None else {each.stem: each for each in sources.rglob("*") if is_image(each)}
    predictions = predictor.predict(paths, batch_size=16, evidence=True, groups=groups)
    for path, name, prediction in zip(paths, names, predictions, strict=True):
        if prediction.evidence is None:
            yield Explained(prediction, None)
            continue
        evidence, notes = prediction.evidence, []
        if path.stem in trained:
            notes.append(
                "This image is itself one of the training images that stand for a prototype: the model has seen it, "
                "and looks surer than it would on a new case."
            )
        html = evidence_page(
            evidence,
            case_id=printable(name),
            image=decode_file(path),
            pictures={**_originals(evidence, originals or {}), **predictor.pictures(evidence)},
            missing_reason=_why_missing(predictor, sources),
            saliency=None if heatmap_of is None else heatmap_of(predictor, path, evidence.matches[0]),
            notes=notes,
        )
        page = folder / kit.page_name(name)
        write_bytes(page, html.encode())
        yield Explained(prediction, page)


def _heatmap(predictor: Predictor, path: Path, match: Match) -> Heatmap:
    from tdumpra.pages.heatmap import heatmap
    from tdumpra.saliency import occlusion_saliency

    return heatmap(occlusion_saliency(predictor, path, match), match)


def _groups_of_exemplars(predictor: Predictor) -> dict[str, str]:
    bank = predictor.model.decision.bank
    return {exemplar.id: exemplar.group for c in bank.exemplars for k in c for exemplar in k}


def _originals(evidence: Evidence, files: dict[str, Path]) -> dict[str, np.ndarray]:
    found = {}
    for name in files.keys() & set(evidence.exemplar_ids):
        try:
            found[name] = decode_file(files[name])
        except BrokenImageError:  # the page names it among the missing
            continue
    return found


def _why_missing(predictor: Predictor, sources: Path | None) -> str:
    held = "holds no picture of them" if predictor.model.thumbnails else "was saved without pictures (for privacy)"
    if sources is None:
        return f"the model {held}, and --images can name the folder of the originals"
    return f"the model {held}, and {sources} has no readable image of that name"


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
