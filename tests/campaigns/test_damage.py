"""Flipped bits and cuts in every kind of file that tdumpra writes: refused or made again, never used as they are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.campaigns.alter import cut, flip
from tests.campaigns.conftest import World
from tests.campaigns.record import Tally, attempts

from tdumpra import DualPathClassifier, PrototypeBank
from tdumpra.artifacts import read_artifact, read_json
from tdumpra.data.images.cache import build
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.store import CachedImages
from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import FileReader
from tdumpra.data.splits import Split
from tdumpra.networks.checkpoint import read_networks
from tdumpra.networks.model_file import Model
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.steps import read_kept
from tdumpra.runs.table_stages import GATE_KIND, GATE_SCHEMA
from tdumpra.runs.tables import OutputsTable
from tdumpra.seals import seal_file, verify_file
from tdumpra.tuning.fit import Fitted

Reader = Callable[[Path], Any]
KEY = bytes(range(32))


def read_gate(path: Path) -> Fitted:
    return Fitted.from_artifact(read_artifact(path, kind=GATE_KIND, schema=GATE_SCHEMA))


def read_split(path: Path) -> object:
    said = read_json(path, kind="split", schema=1)
    ids = [name for part in ("train", "val", "test") for name in said[part]]
    return Split.read(path, _Named(said["source"], ids))  # type: ignore[arg-type]


class _Named:
    """As much of a data set as a split is checked against."""

    def __init__(self, fingerprint: str, ids: list[str]) -> None:
        self.fingerprint, self.groups = fingerprint, np.array(ids)
        self.records = [Record(name, None, 0, name) for name in ids]


def document(kind: str) -> Callable[[Path], Reader]:
    """Make a reader of a JSON result: it returns nothing where the result is to be made again."""

    def of(path: Path) -> Reader:
        made_from = read_json(path, kind=kind, schema=1)["made_from"]
        return lambda damaged: read_kept(damaged, kind, made_from)

    return of


def fixed(read: Reader) -> Callable[[Path], Reader]:
    return lambda path: read


KINDS: dict[str, tuple[Callable[[World], Path], Callable[[Path], Reader]]] = {
    "model": (lambda world: RunFolder(world.images).model, fixed(Model.read)),
    "classifier of arrays": (lambda world: RunFolder(world.arrays).model, fixed(DualPathClassifier.load)),
    "bank": (lambda world: RunFolder(world.images).bank, fixed(PrototypeBank.load)),
    "gate": (lambda world: RunFolder(world.images).gate, fixed(read_gate)),
    "outputs": (lambda world: RunFolder(world.images).outputs("val"), fixed(OutputsTable.read)),
    "checkpoint": (lambda world: RunFolder(world.images).checkpoint("last"), fixed(read_networks)),
    "split.json": (lambda world: RunFolder(world.images).split, fixed(read_split)),
    "evaluation.json": (lambda world: RunFolder(world.arrays).evaluation, document("evaluation")),
    "compared.json": (lambda world: RunFolder(world.arrays).compared, document("compared")),
    "gate.json": (lambda world: RunFolder(world.arrays).gate_document, document("gate")),
    "report.json": (lambda world: world.images / "report" / "report.json", document("report")),
}


def damaged(whole: bytes, n_flips: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield copies with a flipped bit, and a tenth as many that were cut."""
    rng = np.random.default_rng(seed)
    for i in range(n_flips):
        yield f"flip {i}", flip(whole, rng)
    for i in range(n_flips // 10):
        yield f"cut {i}", cut(whole, rng)


@attempts(60, 10_000)
@pytest.mark.parametrize("kind", KINDS)
def test_no_damaged_file_is_used(world, tmp_path, kind, attempts):
    place, reader = KINDS[kind]
    whole = place(world)
    read, path, tally = reader(whole), tmp_path / whole.name, Tally("damage", kind)
    assert read(whole) is not None
    for what, data in damaged(whole.read_bytes(), attempts, seed=1):
        path.write_bytes(data)
        tally.read(lambda: read(path), lambda value: False, what)
    tally.finish()


@attempts(60, 10_000)
@pytest.mark.parametrize("kind", ["file", "seal"])
def test_no_damaged_file_passes_for_a_sealed_one(world, tmp_path, kind, attempts):
    path = Path(shutil.copy(RunFolder(world.images).bank, tmp_path / "bank.safetensors"))
    seal = seal_file(path, KEY)
    verify_file(path, KEY)
    target, said = (path, None) if kind == "file" else (seal, seal.read_bytes())
    tally = Tally("damage", "keyed seal" if kind == "seal" else "file with a keyed seal")

    def sealed() -> bool:
        verify_file(path, KEY)
        return True

    for what, data in damaged(target.read_bytes(), attempts, seed=2):
        target.write_bytes(data)
        # the name and the algorithm in a seal are for people: what counts is that the sealed bytes are the same
        tally.read(sealed, lambda value: said is not None, what)
    tally.finish()


@pytest.mark.parametrize("part", ["pixels.u8", "journal.tsv", "files.json"])
@attempts(30, 10_000)
def test_a_damaged_cache_gives_the_same_pixels(tmp_path, write_image, part, attempts):
    framing = Framing(height=8, width=8)
    paths = [write_image(tmp_path / "in" / f"{i}.png", seed=i, size=(12, 12)) for i in range(3)]
    for path in paths:  # old enough for their digests to be remembered
        os.utime(path, (1e9, 1e9))
    records = tuple(Record(f"image{i}", path, i % 2, f"group{i}") for i, path in enumerate(paths))
    manifest = Manifest("small", ("a", "b"), records, FileReader())
    cache = tmp_path / "cache"

    def pixels() -> bytes:
        built = build(manifest, cache, framing)
        if built.reasons:
            return b""
        rows = np.array([built.rows[number] for number in range(3)])
        return CachedImages(built.pixels, rows, framing).read(np.arange(3)).tobytes()

    sound = pixels()
    (target,) = cache.rglob(part)
    kept = {path: path.read_bytes() for path in target.parent.iterdir()}
    tally = Tally("damage", f"image cache {part}")
    for what, data in damaged(target.read_bytes(), attempts, seed=3):
        for path, content in kept.items():
            path.write_bytes(content)
        target.write_bytes(data)
        tally.read(lambda: None if pixels() == sound else b"other pixels", lambda value: False, what)
    tally.finish()
