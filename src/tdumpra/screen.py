"""What every command prints alike."""

from __future__ import annotations

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
