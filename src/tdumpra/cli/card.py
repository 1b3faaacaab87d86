"""The command ``card``: a model card from the model file alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tdumpra.cli.options import ModelArgument
from tdumpra.screen import say


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to the command line."""

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
        from tdumpra.artifacts import write_bytes  # loads torch, which --help does without
        from tdumpra.cli.predict import model_file
        from tdumpra.errors import InputFileError
        from tdumpra.models.card import card_of
        from tdumpra.models.opened import open_model

        if out is not None and out.exists():
            raise InputFileError(f"{out} is there already, perhaps with words of your own: name a new file")
        path = model_file(model)
        text = card_of(open_model(path), name or path.resolve().parent.name)
        if out is None:
            typer.echo(text, nl=False)
            return
        write_bytes(out, text.encode())
        say(f"Written: {out}")
