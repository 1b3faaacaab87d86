"""The command ``predict``: images in, a table, JSON or CSV out."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import typer
from rich.console import Console
from rich.table import Table

from tdumpra.data.images.masks import find_masks, without_masks
from tdumpra.data.sources.files import is_file, is_image
from tdumpra.errors import InputFileError
from tdumpra.runtime import ExportedPredictor
from tdumpra.runtime.exported import is_exported, read_exported
from tdumpra.runtime.prediction import Prediction
from tdumpra.runtime.sessions import ENGINES
from tdumpra.screen import csv_text, plain, print_json_list, progress, say, show_notes
from tdumpra.values import check_choice

if TYPE_CHECKING:
    from tdumpra.networks.predict import Predictor

MODEL = "model.safetensors"

_MOST_SHOWN = 200  # rows of the table
_MOST_NAMED = 100  # files that are named at the end


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
    """Predict images and print the results as they come; fails only if none could be predicted."""
    if as_json and as_csv:
        raise ValueError("--json and --csv print in two formats: choose one")
    others: list[Path] = []
    paths = without_masks(list(expand(images, others)), masks)
    if not paths:
        raise InputFileError(f"{', '.join(map(str, images))} holds no image")
    outlines = find_masks(masks, paths)
    predictor = load_any(model, engine, **options)
    names, failures = predictor.class_names, Failures(len(paths), "predicted")
    with progress("predicting", len(paths), show=not ((as_csv or as_json) and sys.stdout.isatty())) as step:

        def documents() -> Iterator[dict[str, Any]]:
            for each in predictor.predict(paths, batch_size=batch_size, masks=outlines):
                failures.note(each)
                yield describe(each, names)
                step()

        if as_csv:
            _print_line(["path", "label", "classifier", "gate", "opened", *(f"p_{name}" for name in names), "error"])
            for document in documents():
                _print_line(_csv_row(document, names))
        elif as_json:
            print_json_list(documents())
        else:
            known = documents()
            shown, n_more = list(islice(known, _MOST_SHOWN)), sum(1 for _ in known)
    if not as_csv and not as_json:
        _show(shown, n_more, predictor)
    failures.tell(others)


class Failures:
    """The images without a result, in order, for the end of a command."""

    def __init__(self, total: int, done: str) -> None:
        self._total, self._done, self._found = total, done, list[tuple[str, str]]()

    def note(self, prediction: Prediction) -> None:
        """Remember an image that could not be read or decided."""
        if prediction.error is not None:
            self._found.append((prediction.path, prediction.error))

    def tell(self, others: Sequence[Path] = ()) -> None:
        """Name them, and the files in folders that are no images; it is an error if nothing else was found."""
        if len(self._found) == self._total:
            path, reason = self._found[0]
            raise InputFileError(f"none of {self._total} images could be {self._done}; {path}: {reason}")
        notes = _named([f"{path}: {reason}" for path, reason in self._found], "{} could not be " + self._done)
        notes += _named(list(map(str, others)), "not looked at, as no image: {} in these folders")
        show_notes(notes, Console(stderr=True))


def _named(names: list[str], said: str) -> list[str]:
    if not names:
        return []
    more = len(names) - _MOST_NAMED
    count = said.format(f"{len(names):,} file{'s' if len(names) > 1 else ''}")
    return [f"{count}:", *names[:_MOST_NAMED], *([f"and {more:,} more"] if more > 0 else [])]


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
    exported = is_exported(model)
    runner = check_engine(engine, model if exported else None)
    if not exported and engine in ("auto", "torch"):
        return load_predictor(model, **options)
    path = model if exported else _export_of(model_file(model), engine)
    if options["device"] not in (None, "cpu"):
        raise ValueError(f"an exported model computes on the CPU, not on {options['device']!r}: leave --device out")
    if options["precision"] not in (None, "float32"):
        raise ValueError(f"an exported model computes in its own precision, not in {options['precision']!r}")
    return ExportedPredictor.load(path, engine=runner, mode=options["mode"])


def check_engine(name: str, exported: Path | None) -> Literal["auto", "onnx", "openvino"]:
    """Return what runs an exported file; torch runs none."""
    check_choice(name, "--engine", ("auto", "torch", *ENGINES))
    if name == "torch" and exported is not None:
        raise ValueError(f"torch runs no exported graph ({exported}): name the model file, or choose onnx or openvino")
    return cast('Literal["auto", "onnx", "openvino"]', name)


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
        from tdumpra.runs.config import read_config  # every room's settings, which prediction does without

        settings = own.parent / "config.toml"
        if settings.is_file() and read_config(settings).outputs:
            raise InputFileError(
                f"{own.parent} was made from saved outputs and has no network to look at images with: hand its own "
                "model's probabilities and embeddings to DualPathClassifier"
            )
        raise InputFileError(f"{own.parent} holds no {own.name}: run  tdumpra run  to its end")
    raise InputFileError(f"{own.parent} does not exist")


def expand(images: Iterable[Path], others: list[Path]) -> Iterator[Path]:
    """Yield files as they are, folders as the images below them in the order of their names.

    What else lies in folders goes to ``others``, but for hidden files.
    """
    for path in images:
        if not path.is_dir():
            yield path
            continue
        for each in sorted(path.rglob("*")):
            if is_image(each):
                yield each
            elif is_file(each) and not each.name.startswith("."):
                others.append(each)


def _csv_row(document: dict[str, Any], names: Sequence[str]) -> list[Any]:
    p = [document["probabilities"].get(name, "") for name in names]
    opened = "" if document["error"] else str(document["opened"]).lower()
    words = (document[key] for key in ("label", "classifier", "gate"))
    return [document["path"], *words, opened, *p, document["error"] or ""]


def _print_line(values: list[Any]) -> None:
    typer.echo(csv_text([values]), nl=False)


def _show(documents: list[dict[str, Any]], n_more: int, predictor: Predictor | ExportedPredictor) -> None:
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
    if n_more:
        say(f"and {n_more:,} more images: --csv and --json print them all", console)
    if predictor.has_two_networks:
        say(f"the second network looked at {predictor.rows_matched} of {predictor.rows_seen} images", console)
