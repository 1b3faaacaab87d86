"""The command ``predict``: images in, a table, JSON or CSV out."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from tdumpra.data.images.masks import find_masks, without_masks
from tdumpra.data.sources.files import is_image
from tdumpra.errors import InputFileError
from tdumpra.runtime import ExportedPredictor
from tdumpra.runtime.exported import is_exported, read_exported
from tdumpra.runtime.prediction import Prediction
from tdumpra.screen import csv_text, plain, print_json, progress, say
from tdumpra.values import check_choice

if TYPE_CHECKING:
    from tdumpra.networks.predict import Predictor

MODEL = "model.safetensors"


def predict_command(
    model: Path,
    images: list[Path],
    *,
    masks: Path | None,
    as_json: bool,
    as_csv: bool,
    batch_size: int | None,
    engine: str = "auto",
    **options: Any,
) -> None:
    """Predict images and print the results; fails only if none could be predicted."""
    if as_json and as_csv:
        raise ValueError("--json and --csv print in two formats: choose one")
    paths = without_masks(list(expand(images)), masks)
    if not paths:
        raise InputFileError(f"{', '.join(map(str, images))} holds no image")
    outlines = find_masks(masks, paths)
    predictor = load_any(model, engine, **options)
    names = predictor.class_names
    documents, broken = [], 0
    with progress("predicting", len(paths), show=not (as_csv and sys.stdout.isatty())) as step:
        if as_csv:
            _print_line(["path", "label", "classifier", "gate", "opened", *(f"p_{name}" for name in names), "error"])
        for each in predictor.predict(paths, batch_size=batch_size, masks=outlines):
            document = describe(each, names)
            broken += each.error is not None
            if as_csv:  # each line as it is known, and nothing is kept
                _print_line(_csv_row(document, names))
            else:
                documents.append(document)
            step()
    if as_json:
        print_json(documents)
    elif not as_csv:
        _show(documents, predictor)
    if broken == len(paths):
        raise InputFileError(f"none of {len(paths)} images could be predicted; {document['path']}: {document['error']}")


def describe(prediction: Prediction, names: Sequence[str]) -> dict[str, Any]:
    """Return a prediction in plain values, classes by their names.

    ``classifier`` is the label before the gate. ``gate`` is ``moved`` where it changed the label, ``opened`` where it
    opened and the label stayed, else ``shut``.
    """
    if prediction.error is not None:
        own, gate = "", ""
    else:
        own = prediction.label if prediction.signals is None else names[int(prediction.signals["label_cls"])]
        gate = "moved" if own != prediction.label else "opened" if prediction.opened else "shut"
    signals = None
    if prediction.signals is not None:
        labels = {key: names[int(prediction.signals[key])] for key in ("label_cls", "label_sim")}
        signals = {**prediction.signals, **labels}
    return {
        "path": prediction.path,
        "label": prediction.label,
        "classifier": own,
        "gate": gate,
        "opened": prediction.opened,
        "probabilities": prediction.probabilities,
        "signals": signals,
        "error": prediction.error,
    }


def load_predictor(model: Path, **options: Any) -> Predictor:
    """Load a model file, or the model in the folder of a run."""
    from tdumpra.networks.predict import Predictor  # loads torch, which an exported model does without

    return Predictor.load(model_file(model), **options)


def load_any(model: Path, engine: str, **options: Any) -> Predictor | ExportedPredictor:
    """Load a model file for torch; for another engine the exported file that was named, or that lies beside it."""
    check_choice(engine, "--engine", ("auto", "torch", "onnx", "openvino"))
    if not is_exported(model):
        if engine in ("auto", "torch"):
            return load_predictor(model, **options)
        path = _export_of(model_file(model), engine)
    elif engine == "torch":
        raise ValueError(f"{model} is an exported graph, which torch does not run: name the model file")
    else:
        path = model
    if options["device"] not in (None, "cpu"):
        raise ValueError(f"an exported model computes on the CPU, not on {options['device']!r}: leave --device out")
    if options["precision"] not in (None, "float32"):
        raise ValueError(f"an exported model computes in its own precision, not in {options['precision']!r}")
    return ExportedPredictor.load(path, engine=engine, mode=options["mode"])


def _export_of(model: Path, engine: str) -> Path:
    """Return the export of this very model that lies beside it."""
    from tdumpra.artifacts import read_seal

    suffixes = (".onnx",) if engine == "onnx" else (".xml", ".onnx")  # OpenVINO reads both
    path = next((model.with_suffix(each) for each in suffixes if model.with_suffix(each).is_file()), None)
    if path is None:
        wanted = model.with_suffix(suffixes[0])
        raise InputFileError(f"{wanted} does not exist: run  tdumpra export {model} --to {engine}  first")
    description = read_exported(path)[0].description
    if description.model != read_seal(model, kind="model"):
        raise InputFileError(f"{path} was exported from another model than {model}: run  tdumpra export {model}  again")
    if description.precision == "int8":
        raise InputFileError(f"{path} is quantised to int8 and so another model than {model}: name it in its place")
    return path


def model_file(path: Path) -> Path:
    """Return the file itself, or the model in the folder of a run; say where the model is if it is nearby."""
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
    if own.parent.is_dir() and own == path:
        raise InputFileError(f"{path} does not exist")
    if own.parent.is_dir():
        from tdumpra.runs.config import read_config

        settings = own.parent / "config.toml"
        if settings.is_file() and read_config(settings).outputs:
            raise InputFileError(
                f"{own.parent} was made from saved outputs and has no network to look at images with: hand its own "
                "model's probabilities and embeddings to DualPathClassifier"
            )
        raise InputFileError(f"{own.parent} holds no {own.name}: run  tdumpra run  to its end")
    raise InputFileError(f"{own.parent} does not exist")


def expand(images: Iterable[Path]) -> Iterator[Path]:
    """Yield files as they are, folders as the images below them in the order of their names."""
    for path in images:
        if path.is_dir():
            yield from sorted(each for each in path.rglob("*") if is_image(each))
        else:
            yield path


def _csv_row(document: dict[str, Any], names: Sequence[str]) -> list[Any]:
    p = [document["probabilities"].get(name, "") for name in names]
    opened = "" if document["error"] else str(document["opened"]).lower()
    words = (document[key] for key in ("label", "classifier", "gate"))
    return [document["path"], *words, opened, *p, document["error"] or ""]


def _print_line(values: list[Any]) -> None:
    typer.echo(csv_text([values]), nl=False)


def _show(documents: list[dict[str, Any]], predictor: Predictor | ExportedPredictor) -> None:
    console = Console()
    table = Table("image", "label", "probability", "classifier", "gate")
    for each in documents:
        name, label, own = (plain(each[key]) for key in ("path", "label", "classifier"))
        if each["error"] is not None:
            table.add_row(name, "", "", "", f"[red]{plain(each['error'])}[/]")
            continue
        gate = f"moved: {own} → {label}" if each["gate"] == "moved" else each["gate"]
        table.add_row(name, label, f"{each['probabilities'][each['label']]:.3f}", own, gate)
    console.print(table)
    if predictor.has_two_networks:
        say(f"the second network looked at {predictor.rows_matched} of {predictor.rows_seen} images", console)
