"""Errors about files and artefacts. Bad values raise the built-in ``ValueError`` and ``TypeError``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TdumpraError(Exception):
    """Something outside the program is not as it must be; the message is one sentence for the user."""


class ArtifactError(TdumpraError):
    """A file that tdumpra wrote is missing, truncated, altered, or of another kind or version."""


class UnreadableError(TdumpraError):
    """A file is there and the system cannot read it now. It may be whole, so nothing may be made in its place."""


class OtherKindError(ArtifactError):
    """A sound file of tdumpra that holds something else than was asked for."""

    def __init__(self, path: str, found: str, needed: str) -> None:
        super().__init__(path, found, needed)
        self.found = found

    def __str__(self) -> str:
        path, found, needed = self.args
        return f"{path} holds a tdumpra {found}, where a {needed} is needed"


class UntrustedCodeError(ArtifactError):
    """A file asks to import and call code that nobody declared trusted."""


class InputFileError(TdumpraError):
    """A user's file cannot be read, or does not hold what its name promises."""


class MissingExtraError(TdumpraError):
    """An optional dependency is needed and not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            package, extra, purpose
        )  # its own arguments, so that it can be pickled out of a worker process

    def __str__(self) -> str:
        package, extra, purpose = self.args
        return f"{purpose} needs {package}: install it with  pip install 'tdumpra[{extra}]'"


class BrokenImageError(TdumpraError):
    """One image cannot be used; the message is the reason that goes into ``quarantine.csv``."""


class StopRequestedError(TdumpraError):
    """The user asked to stop, and the message says what was saved."""


class SourceError(InputFileError):
    """A data set or a table is not laid out as its kind promises; the message says how to fix it."""


class NoImagesError(SourceError):
    """The tables of a data set are there, and not one of its images."""


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the candidate that resembles ``word``, or nothing."""
    close = close_match(word, candidates)
    return "" if close is None else f"; did you mean {close!r}?"


def close_match(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that resembles ``word``, if one does."""
    folded = {candidate.casefold(): candidate for candidate in candidates}
    close = difflib.get_close_matches(word.casefold(), folded, n=1)
    return folded[close[0]] if close else None
