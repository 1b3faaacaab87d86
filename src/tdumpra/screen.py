"""What every command prints alike."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape


def show_notes(notes: Iterable[str], console: Console) -> None:
    """Sentences that a user should know of, one to a line."""
    for note in notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True, highlight=False)


def complain(sentence: str) -> None:
    """Why a command ended, in one line on standard error."""
    Console(stderr=True, soft_wrap=True).print(f"[bold red]tdumpra:[/] {escape(' '.join(sentence.split()))}")


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the candidate that resembles ``word``, or nothing."""
    folded = {candidate.casefold(): candidate for candidate in candidates}
    close = difflib.get_close_matches(word.casefold(), folded, n=1)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""
