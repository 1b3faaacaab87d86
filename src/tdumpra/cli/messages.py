"""What the command line says of errors and warnings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from tdumpra.screen import show_notes


def is_ours(error: BaseException) -> bool:
    """Return whether this package raised it, with a sentence for users; what a library raises was not foreseen."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is None or Path(frame.tb_frame.f_code.co_filename).is_relative_to(Path(__file__).parents[1])


class NotesOnce:
    """Print each note of a command once, however many stages have it to give."""

    def __init__(self) -> None:
        self._printed: set[str] = set()

    def print_warning(self, message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        """Print a warning that is meant for users, in place of ``warnings.showwarning``."""
        if issubclass(category, UserWarning) and str(message) not in self._printed:
            self._printed.add(str(message))
            show_notes([str(message)], Console(stderr=True))
