"""What every command prints alike: lines, notes, JSON, hints, and the one progress bar."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_FORMULA = re.compile(r"'*[=+\-@\t\r]")  # how a cell begins that a spreadsheet computes
_CONTROL = ("Cc", "Cf", "Zl", "Zp")  # Unicode's categories of signs that change what stands around them
_NOT_ASCII = re.compile(r"[^\n -~]")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def say(text: str, console: Console | None = None, style: str | None = None) -> None:
    """Print one line as it is: no markup, no colours for numbers, control characters escaped."""
    (console or Console()).print(printable(text), style=style, soft_wrap=True, highlight=False, markup=False)


def show_notes(notes: Iterable[str], console: Console) -> None:
    """Print sentences that a user should know of, one to a line."""
    for note in notes:
        console.print(f"[yellow]note:[/] {plain(note)}", soft_wrap=True, highlight=False)


def complain(sentence: str) -> None:
    """Say why a command ended, in one line on standard error."""
    line = plain(" ".join(sentence.split()))
    Console(stderr=True, soft_wrap=True).print(f"[bold red]tdumpra:[/] {line}")


def print_json(document: Any) -> None:
    """Print a document on standard output; numbers that JSON cannot say (NaN, infinity) become ``null``."""
    sys.stdout.write(_json_text(document) + "\n")


def print_json_list(documents: Iterable[Any]) -> None:
    """Print a list as :func:`print_json` does, each element as it is known: none is kept."""
    before = "[\n"
    for each in documents:
        sys.stdout.write(before + "  " + _json_text(each).replace("\n", "\n  "))  # a string holds no line break
        before = ",\n"
    sys.stdout.write("[]\n" if before == "[\n" else "\n]\n")


def _json_text(document: Any) -> str:
    from tdumpra.artifacts import jsonable  # loads torch, which --help does without

    ascii_only = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
    text = json.dumps(jsonable(document), indent=2, ensure_ascii=ascii_only)
    return _NOT_ASCII.sub(lambda sign: _json_sign(sign[0]), text)


def printable(text: str) -> str:
    """Return a name for the screen: bytes that are no text replaced, control characters escaped, lines kept."""
    return text if text.isascii() and text.isprintable() else "".join(map(_printable_sign, text))


def plain(text: str) -> str:
    """Return a name for a table on the screen: as :func:`printable` has it, and nothing in it is markup."""
    return escape(printable(text))


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV, in which a spreadsheet finds numbers and text and no formula.

    Text that a spreadsheet would compute (it begins with ``=``, ``+``, ``-`` or ``@`` and is no number) gets a ``'`` in
    front. Control characters are escaped as on the screen.
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return buffer.getvalue()


def csv_name(cell: str) -> str:
    """Return the name that :func:`csv_text` wrote into a cell."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    shown = printable(value)
    return f"'{shown}" if _FORMULA.match(shown) and not _NUMBER.fullmatch(shown) else shown


def _printable_sign(sign: str) -> str:
    kind = unicodedata.category(sign)
    if kind == "Cs":  # stands for a byte of a file name that is no text
        return "\ufffd"
    return sign.encode("unicode_escape").decode() if kind in _CONTROL and sign != "\n" else sign


def _json_sign(sign: str) -> str:
    return json.dumps(sign)[1:-1] if unicodedata.category(sign) in ("Cs", *_CONTROL) else sign


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
        task = bar.add_task(plain(what), total=total)

        def step(done: int | None = None, total: int | None = None, what: str | None = None, *, by: int = 1) -> None:
            description = None if what is None else plain(what)
            bar.update(task, completed=done, total=total, description=description, advance=by if done is None else None)

        yield step
