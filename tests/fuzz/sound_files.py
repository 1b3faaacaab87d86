"""Sound files of the kinds that strangers hand in, made once, and strategies that spoil one thing in them."""

from __future__ import annotations

import copy
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import safetensors.torch
import torch
from exported_models import NAMES, small_model
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.campaigns.alter import any_way
from tests.support import SMALL, fit_and_tune, make_problem, splits_of

from tdumpra import artifacts, estimator_file
from tdumpra.artifacts import Artifact, fingerprint
from tdumpra.data.images.framing import EvalTransform, Framing
from tdumpra.method import bank
from tdumpra.method.record import BankRecipe, Record
from tdumpra.method.rows import KeptRows
from tdumpra.networks import model_file
from tdumpra.runs.table_stages import GATE_KIND, GATE_SCHEMA
from tdumpra.runtime.description import BLANK, MODEL_KEY, SCHEMA, SEAL_KEY, seal
from tdumpra.scoring.folder import Plan, table_bytes
from tdumpra.scoring.listing import Entry
from tdumpra.tuning.fit import fit
from tdumpra.tuning.settings import BankConfig, TuneConfig

Header = tuple[str, int]  # kind and schema
Sound = Callable[[], Artifact]
PLAN = Plan(
    model="m" * 16, class_names=("a", "b"), source="images", engine="torch", mode="lazy", embeddings=False, part_size=3
)
ENTRIES = [Entry(f"{i}.png", f"images/{i}.png") for i in range(8)]

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
odd_tensors = st.sampled_from([
    torch.zeros(0), torch.ones(2, 3), torch.tensor(1.0), torch.ones(2, dtype=torch.int64), torch.full((3,), torch.nan),
    torch.ones(3, 2, 8), torch.zeros(3, 2, dtype=torch.bool), torch.full((4,), 2**62), torch.ones(1, dtype=torch.uint8),
])  # fmt: skip


# --- spoiling


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield (*above, key)
        yield from places(each, (*above, key))


@st.composite
def spoilt(draw: st.DrawFn, sound: Callable[[], Any]) -> Any:
    """Return a JSON value in which one value, or two, became another or were left out."""
    value = copy.deepcopy(sound())
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from(sorted(places(value), key=str)))
        inside = value
        for key in way:
            inside = inside[key]
        if draw(st.booleans()) or not isinstance(inside, dict):
            inside[last] = draw(values)
        else:
            del inside[last]
    return value


@st.composite
def spoilt_artifact(draw: st.DrawFn, header: Header, sound: Sound) -> bytes:
    """Return a sealed artefact in which a tensor or a value is another."""
    held, meta = dict(sound().tensors), sound().meta
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(held)))
        held[name] = draw(odd_tensors)
    else:
        meta = draw(spoilt(lambda: sound().meta))
    return sealed(header, held, meta)


def sealed(header: Header, held: dict[str, torch.Tensor], meta: Any) -> bytes:
    """Return the bytes of an artefact, with a seal that anyone can make."""
    said = {"kind": header[0], "schema": str(header[1]), "checksum": "0" * 64, "meta": json.dumps(meta)}
    return artifacts._seal(safetensors.torch.save({name: each.clone() for name, each in held.items()}, said))


def sealed_document(kind: str, content: dict[str, Any]) -> bytes:
    """Return the bytes of a JSON result, with a seal that anyone can make."""
    return artifacts._seal(json.dumps({"kind": kind, "schema": 1, "checksum": "0" * 64, **content}).encode())


def damaged(sound: Callable[[], bytes]) -> st.SearchStrategy[bytes]:
    """Return a file with bytes changed, cut, repeated or exchanged."""
    return st.integers(0, 2**32 - 1).map(lambda seed: any_way(sound(), np.random.default_rng(seed)))


# --- sound files


def _written(write: Callable[[Path], object], header: Header) -> Artifact:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "file")
        return artifacts.read_artifact(Path(folder) / "file", kind=header[0], schema=header[1])


MODEL, CLASSIFIER = (model_file.KIND, model_file.SCHEMA), (estimator_file.KIND, estimator_file.SCHEMA)
BANK, GATE, RECORD = (bank.KIND, bank.SCHEMA), (GATE_KIND, GATE_SCHEMA), ("record", 1)


@cache
def model() -> Artifact:
    return _written(small_model(thumbnails=2).write, MODEL)


@cache
def classifier() -> Artifact:
    return _written(fit_and_tune(make_problem(), preset=SMALL).save, CLASSIFIER)


@cache
def prototypes() -> Artifact:
    return fit_and_tune(make_problem(), preset=SMALL).bank_.to_artifact()


@cache
def gate() -> Artifact:
    fitted = fit(splits_of(0), BankConfig(n_prototypes=2), TuneConfig(), preset=SMALL)
    return fitted.to_artifact()


@cache
def record() -> Artifact:
    rng = np.random.default_rng(0)
    names = np.array([f"image {i}" for i in range(6)])
    rows = KeptRows(
        ids=names, groups=names, y=np.arange(6) % 3, p=rng.dirichlet(np.ones(3), 6).astype(np.float32),
        z=rng.normal(size=(6, 4)).astype(np.float32), features=rng.normal(size=(6, 5)).astype(np.float32),
    )  # fmt: skip
    kept: Artifact = Record.keep(rows, rows.rows(np.arange(2)), BankRecipe(2, 0, 0.999)).to_artifact()
    return kept


@cache
def shard() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in ("a.png", "b/c.jpg", "readme.txt"):
            member = tarfile.TarInfo(name)
            member.size = 20
            archive.addfile(member, io.BytesIO(bytes(20)))
    return data.getvalue()


@cache
def state() -> bytes:
    data = io.BytesIO()
    torch.save({"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, data)
    return data.getvalue()


def columns() -> dict[str, list[Any]]:
    """Return a listing by its columns."""
    return {name: list(column) for name, column in zip(Entry._fields, zip(*ENTRIES, strict=True), strict=True)}


@cache
def listing() -> bytes:
    return table_bytes(pa.table(columns()))


def plan() -> dict[str, Any]:
    """Return what is asked of a scoring job, as its file says it."""
    said: dict[str, Any] = json.loads(json.dumps(asdict(PLAN)))
    return {**said, "listing": fingerprint(listing())}


@st.composite
def listings(draw: st.DrawFn) -> bytes:
    """Return a Parquet file with columns of a listing, some of another type, with gaps, or missing."""
    held: dict[str, Any] = columns()
    for name in draw(st.sets(st.sampled_from(sorted(held)), max_size=2)):
        held[name] = draw(st.sampled_from([None, [1.5] * 8, [b"x"] * 8, [["a"]] * 8, [None] * 8, ["a", None] * 4]))
    return table_bytes(pa.table({name: column for name, column in held.items() if column is not None}))


@cache
def description() -> dict[str, Any]:
    """Return what a graph says of itself."""
    transform = EvalTransform(framing=Framing(height=16, width=16), size=16)
    return {
        "schema": SCHEMA, "role": "model", "class_names": list(NAMES), "transform": transform.to_dict(),
        "decision": {}, "model": "0123", "identity": {}, "precision": "float32", "files": {}, "notes": {},
    }  # fmt: skip


def graph(said: Any) -> bytes:
    """Return a small graph of ONNX with this description, sealed."""
    pixels = helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["n", 16, 16, 3])
    out = helper.make_tensor_value_info("p", TensorProto.UINT8, ["n", 16, 16, 3])
    nodes = [helper.make_node("Identity", ["pixels"], ["p"])]
    made = helper.make_model(
        helper.make_graph(nodes, "g", [pixels], [out]), opset_imports=[helper.make_opsetid("", 18)]
    )
    made.ir_version = 10
    for key, value in ((MODEL_KEY, json.dumps(said)), (SEAL_KEY, BLANK)):
        entry = made.metadata_props.add()
        entry.key, entry.value = key, value
    data: bytes = onnx.ModelProto.SerializeToString(made)
    return seal(data)


def resealed(data: bytes) -> bytes:
    """Return a damaged graph with a new seal, if it still has a place for one."""
    at = data.find(SEAL_KEY.encode())
    if at < 0:
        return data
    start = at + len(SEAL_KEY) + 2
    try:
        return seal(data[:start] + BLANK.encode() + data[start + 64 :])
    except ValueError:
        return data


ALL = (model, classifier, prototypes, gate, record, shard, state, listing, description)
