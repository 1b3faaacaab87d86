"""What became of each attempt of a campaign: counted, and kept for the page on reliability."""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tdumpra import __version__
from tdumpra.cli.messages import is_ours
from tdumpra.errors import TdumpraError

OUTCOMES = (
    "refused",  # told in one sentence
    "made again",  # noticed, and replaced by what an undisturbed run has
    "read",  # nothing was lost, or the file is a sound one with other contents
    "traceback",
    "silently wrong",
)
FOLDER = "TDUMPRA_RECORDS"  # where records are written; nowhere if it is not set
ATTEMPTS = "TDUMPRA_ATTEMPTS"  # how many of a long campaign, where its own number takes too long
MINUTES = "TDUMPRA_MINUTES"  # after which a test of a long campaign stops with what it has
_SHOWN = 5  # failures in a message


def attempts(short: int, full: int) -> pytest.MarkDecorator:
    """Run a test with few attempts in the suite, and with many in ``make campaign``."""
    many = int(os.environ.get(ATTEMPTS, full))
    return pytest.mark.parametrize("attempts", [short, pytest.param(many, marks=pytest.mark.campaign)])


@dataclass
class Tally:
    """The outcomes of one campaign on one kind of thing."""

    campaign: str
    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)  # what else is worth keeping
    started: float = field(default_factory=time.monotonic)

    def note(self, outcome: str, detail: str = "") -> None:
        assert outcome in OUTCOMES
        self.counts[outcome] += 1
        if outcome in ("traceback", "silently wrong"):
            self.failures.append(f"{outcome}: {detail}")

    @property
    def is_late(self) -> bool:
        """Return whether the time of this test is over."""
        return time.monotonic() - self.started > 60 * float(os.environ.get(MINUTES, "inf"))

    @property
    def tried(self) -> int:
        return sum(self.counts.values())

    def read(self, read: Callable[[], Any], same: Callable[[Any], bool], detail: str = "") -> None:
        """Call a reader of a damaged file; what it returns must be the ``same`` as before."""
        try:
            value = read()
        except Exception as error:
            self.note(*refusal(error, detail))
            return
        if value is None:
            self.note("made again")
        else:
            self.note("read" if same(value) else "silently wrong", detail)

    def finish(self) -> None:
        """Fail if anything went wrong; otherwise keep the counts, where somebody asked for it."""
        print(f"{self.campaign}, {self.kind}: {self.tried:,} tried, {dict(self.counts)} {self.figures or ''}")
        assert not self.failures, f"{len(self.failures)} of {self.tried}: " + "; ".join(self.failures[:_SHOWN])
        if place := os.environ.get(FOLDER):
            content = {
                "campaign": self.campaign,
                "kind": self.kind,
                "tried": self.tried,
                **{name: self.counts[name] for name in OUTCOMES},
                **({"figures": self.figures} if self.figures else {}),
                "version": __version__,
                "python": platform.python_version(),
            }
            path = Path(place) / f"{self.campaign}-{self.kind.replace(' ', '-').replace('.', '-')}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def refusal(error: Exception, detail: str = "") -> tuple[str, str]:
    """Say whether an exception is a sentence for the user, as the command line tells them apart."""
    of_files = isinstance(error, TdumpraError) and "\n" not in str(error)
    of_values = isinstance(error, ValueError | TypeError) and is_ours(error)  # may show an array, line by line
    if str(error) and (of_files or of_values):
        return "refused", ""
    return "traceback", f"{detail} {type(error).__name__}: {error}"
