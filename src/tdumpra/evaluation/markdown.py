"""Tables and names in Markdown, in which nothing that a user called something is markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a cell may hold Markdown."""

    def lines() -> Iterator[str]:
        yield f"| {' | '.join(map(_cell, head))} |"
        yield "|" + "---|" * len(head)
        for row in rows:
            yield f"| {' | '.join(map(_cell, row))} |"

    return "\n".join(lines())


def text(value: Any) -> str:
    """Return a name on one line, as Markdown shows it: no tags, no entities of its own."""
    shown = " ".join(str(value).split())
    for sign, entity in _ENTITIES.items():
        shown = shown.replace(sign, entity)
    return shown


def _cell(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
