"""Commands on finished models, as options and arguments; what each does is in a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tdumpra.cli.options import (
    DeviceOption,
    GroupOption,
    JsonOption,
    ModelArgument,
    OutOption,
    TrustOption,
)

LocalArgument = Annotated[
    str,
    typer.Argument(
        help="KIND:PLACE as in  folder:DIR,  or a file of the model's outputs: .npz, .csv, .parquet.",
        metavar="SOURCE",
        show_default=False,
    ),
]
PrefixOption = Annotated[
    str,
    typer.Option(
        "--prefix",
        help="Goes before the names of groups and images that another place numbers anew.",
        show_default=False,
    ),
]
RenameOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="THEIRS=OURS",
        help="A class of the source, and what the model calls it; repeat it for several.",
        show_default=False,
    ),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        "--objective",
        help="balanced_accuracy, accuracy, macro_f1, nll or cost; that of the model's tuning if left out.",
        show_default=False,
    ),
]
NewModelOption = Annotated[
    Path, typer.Option("--out", help="File of the new model; models are never changed in place.", show_default=False)
]


def local_options(
    group_by: str | None, prefix: str, rename: list[str] | None, device: str | None, trust: list[str] | None
) -> dict[str, Any]:
    """Return how a source is read, as :func:`tdumpra.models.local_rows.read_rows` takes it."""
    return {
        "group_by": group_by, "prefix": prefix, "rename": renames(rename), "device": device, "trusted": trust or (),
    }  # fmt: skip


def renames(texts: list[str] | None) -> dict[str, str]:
    """Read ``THEIRS=OURS``, as ``--rename`` takes it."""
    found = {}
    for text in texts or []:
        theirs, equals, ours = (part.strip() for part in text.partition("="))
        if not (theirs and equals and ours):
            raise ValueError(f"--rename takes THEIRS=OURS, as in  nevus=nv,  not {text!r}")
        found[theirs] = ours
    return found


def register(app: typer.Typer, panel: str) -> None:
    """Add the commands to the command line."""

    @app.command("validate", rich_help_panel=panel)
    def validate(
        model: ModelArgument,
        source: LocalArgument,
        out: OutOption = None,
        outputs: Annotated[
            Path | None,
            typer.Option(
                "--outputs",
                metavar="FILE.npz",
                help="Also keep the networks' outputs: adapt and bank add then need no images.",
                show_default=False,
            ),
        ] = None,
        fail_under: Annotated[
            list[str] | None,
            typer.Option(
                "--fail-under",
                metavar="METRIC=VALUE",
                help="End with exit code 1 if a metric is lower, as in  balanced_accuracy=0.7;  repeat it for several.",
                show_default=False,
            ),
        ] = None,
        group_by: GroupOption = None,
        prefix: PrefixOption = "",
        rename: RenameOption = None,
        as_json: JsonOption = False,
        device: DeviceOption = None,
        trust: TrustOption = None,
    ) -> None:
        """Try a finished model on data from elsewhere: figures where there are labels, and what has shifted."""
        from tdumpra.cli.validate import validate_command

        validate_command(
            model, source, out, outputs=outputs, fail_under=fail_under or (), as_json=as_json,
            **local_options(group_by, prefix, rename, device, trust),
        )  # fmt: skip

    @app.command("adapt", rich_help_panel=panel)
    def adapt(
        model: ModelArgument,
        source: LocalArgument,
        out: NewModelOption,
        objective: ObjectiveOption = None,
        report: Annotated[
            Path | None,
            typer.Option(
                "--report", help="Folder for a page and adaptation.json.", metavar="FOLDER", show_default=False
            ),
        ] = None,
        group_by: GroupOption = None,
        prefix: PrefixOption = "",
        rename: RenameOption = None,
        as_json: JsonOption = False,
        device: DeviceOption = None,
        trust: TrustOption = None,
    ) -> None:
        """Fit a model to a new place with labelled cases from there, without training; keeps what wins, or nothing."""
        from tdumpra.cli.adapt import adapt_command

        adapt_command(
            model, source, out, objective=objective, report=report, as_json=as_json,
            **local_options(group_by, prefix, rename, device, trust),
        )  # fmt: skip

    @app.command("history", rich_help_panel=panel)
    def history(model: ModelArgument, as_json: JsonOption = False) -> None:
        """Tell where a model comes from: each command that made it or its parents, oldest first."""
        from tdumpra.cli.history import history_command

        history_command(model, as_json=as_json)

    @app.command("card", rich_help_panel=panel)
    def card(
        model: ModelArgument,
        out: Annotated[
            Path | None, typer.Option("--out", help="A new Markdown file; the screen if left out.", show_default=False)
        ] = None,
        name: Annotated[
            str | None,
            typer.Option(help="What the model is called; its folder's name if left out.", show_default=False),
        ] = None,
    ) -> None:
        """Write a model card: data, protocol, figures, limits, and what two reporting guidelines still ask for."""
        from tdumpra.cli.card import card_command

        card_command(model, out, name)
