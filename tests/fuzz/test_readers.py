"""Bytes of any kind for every reader of files that a stranger may have made, and a corpus of files that once failed."""

from __future__ import annotations

import ast
import io
import json
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.campaigns.record import refusal
from tests.test_trust_boundary import TREES

from tdumpra import DualPathClassifier, PrototypeBank, artifacts, errors, seals
from tdumpra.artifacts import read_json
from tdumpra.data.images.decode import decode_file, decode_mask
from tdumpra.data.sources import open_source
from tdumpra.data.splits import Split
from tdumpra.foreign import open_npz
from tdumpra.method.output_files import read_outputs
from tdumpra.networks.checkpoint import TrainingFiles, is_finished, read_networks
from tdumpra.networks.model_file import Model
from tdumpra.runs.config import read_config
from tdumpra.runs.steps import read_document
from tdumpra.runs.tables import OutputsTable

CORPUS = Path(__file__).parents[1] / "corpus"
Reader = Callable[[Path], Any]


def read_archive(path: Path) -> Any:
    with open_npz(path) as archive:
        return archive.load(list(archive.headers))


def read_split(path: Path) -> Any:
    return Split.read(path, open_source("synthetic:n=14,size=16"))


def read_medmnist(path: Path) -> Any:
    return open_source(f"medmnist:{path}")


# --- strategies: any bytes, and sealed files that hold any values

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
NAMES = (
    "identity", "progress", "ids", "groups", "class_names", "metadata", "made", "decision", "bank", "encoders",
    "merged", "exemplars", "params", "certificate", "estimate", "train", "val", "test", "source", "protocol", "seed",
    "notes", "rows", "comparators", "gate", "gained", "compared", "tuning", "undefined", "version",
    "made_from", "sentence",
)  # fmt: skip
tables = st.dictionaries(st.sampled_from(NAMES), values, max_size=8)
tensors = st.dictionaries(
    st.sampled_from(["labels", "logits", "z_student", "prototypes", "mask", "weight", "prior", "decision.prototypes"]),
    st.sampled_from([torch.zeros(0), torch.ones(2, 3), torch.tensor(1.0), torch.ones(2, dtype=torch.int64)]),
    min_size=1, max_size=4,
)  # fmt: skip


def sealed_artifact(kind: str, schema: int) -> st.SearchStrategy[bytes]:
    def seal(held: dict[str, torch.Tensor], meta: Any) -> bytes:
        header = {"kind": kind, "schema": str(schema), "checksum": "0" * 64, "meta": json.dumps(meta)}
        return artifacts._seal(safetensors.torch.save({name: each.clone() for name, each in held.items()}, header))

    return st.builds(seal, tensors, tables | values)


def sealed_json(kind: str) -> st.SearchStrategy[bytes]:
    def seal(content: dict[str, Any]) -> bytes:
        return artifacts._seal(json.dumps({"kind": kind, "schema": 1, "checksum": "0" * 64, **content}).encode())

    return st.builds(seal, tables)


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in draw(st.sets(st.sampled_from(["p", "y", "z", "split", "train_images", "train_labels"]))):
            member = io.BytesIO()
            shape = draw(st.lists(st.integers(0, 4), max_size=3))
            np.save(member, np.zeros(shape, draw(st.sampled_from(["f8", "i4", "U2", "b1", "c8"]))), allow_pickle=False)
            archive.writestr(f"{name}.npy", member.getvalue()[: draw(st.integers(0, 400))])
    return data.getvalue()


texts = st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))
lines = st.lists(st.lists(st.text(max_size=4), max_size=4).map(",".join), max_size=5).map("\n".join)
any_bytes = st.binary(max_size=80)
csv_bytes = any_bytes | texts | lines.map(lambda text: ("image,label,group\n" + text).encode("utf-8", "replace"))
toml_bytes = (
    any_bytes
    | texts
    | st.dictionaries(st.sampled_from(["name", "seeds", "data"]), values, max_size=3).map(
        lambda table: "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items()).encode()
    )
)
magic = st.sampled_from(
    [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"II*\0", b"RIFF\0\0\0\0WEBP", b"BM", b""]
)
image_bytes = st.builds(lambda start, rest: start + rest, magic, st.binary(min_size=1, max_size=200))

# by module that opens strangers' files: the file's name, the reader, and what is in the file
READERS: dict[str, list[tuple[str, Reader, st.SearchStrategy[bytes]]]] = {
    "foreign.py": [("a.npz", read_archive, any_bytes | archives())],
    "method/output_files.py": [
        ("o.npz", read_outputs, any_bytes | archives()), ("o.csv", read_outputs, csv_bytes),
        ("o.parquet", read_outputs, any_bytes.map(lambda data: b"PAR1" + data + b"PAR1")),
    ],
    "data/sources/tables.py": [("t.csv", lambda path: open_source(f"csv:{path}"), csv_bytes)],
    "data/sources/csv_file.py": [("t.csv", lambda path: open_source(f"csv:{path}"), csv_bytes)],
    "data/sources/medmnist.py": [("m.npz", read_medmnist, any_bytes | archives())],
    "data/images/decode.py": [("i.png", decode_file, image_bytes), ("m.png", decode_mask, image_bytes)],
    "data/images/dicom.py": [("i.dcm", decode_file, any_bytes.map(lambda data: bytes(128) + b"DICM" + data))],
    "artifacts.py": [("a", lambda path: read_json(path, kind="a", schema=1), any_bytes | sealed_json("a"))],
    "seals.py": [
        ("k", seals.read_key, any_bytes),
        ("f", lambda path: seals.verify_file(path.with_name("k"), bytes(32)), any_bytes),
    ],
    "method/bank.py": [("b", PrototypeBank.load, sealed_artifact("bank", 2) | any_bytes)],
    "estimator.py": [("c", DualPathClassifier.load, sealed_artifact("dual-path classifier", 1) | any_bytes)],
    "networks/model_file.py": [("m", Model.read, sealed_artifact("model", 3) | any_bytes)],
    "networks/checkpoint.py": [
        ("c", read_networks, sealed_artifact("checkpoint", 1) | any_bytes),
        ("c", is_finished, sealed_artifact("checkpoint", 1)),
        ("metrics.jsonl", lambda path: TrainingFiles(path.parent).read_metrics(), any_bytes | texts),
    ],
    "data/splits.py": [("s.json", read_split, sealed_json("split") | any_bytes)],
    "runs/tables.py": [("t", OutputsTable.read, sealed_artifact("outputs table", 1) | any_bytes)],
    "runs/steps.py": [
        ("d.json", partial(read_document, kind=kind), sealed_json(kind))
        for kind in ("evaluation", "compared", "gate")
    ],
    "toml.py": [("c.toml", read_config, toml_bytes)],
}  # fmt: skip
ELSEWHERE = {
    "method/decision.py": "is part of a model, a gate or a classifier",
    "runs/table_stages.py": "gates: damaged and senseless ones are made again (tests/runs/test_document_schema.py)",
    "report/material.py": "reads what runs/steps.py and data/splits.py read",
    "runs/attach.py": "reads what runs/steps.py reads",
    "runs/folder.py": "takes the name alone out of what artifacts.py reads",
    "data/images/identity.py": "its own list of digests, sealed; a damaged one counts as none (tests/campaigns)",
    "integrations/mlflow.py": "reads what artifacts.py reads (tests/integrations/test_mlflow.py)",
    "cli/validate.py": "takes two digests out of what artifacts.py reads (tests/cli/test_validate.py)",
    "method/record.py": "is part of a model (tests/method/test_record.py)",
    "models/card.py": "is part of a model, which networks/model_file.py or estimator.py reads",
    "runtime/exported.py": "graphs of ONNX and OpenVINO (tests/runtime/test_exported.py)",
    "runtime/sessions.py": "runs what runtime/exported.py reads",
    "scoring/folder.py": "a job's own plan and parts (tests/scoring/test_folder.py)",
    "scoring/listing.py": "addresses and shards (tests/scoring/test_listing.py)",
    "runs/documents.py": "tables of further columns, by data/sources/tables.py",
    "report/qualitative.py": "a picture that was drawn a moment before",
    "networks/weights.py": "weights that a configuration names (tests/networks/test_weights.py)",
}
OPENING = {"reading", "open_npz", "read_artifact", "read_json", "read_table", "read_frame", "Image.open", "torch.load"}


def opens_files(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) in OPENING for node in ast.walk(tree))


def test_every_module_that_opens_strangers_files_has_a_strategy():
    known = {*READERS, *ELSEWHERE}
    covered_by_source = {path for path in TREES if path.startswith("data/sources/")}  # all read by data/sources/tables
    found = {path for path, tree in TREES.items() if opens_files(tree)} - covered_by_source
    assert found - known == set(), "a reader without a strategy: add it to READERS"


CASES = [(module, *case) for module, cases in READERS.items() for case in cases]


@pytest.mark.parametrize(("module", "name", "read", "content"), CASES, ids=[f"{m}-{n}" for m, n, *_ in CASES])
def test_any_bytes_are_read_or_refused_in_a_sentence(tmp_path, module, name, read, content):
    path = tmp_path / name
    (tmp_path / "k").write_bytes(b"sealed")
    target = tmp_path / "k.seal" if module == "seals.py" and name == "f" else path

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(data=content)
    def attempt(data: bytes) -> None:
        target.write_bytes(data)
        outcome(read, path)

    attempt()


def outcome(read: Reader, path: Path) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
    except Exception as error:
        found, detail = refusal(error)
        assert found == "refused", detail
        return type(error).__name__
    return "read"


# --- files that once failed

READERS_OF_CORPUS: dict[str, Reader] = {
    ".npz": read_outputs, ".csv": read_outputs, ".parquet": read_outputs, ".toml": read_config, ".png": decode_file,
    ".jpg": decode_file, ".tif": decode_file, ".dcm": decode_file, ".safetensors": Model.read,
    ".jsonl": lambda path: TrainingFiles(path.parent).read_metrics(),
    ".evaluation": lambda path: read_document(path, "evaluation"),
    ".outputs": OutputsTable.read, ".checkpoint": read_networks,
}  # fmt: skip
EXPECTED: dict[str, str] = json.loads((CORPUS / "expected.json").read_text(encoding="utf-8"))


def test_the_corpus_is_whole():
    assert {path.name for path in CORPUS.iterdir()} - {"expected.json", "README.md"} == EXPECTED.keys()
    assert all(kind == "read" or issubclass(getattr(errors, kind, ValueError), Exception) for kind in EXPECTED.values())


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_that_once_failed_is_told_in_a_sentence(name):
    path = CORPUS / name
    assert outcome(READERS_OF_CORPUS[path.suffix], path) == EXPECTED[name]
