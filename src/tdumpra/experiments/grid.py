"""A grid of cells, each computed once: what was finished is read back, what was not is computed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tdumpra import __version__
from tdumpra.artifacts import fingerprint, jsonable, make_folder, read_json, write_json
from tdumpra.errors import ArtifactError
from tdumpra.runs.fitting import COMPUTATION

KIND, SCHEMA = "cell", 1
FOLDER = "cells"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Cell:
    """One piece of work, and everything that its result depends on."""

    name: str  # for a person
    settings: Mapping[str, Any] | Callable[[], Mapping[str, Any]]  # a function where computing makes what they name
    compute: Callable[[], Mapping[str, Any]]
    seconds: float | None = None  # an estimate; None where nobody knows

    @property
    def known(self) -> Mapping[str, Any]:
        """The settings as they are at this moment."""
        return self.settings() if callable(self.settings) else self.settings

    @property
    def digest(self) -> str:
        """The name of its file: other settings, or another version, make another cell."""
        return _digest(self.known)


class Planned(NamedTuple):
    """What would happen to a cell."""

    name: str
    finished: bool
    seconds: float | None


Watch = Callable[[Cell, int, int], None]  # the cell that begins (or was found), how many are done, how many there are


def plan(cells: Sequence[Cell], out: Path) -> list[Planned]:
    """What :func:`run` would do, without doing it."""
    return [Planned(cell.name, _load(cell, out) is not None, cell.seconds) for cell in cells]


def run(cells: Sequence[Cell], out: Path, watch: Watch | None = None) -> list[dict[str, Any]]:
    """The results of all cells in order; each is written as soon as it is there."""
    results = []
    for done, cell in enumerate(cells):
        if watch is not None:
            watch(cell, done, len(cells))
        result = _load(cell, out)
        if result is None:
            start = time.perf_counter()
            computed = cell.compute()
            result = keep(cell, out, {**computed, "seconds": time.perf_counter() - start})
        results.append(result)
    return results


def keep(cell: Cell, out: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Write a cell's result, so that it is finished; gives it as it will be read."""
    make_folder(out / FOLDER)
    plain: dict[str, Any] = jsonable(result)
    known = cell.known
    content = {"name": cell.name, "settings": known, "result": plain}
    write_json(_path(out, _digest(known)), kind=KIND, schema=SCHEMA, content=content)
    return plain


def _digest(settings: Mapping[str, Any]) -> str:
    return fingerprint(__version__, str(COMPUTATION), json.dumps(jsonable(settings), sort_keys=True))


def _path(out: Path, digest: str) -> Path:
    return out / FOLDER / f"{digest}.json"


def _load(cell: Cell, out: Path) -> dict[str, Any] | None:
    """A finished cell's result. One that is damaged is as good as missing: it is computed again."""
    path = _path(out, cell.digest)
    if not path.exists():
        return None
    try:
        result: dict[str, Any] = read_json(path, kind=KIND, schema=SCHEMA)["result"]
    except (ArtifactError, KeyError):
        return None
    return result
