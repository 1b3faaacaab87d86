"""A step of work that is done once: its result is kept with everything that it depends on, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from tdumpra.artifacts import fingerprint, jsonable, read_json, write_json
from tdumpra.errors import ArtifactError
from tdumpra.foreign import reading
from tdumpra.runs.document_schema import check_document
from tdumpra.writing import make_folder

COMPUTATION = 5  # raise it whenever the same inputs would give other figures: kept results are then made again
SCHEMA = 1  # of the JSON files
_SMALL = 2**24  # numbers in a table

T = TypeVar("T")
Watch = Callable[["Step[Any]", int, int], None]  # the step that begins, how many are done, how many there are
Inputs = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Step(Generic[T]):
    """One piece of work."""

    name: str  # for a person
    kept: Callable[[], T | None]  # the result of an earlier run, if its inputs are those of now
    make: Callable[[], T]  # compute the result and write it
    seconds: float | None = None  # an estimate; None where nobody knows

    def result(self) -> T:
        """Read the kept result, or make it."""
        found = self.kept()
        return self.make() if found is None else found


class Planned(NamedTuple):
    """A step, and whether it is finished."""

    name: str
    finished: bool
    seconds: float | None


@contextmanager
def in_one_thread(numbers: int) -> Iterator[None]:
    """Keep torch to one thread while it works on tables of so many ``numbers``, unless these are large.

    On small ones threads compute little and wait for each other, by turning in circles: the more cores a machine has,
    or the busier it is, the longer all of it takes.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1 if numbers <= _SMALL else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def plan(steps: Sequence[Step[Any]]) -> list[Planned]:
    """Say what :func:`run` would do, without doing it."""
    return [Planned(step.name, step.kept() is not None, step.seconds) for step in steps]


def run(steps: Sequence[Step[T]], watch: Watch | None = None) -> dict[str, T]:
    """Return the results of all steps by name; each is written as soon as it is there."""
    results = {}
    for done, step in enumerate(steps):
        if watch is not None:
            watch(step, done, len(steps))
        results[step.name] = step.result()
    return results


def digest(inputs: Inputs) -> str:
    """Return a short name for exactly these inputs."""
    return fingerprint(json.dumps(jsonable({"computation": COMPUTATION, **inputs}), sort_keys=True))


def read_document(path: Path, kind: str) -> dict[str, Any]:
    """Read a JSON result, or say in one sentence why it cannot be used."""
    content = read_json(path, kind=kind, schema=SCHEMA)
    with reading(path, f"tdumpra {kind} file", ArtifactError):
        check_document(kind, content)
    return content


def read_kept(path: Path, kind: str, made_from: str) -> dict[str, Any] | None:
    """Read a JSON result that was made from these inputs. One that makes no sense is as good as none: made again."""
    if not path.exists():
        return None
    try:
        content = read_document(path, kind)
    except ArtifactError:
        return None
    return content if content.get("made_from") == made_from else None


def write_kept(path: Path, kind: str, made_from: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Write a JSON result with a name for its inputs; return it as it will be read."""
    make_folder(path.parent)
    plain: dict[str, Any] = jsonable({"made_from": made_from, **content})
    write_json(path, kind=kind, schema=SCHEMA, content=plain)
    return plain


def cell(
    out: Path, name: str, inputs: Callable[[], Inputs], compute: Callable[[], Mapping[str, Any]], seconds: float | None
) -> Step[dict[str, Any]]:
    """Make a step of a grid: its file, below ``out/cells``, is called after its inputs.

    ``inputs`` is a function because computing may make what it names: outputs that are still to be trained.
    """

    def path(made_from: str) -> Path:
        return out / "cells" / f"{made_from}.json"

    def kept() -> dict[str, Any] | None:
        made_from = digest(inputs())
        return read_kept(path(made_from), "cell", made_from)

    def make() -> dict[str, Any]:
        computed = compute()
        made_from = digest(inputs())
        return write_kept(path(made_from), "cell", made_from, {"name": name, "inputs": inputs(), **computed})

    return Step(name=name, kept=kept, make=make, seconds=seconds)
