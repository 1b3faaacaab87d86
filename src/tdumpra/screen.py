"""What every command prints alike: lines, notes, JSON, hints, and the one progress bar."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def say(text: str, console: Console | None = None, style: str | None = None) -> None:
    """Print one line as it is: no markup, no colours for numbers, control characters escaped."""
    (console or Console()).print(printable(text), style=style, soft_wrap=True, highlight=False, markup=False)


def show_notes(notes: Iterable[str], console: Console) -> None:
    """Print sentences that a user should know of, one to a line."""
    for note in notes:
        console.print(f"[yellow]note:[/] {escape(printable(note))}", soft_wrap=True, highlight=False)


def complain(sentence: str) -> None:
    """Say why a command ended, in one line on standard error."""
    line = escape(printable(" ".join(sentence.split())))
    Console(stderr=True, soft_wrap=True).print(f"[bold red]tdumpra:[/] {line}")


def print_json(document: Any) -> None:
    """Print a document on standard output; numbers that JSON cannot say (NaN, infinity) become ``null``."""
    from tdumpra.artifacts import jsonable  # loads torch, which --help does without

    ascii_only = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
    text = json.dumps(jsonable(document), indent=2, ensure_ascii=ascii_only) + "\n"
    sys.stdout.write(text.encode(errors="backslashreplace").decode())  # what is no text in a file name, as JSON does it


def printable(text: str) -> str:
    """Return a name for the screen: bytes that are no text replaced, control characters escaped, lines kept."""
    decoded = os.fsencode(text).decode(errors="replace")
    return "".join(
        each.encode("unicode_escape").decode() if unicodedata.category(each) in ("Cc", "Cf") and each != "\n" else each
        for each in decoded
    )


@contextmanager
def progress(
    what: str, total: int | None = None, *, console: Console | None = None, show: bool = True
) -> Iterator[Callable[..., None]]:
    """Show a bar while work goes on, where there is a terminal; it is gone at the end.

    Args:
        what: words before the bar.
        total: number of steps, if it is known.
        console: where to show it; standard error unless given, so that standard output stays what it is.
        show: whether to show it at all.

    Yields:
        A function to call after each step, ``step(by=n)`` after several at once, or ``step(done, total, what)`` to say
        where the work stands.
    """
    console = console or Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left:"), TimeRemainingColumn(),
    )  # fmt: skip
    hidden = not show or console.quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden, redirect_stdout=False) as bar:
        task = bar.add_task(escape(printable(what)), total=total)

        def step(done: int | None = None, total: int | None = None, what: str | None = None, *, by: int = 1) -> None:
            description = None if what is None else escape(printable(what))
            bar.update(task, completed=done, total=total, description=description, advance=by if done is None else None)

        yield step
