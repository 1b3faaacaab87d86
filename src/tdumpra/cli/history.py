"""The command ``history``: the steps that made a model; and what ``verify`` checks of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from tdumpra.artifacts import jsonable
from tdumpra.cli.predict import model_file
from tdumpra.errors import TdumpraError, UnreadableError
from tdumpra.method import lineage
from tdumpra.models.opened import OpenedModel, open_model
from tdumpra.runs.config import Config
from tdumpra.screen import print_json, say

_SHORT = 12  # digits of a digest that are enough to tell models apart


def history_command(model: Path, *, as_json: bool) -> None:
    """Print the history of a model, settings only where they are not the usual ones; a broken one is refused."""
    opened = open_model(model_file(model))
    lineage.check(opened.lineage)
    if as_json:
        print_json({"model": opened.digest, "history": lineage.to_json(opened.lineage)})
        return
    if not opened.lineage:
        say(f"{opened.path} tells nothing of its history: it was made by an older version, or saved from Python")
        return
    console, usual = Console(), {(name, str(value)) for name, value in _flat(jsonable(asdict(Config())))}
    for number, entry in enumerate(opened.lineage, start=1):
        parent = "" if entry.parent is None else f", from the model {entry.parent[:_SHORT]}"
        say(f"{number}. {entry.command}, {entry.time}, tdumpra {entry.version}{parent}", console)
        for name, value in entry.inputs.items():
            say(f"     {name}: {value}", console)
        told = [f"{name} = {value}" for name, value in _flat(entry.settings) if (name, str(value)) not in usual]
        say(f"     settings: {', '.join(told) or 'the usual ones'}", console)
    say(f"This model: {opened.digest}", console)


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def verify_histories(files: Sequence[Path], *, every: bool) -> Iterator[str]:
    """Check the bytes and the history of each model, and tell which of the files are parents of others.

    With ``every``, a file that is no model is refused; else it is passed over.
    """
    models = [found for path in files if (found := _model(path, needed=every)) is not None]
    for opened in models:
        lineage.check(opened.lineage)
        steps = len(opened.lineage)
        told = f"its history of {steps} step{'' if steps == 1 else 's'} holds" if steps else "it tells no history"
        parents = {entry.parent for entry in opened.lineage}
        here = [str(other.path) for other in models if other.digest in parents]
        made = f"; it was made from {', '.join(here)}" if here else ""
        yield f"{opened.path} is whole, and {told}{made}"


def _model(path: Path, *, needed: bool) -> OpenedModel | None:
    try:
        return open_model(model_file(path))
    except TdumpraError as error:
        if needed or isinstance(error, UnreadableError):
            raise
        return None
