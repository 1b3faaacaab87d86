"""What the server answers where it cannot do what was asked."""

from __future__ import annotations

from tdumpra.errors import TdumpraError


class RefusedError(TdumpraError):
    """A request that is turned away: the status of the answer, and one sentence."""

    def __init__(self, status: int, sentence: str, *, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.retry_after = status, retry_after


def disk_full() -> RefusedError:
    """Say that there is no room."""
    return RefusedError(507, "the server's disk is full: nothing was stored", retry_after=60)


def not_found(what: str = "case") -> RefusedError:
    """Say the same whether a thing is missing or not the asker's to see."""
    return RefusedError(404, f"there is no such {what}")
