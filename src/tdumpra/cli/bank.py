"""``tdumpra bank``: with a run's configuration the stage, else what is in a model's bank, and how it changes.

``tdumpra bank CONFIG`` is older than the commands below it and stays: whatever is no name of one is a configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tdumpra.cli.models import LocalArgument, NewModelOption, PrefixOption, RenameOption, local_options
from tdumpra.cli.options import (
    DeviceOption,
    GroupOption,
    JsonOption,
    ModelArgument,
    TrustOption,
    add_stage,
)

STAGE = "cluster"  # the hidden name of ``tdumpra bank CONFIG``


class _StageOrCommand(TyperGroup):
    """A group whose first word may be a configuration."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [STAGE, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_StageOrCommand,
    no_args_is_help=True,
    help="Cluster the training embeddings of a run into prototypes (tdumpra bank CONFIG); or list, compare, extend and "
    "cut down the bank of a finished model.",
)


add_stage(app, STAGE, "bank_command", about="Cluster the training embeddings into prototypes, and look them over.")


@app.command("list")
def _list(model: ModelArgument, as_json: JsonOption = False) -> None:
    """Show a model's bank: its classes, what stands behind them, prototypes and exemplars."""
    from tdumpra.cli.bank_commands import list_command

    list_command(model, as_json=as_json)


@app.command("diff")
def _diff(
    first: Annotated[Path, typer.Argument(help="A model.", show_default=False)],
    second: Annotated[Path, typer.Argument(help="Another model.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Say in what the second model's bank differs from the first one's."""
    from tdumpra.cli.bank_commands import diff_command

    diff_command(first, second, as_json=as_json)


@app.command("add")
def _add(
    model: ModelArgument,
    source: LocalArgument,
    out: NewModelOption,
    new_classes: Annotated[
        list[str] | None,
        typer.Option(
            "--new-class",
            metavar="NAME",
            help="A class that the model does not know yet; repeat it for several.",
            show_default=False,
        ),
    ] = None,
    rename: RenameOption = None,
    group_by: GroupOption = None,
    prefix: PrefixOption = "",
    as_json: JsonOption = False,
    device: DeviceOption = None,
    trust: TrustOption = None,
) -> None:
    """Add labelled cases to the bank, and measure what they bring; new classes too."""
    from tdumpra.cli.bank_commands import add_command

    add_command(
        model, source, out, new_classes=new_classes or (), as_json=as_json,
        **local_options(group_by, prefix, rename, device, trust),
    )  # fmt: skip


@app.command("remove")
def _remove(
    model: ModelArgument,
    out: NewModelOption,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="ID", help="A lesion or patient; repeat it for several.", show_default=False),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="A single image; repeat it for several.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Take cases out of a model: the result is the bank that never held them, to the bit."""
    from tdumpra.cli.bank_commands import remove_command

    remove_command(model, out, groups=groups or (), ids=ids or (), as_json=as_json)
