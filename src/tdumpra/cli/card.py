"""The command ``card``: a model card from the model file alone."""

from __future__ import annotations

from pathlib import Path

import typer

from tdumpra.cli.predict import model_file
from tdumpra.errors import InputFileError
from tdumpra.models.card import card_of
from tdumpra.models.opened import open_model
from tdumpra.screen import say
from tdumpra.writing import write_bytes


def card_command(model: Path, out: Path | None, name: str | None) -> None:
    """Print the card, or write it to a new file."""
    if out is not None and out.exists():
        raise InputFileError(f"{out} is there already, perhaps with words of your own: name a new file")
    path = model_file(model)
    text = card_of(open_model(path), name or path.resolve().parent.name)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_bytes(out, text.encode())
    say(f"Written: {out}")
