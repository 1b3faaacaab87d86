"""The commands ``export`` and, for an exported file, ``verify``: what they take and print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tdumpra.cli.options import JsonOption, ModelArgument, TrustOption
from tdumpra.errors import InputFileError, TdumpraError
from tdumpra.screen import complain, print_json, say

CompareOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--images",
        metavar="PATH",
        help="Images or folders to compare on, by default the model's own pictures; repeat it for several.",
        show_default=False,
    ),
]


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command("export", rich_help_panel=panel)(_export)


def _export(
    model: ModelArgument,
    to: Annotated[str, typer.Option("--to", help="onnx or openvino.")] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The file, *.onnx or *.xml; beside the model if left out."),
    ] = None,
    int8: Annotated[
        str | None,
        typer.Option(
            "--int8",
            metavar="SOURCE",
            help="Quantise, by the images of a folder or KIND:PLACE: another model, to be tuned again.",
            show_default=False,
        ),
    ] = None,
    images: CompareOption = None,
    as_json: JsonOption = False,
    trust: TrustOption = None,
) -> None:
    """Write a model as a graph that runs without PyTorch; nothing is written unless both predict alike."""
    from tdumpra.cli.predict import model_file
    from tdumpra.export.export import ANOTHER_MODEL, check_format, export_model
    from tdumpra.integrations.monai import metadata_path, write_metadata
    from tdumpra.networks.model_file import Model

    format_, path = check_format(to), model_file(model)
    place = out if out is not None else path.with_suffix(".onnx" if format_ == "onnx" else ".xml")
    metadata_path(place.parent)  # a file in its way is told before the work
    done = export_model(
        path, format_, place, images=_images(images), calibration=int8, trusted=trust or ()
    )  # fmt: skip
    beside = write_metadata(Model.read(path), place.parent)
    if as_json:
        print_json({
            "files": [str(each) for each in done.files], "metadata": str(beside), "precision": done.precision,
            "compared": done.comparison._asdict(),
        })  # fmt: skip
        return
    for each in (*done.files, beside):
        say(f"Written: {each}")
    say(f"Compared with the model: {done.comparison}")
    if done.precision == "int8":
        complain(f"{place} is quantised to int8: {ANOTHER_MODEL}")


def _images(given: list[Path] | None) -> list[Path]:
    """Return the images to compare on; none if nobody asked for some."""
    from tdumpra.cli.predict import expand

    found = list(expand(given or (), []))
    if given and not found:
        raise InputFileError(f"there is no image in {', '.join(map(str, given))} to compare on")
    return found


def verify_export(
    model: Path, exported: Path, images: list[Path] | None, *, engine: str, int8: bool, as_json: bool,
    trusted: list[str],
) -> None:  # fmt: skip
    """Compare a model with its export, and fail unless one can stand for the other."""
    from tdumpra.cli.predict import check_engine, model_file
    from tdumpra.export.export import ANOTHER_MODEL, compare_with

    runner = check_engine(engine, exported)
    found = compare_with(model_file(model), exported, _images(images), engine=runner, trusted=trusted)
    if as_json:
        print_json({**found.comparison._asdict(), "agrees": found.comparison.agrees, "precision": found.precision})
    else:
        say(f"{exported} was made from {model}, and both are whole")
        say(f"Compared: {found.comparison}")
    if found.precision == "int8":
        if not int8:
            raise TdumpraError(f"{exported} is quantised to int8: {ANOTHER_MODEL} (--int8 says that you know)")
        return
    if not found.comparison.agrees:
        raise TdumpraError(f"{exported} computes something else than {model}: export it again")
