"""The fenced blocks of our Markdown pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^( *)(`{3,}|~{3,})([^`\n]*)$")
_TITLE = re.compile(r'title="([^"]+)"')


class Block(NamedTuple):
    """One fenced block, and where it stands."""

    page: Path
    line: int  # of its first line, counted from 1
    language: str
    title: str | None  # the name of the file that it is
    text: str

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page; a fence that is never closed is refused."""
    found: list[Block] = []
    opened: tuple[int, str, str, str] | None = None
    body: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened, body = (number, fence[1], fence[2], fence[3].strip()), []
        elif opened is not None and fence and fence[2].startswith(opened[2]) and not fence[3].strip():
            start, _, _, info = opened
            language, _, options = info.partition(" ")
            title = _TITLE.search(options)
            found.append(Block(page, start + 1, language, title and title[1], "\n".join(body) + "\n"))
            opened = None
        elif opened is not None:
            body.append(line.removeprefix(opened[1]))
    if opened is not None:
        raise ValueError(f"{page}:{opened[0]}: the fence is never closed")
    return found
