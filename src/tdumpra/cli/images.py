"""Commands that look at images with a model, as options and arguments; what each does is in a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tdumpra.cli.options import (
    DeviceOption,
    ImagesArgument,
    JsonOption,
    LesionOption,
    MasksOption,
    ModelArgument,
    TrainingImagesOption,
    TrustOption,
)


def register(app: typer.Typer, panel: str) -> None:
    """Add the commands to the command line."""
    app.command("predict", rich_help_panel=panel)(_predict)
    app.command("explain", rich_help_panel=panel)(_explain)


def _predict(
    model: ModelArgument,
    images: ImagesArgument,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the predictions as CSV and nothing else.")] = False,
    masks: MasksOption = None,
    eager: Annotated[bool, typer.Option("--eager", help="Ask the second network about every image.")] = False,
    batch_size: Annotated[
        int | None, typer.Option(help="Images at once; by default what suits the device.", show_default=False)
    ] = None,
    device: DeviceOption = None,
    precision: Annotated[
        str | None, typer.Option(help="float32 or bfloat16; that of tuning if left out.", show_default=False)
    ] = None,
    engine: Annotated[
        str, typer.Option(help="What computes: auto, torch, onnx or openvino; auto is what the file is for.")
    ] = "auto",
    trust: TrustOption = None,
) -> None:
    """Predict images: label, probability, the classifier's own label, and what the gate did."""
    from tdumpra.cli.predict import predict_command

    mode = "eager" if eager else "lazy"
    predict_command(
        model, images, masks=masks, as_json=as_json, as_csv=as_csv, batch_size=batch_size, mode=mode, device=device,
        precision=precision, engine=engine, trusted=trust or (),
    )  # fmt: skip


def _explain(
    model: ModelArgument,
    images: ImagesArgument,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the pages.", show_default="evidence")] = None,
    group: LesionOption = None,
    saliency: Annotated[bool, typer.Option("--saliency", help="Also show what the match rests on.")] = False,
    training_images: TrainingImagesOption = None,
    older: Annotated[Path | None, typer.Option("--images", hidden=True)] = None,
    masks: MasksOption = None,
    as_json: JsonOption = False,
    device: DeviceOption = None,
    trust: TrustOption = None,
) -> None:
    """Write a page of evidence for each image: why it was decided as it was."""
    from tdumpra.report import kit

    kit.require()  # before the seconds that networks take to load
    from tdumpra.cli.explain import explain_command

    explain_command(
        model, images, out=out, group=group, sources=training_images or older, masks=masks, saliency=saliency,
        as_json=as_json, device=device, trusted=trust or (),
    )  # fmt: skip
