"""Arguments and options that several commands share, each described once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tdumpra.screen import show_notes
from tdumpra.toml import read_toml

if TYPE_CHECKING:
    from tdumpra.runs.config import Config

ConfigArgument = Annotated[Path, typer.Argument(help="The run's TOML file.", show_default=False)]
ModelArgument = Annotated[Path, typer.Argument(help="model.safetensors, or the folder of its run.", show_default=False)]
ImagesArgument = Annotated[list[Path], typer.Argument(help="Images, or folders of images.", show_default=False)]
SourceArgument = Annotated[
    str,
    typer.Argument(
        help="KIND:PLACE, KIND one of ham10000, isic2019, isic2018-task3, folder, csv, medmnist, synthetic.",
        show_default=False,
    ),
]

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting of the configuration, as in  --set train.epochs=5;  repeat it for several.",
        show_default=False,
    ),
]
SeedsOption = Annotated[
    str | None, typer.Option("--seeds", metavar="0,1,…", help="Seeds, in place of the file's.", show_default=False)
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder for the results.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")]
PlanOption = Annotated[bool, typer.Option("--plan", help="Say what would run, and how long it may take, and stop.")]
MasksOption = Annotated[
    Path | None,
    typer.Option("--masks", help="Folder of the lesions' masks, for a model that cuts them out.", show_default=False),
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, …", show_default=False)]
TrustOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-code",
        metavar="PACKAGE.MODULE:FUNCTION",
        help="Code that the model may import and call to build its networks; repeat it for several.",
        show_default=False,
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", help='The data set\'s folder: runs with recipe = "paper".', show_default=False),
]
WeightsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--weights",
        metavar="NAME=TAG|FILE",
        help="Weights that a backbone starts from, as in  ViT-B=vit.safetensors;  repeat it for several.",
        show_default=False,
    ),
]
MissingOption = Annotated[
    bool, typer.Option("--allow-missing", help="Count and leave out what has no file or no label.")
]
MetadataOption = Annotated[
    bool, typer.Option("--metadata-only", help="Use the tables alone, whichever files are there.")
]
GroupOption = Annotated[
    str | None,
    typer.Option("--group-by", help="The column that says which images belong together.", show_default=False),
]
LesionOption = Annotated[
    str | None, typer.Option("--group", help="The lesion or patient that the images show.", show_default=False)
]
TrainingImagesOption = Annotated[
    Path | None,
    typer.Option(
        "--training-images", help="Folder of the training images, if the model lacks them.", show_default=False
    ),
]
DuplicatesOption = Annotated[
    Path | None,
    typer.Option("--duplicates", help="A table from_img,to_img of images whose groups are one.", show_default=False),
]


def settings(path: Path | None, changes: list[str] | None, seeds: str | None, out: Path | None = None) -> Config:
    """Read a configuration with the changes of the command line, and say which settings do nothing.

    Without a file, the changes say everything. ``out`` takes the place of the run's folder.
    """
    if path is not None:
        read_toml(path)  # a file that is missing or no TOML is told before torch is loaded
    from tdumpra.runs.config import read_config
    from tdumpra.runs.idle_settings import idle_settings

    config = read_config(path, changes=changes or (), seeds=None if seeds is None else _parse_seeds(seeds))
    show_notes(idle_settings(config), Console(stderr=True))
    return config if out is None else replace(config, folder=str(out))


def add_stage(app: typer.Typer, name: str, work: str, *, about: str, panel: str | None = None) -> None:
    """Register a command that works in the folder of the run that a configuration describes.

    ``work`` is a function of :mod:`tdumpra.cli.run`, loaded when the command runs. Without a panel it is hidden.
    """

    @app.command(name, rich_help_panel=panel, hidden=panel is None, help=about)
    def command(
        config: ConfigArgument,
        changes: SetOption = None,
        seeds: SeedsOption = None,
        out: OutOption = None,
        as_json: JsonOption = False,
    ) -> None:
        run = settings(config, changes, seeds, out)
        from tdumpra.cli import run as stages

        getattr(stages, work)(run, as_json=as_json)


def paper_settings(
    dataset: str, path: Path | None, folder: Path | None, changes: list[str] | None, seeds: str | None
) -> Config:
    """Read the configuration of ``reproduce``, or make one: the paper's recipe on the data set in ``folder``."""
    from tdumpra.experiments.paper import DATASETS

    if dataset and dataset not in DATASETS:
        raise ValueError(f"reproduce takes {' or '.join(DATASETS)}, or a run's TOML file, not {dataset!r}")
    if path is not None and folder is not None:
        raise ValueError("--data takes the place of a configuration: give one of them")
    if path is not None:
        return settings(path, changes, seeds)
    if folder is None:
        raise ValueError(
            f"reproduce {dataset} needs its images: give their folder with --data DIR, or a configuration whose "
            f"data.source is {dataset}:DIR"
        )
    recipe = ["recipe=paper", f"name={dataset}-paper", f"data.source={dataset}:{folder}"]
    return settings(None, [*recipe, *(changes or [])], seeds)


def _parse_seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--seeds takes whole numbers, as in  --seeds 0,1,  not {text!r}") from None
