"""The command ``predict``: images in, a table, JSON or CSV out."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tdumpra.artifacts import jsonable
from tdumpra.data.images.masks import find_masks, without_masks
from tdumpra.data.sources.files import is_image
from tdumpra.errors import InputFileError
from tdumpra.networks.predict import Prediction, Predictor
from tdumpra.runs.config import read_config
from tdumpra.screen import printable

MODEL = "model.safetensors"


def predict_command(
    model: Path, images: list[Path], *, masks: Path | None, as_json: bool, as_csv: bool, batch_size: int, **options: Any
) -> None:
    """Predict images and print the results; refused only if not a single image can be read."""
    if as_json and as_csv:
        raise ValueError("--json and --csv print in two formats: choose one")
    paths = without_masks(list(expand(images)), masks)
    if not paths:
        raise InputFileError(f"{', '.join(map(str, images))} holds no image")
    outlines = find_masks(masks, paths)
    predictor = load_predictor(model, **options)
    found: Iterable[Prediction] = predictor.predict(paths, batch_size=batch_size, masks=outlines)
    if not (as_csv and sys.stdout.isatty()):  # lines are progress enough
        found = _watched(found, len(paths))
    if as_csv:  # each line as it is known: what was computed is there even if somebody stops the rest
        typer.echo(_line(["path", "label", "opened", *(f"p_{name}" for name in predictor.model.class_names), "error"]))
        found = _printed(found, predictor.model.class_names)
    predictions = list(found)
    if as_json:
        typer.echo(json.dumps([_document(each) for each in predictions], indent=2))
    elif not as_csv:
        _show(predictions, predictor)
    broken = [each for each in predictions if each.error is not None]
    if len(broken) == len(predictions):
        raise InputFileError(f"none of {len(paths)} images could be read; {broken[0].path}: {broken[0].error}")


def load_predictor(model: Path, **options: Any) -> Predictor:
    """From a model file, or the folder of its run."""
    return Predictor.load(model_file(model), **options)


def model_file(path: Path) -> Path:
    """The file itself, or the model in the folder of a run; says where the model is if it is nearby."""
    own = path if path.suffix == Path(MODEL).suffix or path.is_file() else path / MODEL
    if own.is_file():
        return own
    of_seeds = sorted(own.parent.glob(f"seed-*/{MODEL}"))
    if len(of_seeds) == 1:
        return of_seeds[0]
    if of_seeds:
        raise InputFileError(f"{own.parent} is a run of several seeds: name one, {' or '.join(map(str, of_seeds))}")
    above = own.parent.parent / MODEL
    if re.fullmatch(r"seed-\d+", own.parent.name) and above.is_file():
        raise InputFileError(f"{own.parent} does not exist: a run of one seed lies in its own folder, {above}")
    if own.parent.is_dir():
        settings = own.parent / "config.toml"
        if settings.is_file() and read_config(settings).outputs:
            raise InputFileError(
                f"{own.parent} was made from saved outputs and has no network to look at images with: hand its own "
                "model's probabilities and embeddings to DualPathClassifier"
            )
        raise InputFileError(f"{own.parent} holds no {own.name}: run  tdumpra run  to its end")
    raise InputFileError(f"{own.parent} does not exist")


def expand(images: Iterable[Path]) -> Iterator[Path]:
    """Files as they are, folders as the images below them in the order of their names."""
    for path in images:
        if path.is_dir():
            yield from sorted(each for each in path.rglob("*") if is_image(each))
        else:
            yield path


def _watched(predictions: Iterable[Prediction], n: int) -> Iterator[Prediction]:
    """With a bar, where there is a terminal to show it on. Standard output stays what it is."""
    console = Console(stderr=True)
    columns = (TextColumn("Predicting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, redirect_stdout=False
    ) as bar:
        yield from bar.track(predictions, total=n)


def _printed(predictions: Iterable[Prediction], class_names: tuple[str, ...]) -> Iterator[Prediction]:
    for each in predictions:
        p = [each.probabilities.get(name, "") for name in class_names]
        opened = "" if each.error is not None else str(each.opened).lower()
        typer.echo(_line([printable(each.path), each.label, opened, *p, each.error or ""]))
        yield each


def _document(prediction: Prediction) -> dict[str, Any]:
    return {key: jsonable(value) for key, value in prediction._asdict().items() if key != "pixels"}


def _line(values: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()


def _show(predictions: list[Prediction], predictor: Predictor) -> None:
    console = Console()
    table = Table("image", "label", "probability", "gate")
    for each in predictions:
        name = escape(printable(each.path))
        if each.error is not None:
            table.add_row(name, "", "", f"[red]{escape(each.error)}[/]")
        else:
            moved = "opened" if each.opened else "shut"
            table.add_row(name, escape(each.label), f"{each.probabilities[each.label]:.3f}", moved)
    console.print(table)
    if predictor.model.retrieval is not None:
        console.print(f"the second network looked at {predictor.rows_matched} of {predictor.rows_seen} images")
