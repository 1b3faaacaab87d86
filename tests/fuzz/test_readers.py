"""Bytes of any kind for every reader of files that a stranger may have made, and a corpus of files that once failed."""

from __future__ import annotations

import ast
import io
import json
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.campaigns.record import attempts, refusal
from tests.fuzz import sound_files
from tests.fuzz.sound_files import (
    BANK,
    CLASSIFIER,
    ENTRIES,
    GATE,
    MODEL,
    PLAN,
    RECORD,
    damaged,
    resealed,
    sealed,
    sealed_document,
    spoilt,
    spoilt_artifact,
    values,
)
from tests.support import splits_of
from tests.test_trust_boundary import TREES

from tdumpra import DualPathClassifier, PrototypeBank, errors, seals
from tdumpra.artifacts import fingerprint, read_artifact, read_json, read_meta, write_json
from tdumpra.data.images.decode import decode_file, decode_mask
from tdumpra.data.images.identity import KnownFiles
from tdumpra.data.sources import open_source
from tdumpra.data.splits import Split
from tdumpra.estimator_file import read_made_from
from tdumpra.foreign import open_npz, reading
from tdumpra.integrations import mlflow
from tdumpra.method.decision import Decision
from tdumpra.method.output_files import read_outputs
from tdumpra.method.record import Record
from tdumpra.models.card import card_of
from tdumpra.models.opened import open_model
from tdumpra.networks.checkpoint import TrainingFiles, is_finished, read_networks
from tdumpra.networks.model_file import Model
from tdumpra.networks.weights import read_state
from tdumpra.report import material
from tdumpra.runs import table_stages
from tdumpra.runs.config import Config, read_config
from tdumpra.runs.documents import with_metadata
from tdumpra.runs.folder import refuse_results_of_another
from tdumpra.runs.steps import read_document
from tdumpra.runs.tables import OutputsTable
from tdumpra.runtime.exported import read_exported
from tdumpra.runtime.sessions import open_session
from tdumpra.scoring.folder import ScoreFolder
from tdumpra.scoring.listing import list_source
from tdumpra.tuning.fit import Fitted

CORPUS = Path(__file__).parents[1] / "corpus"
Reader = Callable[[Path], Any]


def read_archive(path: Path) -> Any:
    with open_npz(path) as archive:
        return archive.load(list(archive.headers))


def read_split(path: Path) -> Any:
    return Split.read(path, open_source("synthetic:n=14,size=16"))


def read_medmnist(path: Path) -> Any:
    return open_source(f"medmnist:{path}")


def read_decision(path: Path) -> Any:
    return Decision.from_artifact(read_artifact(path, kind=CLASSIFIER[0], schema=CLASSIFIER[1]))


def read_gate(path: Path) -> Any:
    """Read a gate where it is used, and where it is shown."""
    found = table_stages._kept(path, *GATE, "inputs", Fitted.from_artifact)  # one that makes no sense is none
    with reading(path, "tdumpra gate", errors.ArtifactError):
        return found, Fitted.from_artifact(read_artifact(path, kind=GATE[0], schema=GATE[1]))


def read_record(path: Path) -> Any:
    return Record.from_artifact(read_artifact(path, kind=RECORD[0], schema=RECORD[1]), n_classes=3, width=4)


def read_known_files(path: Path) -> Any:
    return KnownFiles(path).digest(path)


def read_metadata(path: Path) -> Any:
    return with_metadata(splits_of(0), path, ("sex",))


def read_notes(path: Path) -> Any:
    return material._split_notes(path, Config())


def read_run(path: Path) -> Any:
    """Ask whose results lie in a folder, and take the figures that go to MLflow."""
    path.rename(path.with_name("evaluation.json"))
    refuse_results_of_another(Config(name="mine"), path.parent)
    return dict(mlflow._figures(read_document(path.with_name("evaluation.json"), "evaluation")))


def read_plan(path: Path) -> Any:
    job = path.parent / "job"
    if not job.exists():
        ScoreFolder.join(job, PLAN, lambda: ENTRIES)
    path.replace(job / "plan.json")
    return ScoreFolder.open(job).check()


def read_listing(path: Path) -> Any:
    job = path.parent / "job"
    job.mkdir(exist_ok=True)
    listed = fingerprint(path.read_bytes())
    path.replace(job / "listing.parquet")
    write_json(job / "plan.json", kind="scoring", schema=1, content={**asdict(PLAN), "listing": listed})
    (job / "parts").mkdir(exist_ok=True)
    return ScoreFolder.open(job).check()


def read_graphs(path: Path) -> Any:
    """Open a graph in an engine too, and run it."""
    graphs = read_exported(path)
    return open_session(graphs[0], "onnx", 1)(pixels=np.zeros((1, 16, 16, 3), np.uint8))


# --- strategies: any bytes, and sealed files that hold any values

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
    return st.builds(lambda held, meta: sealed((kind, schema), held, meta), tensors, tables | values)


def sealed_json(kind: str) -> st.SearchStrategy[bytes]:
    return st.builds(lambda content: sealed_document(kind, content), tables)


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
log_lines = st.lists(
    st.dictionaries(st.sampled_from(["step", "epoch", "loss", "cross_entropy", "validation"]), values), max_size=3
).map(lambda rows: "\n".join(map(json.dumps, rows)).encode())
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
    "artifacts.py": [
        ("a", lambda path: read_json(path, kind="a", schema=1), any_bytes | sealed_json("a")),
        ("a", lambda path: read_meta(path, kind="a", schema=1), any_bytes | sealed_artifact("a", 1)),
    ],
    "seals.py": [
        ("k", seals.read_key, any_bytes),
        ("f", lambda path: seals.verify_file(path.with_name("k"), bytes(32)), any_bytes),
    ],
    "method/bank.py": [
        ("b", PrototypeBank.load, sealed_artifact(*BANK) | any_bytes),
        ("b", PrototypeBank.load, spoilt_artifact(BANK, sound_files.prototypes)),
    ],
    "estimator_file.py": [
        ("c", DualPathClassifier.load, sealed_artifact(*CLASSIFIER) | any_bytes),
        ("c", DualPathClassifier.load, spoilt_artifact(CLASSIFIER, sound_files.classifier)),
        ("c", read_made_from, sealed_artifact(*CLASSIFIER) | spoilt_artifact(CLASSIFIER, sound_files.classifier)),
    ],
    "networks/model_file.py": [
        ("m", Model.read, sealed_artifact(*MODEL) | any_bytes),
        ("m", Model.read, spoilt_artifact(MODEL, sound_files.model)),
    ],
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
    "method/decision.py": [("c", read_decision, spoilt_artifact(CLASSIFIER, sound_files.classifier))],
    "method/record.py": [("r", read_record, spoilt_artifact(RECORD, sound_files.record))],
    "runs/table_stages.py": [("g", read_gate, spoilt_artifact(GATE, sound_files.gate))],
    "models/card.py": [
        ("m", lambda path: card_of(open_model(path), "name"), spoilt_artifact(MODEL, sound_files.model)),
        ("c", lambda path: card_of(open_model(path), "name"), spoilt_artifact(CLASSIFIER, sound_files.classifier)),
    ],
    "report/material.py": [("s.json", read_notes, sealed_json("split") | any_bytes)],
    "runs/folder.py": [("e", read_run, sealed_json("evaluation") | any_bytes)],
    "integrations/mlflow.py": [
        ("metrics.jsonl", lambda path: list(mlflow._curves(path.parent)), any_bytes | texts | log_lines),
    ],
    "data/images/identity.py": [
        ("files.json", read_known_files, values.map(lambda said: sealed_document("known files", {"files": said}))),
    ],
    "runs/documents.py": [("m.csv", read_metadata, csv_bytes | any_bytes.map(lambda data: b"id,sex\n" + data))],
    "scoring/folder.py": [
        ("plan.json", read_plan, spoilt(sound_files.plan).map(partial(sealed_document, "scoring"))),
        ("listing.parquet", read_listing, sound_files.listings() | damaged(lambda: sound_files.listing())),
    ],
    "scoring/listing.py": [
        ("s.tar", lambda path: list_source(str(path)), damaged(sound_files.shard) | any_bytes),
        ("t.parquet", lambda path: list_source(str(path)), sound_files.listings() | any_bytes),
        ("t.csv", lambda path: list_source(str(path)), csv_bytes),
    ],
    "runtime/exported.py": [
        ("m.onnx", read_exported, spoilt(sound_files.description).map(sound_files.graph) | any_bytes),
        ("m.xml", read_exported, any_bytes.map(lambda data: b'<tdumpra_model value="' + data + b'"')),
    ],
    "runtime/sessions.py": [
        ("m.onnx", read_graphs, damaged(lambda: sound_files.graph(sound_files.description())).map(resealed)),
    ],
    "networks/weights.py": [
        ("w.pth", read_state, damaged(sound_files.state) | any_bytes),
        ("w.safetensors", read_state, damaged(lambda: sealed(RECORD, {"a": torch.ones(3)}, {})) | any_bytes),
    ],
}  # fmt: skip
ELSEWHERE = {
    "estimator.py": "its load is what the strategies of estimator_file.py call",
    "report/qualitative.py": "opens the picture that it wrote in the line before",
    "cli/validate.py": "takes two digests out of what artifacts.py reads (tests/cli/test_validate.py)",
}
OPENING = {"reading", "open_npz", "read_artifact", "read_json", "read_table", "read_frame", "Image.open", "torch.load"}


def opens_files(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) in OPENING for node in ast.walk(tree))


def test_every_module_that_opens_strangers_files_has_a_strategy():
    known = {*READERS, *ELSEWHERE}
    covered_by_source = {path for path in TREES if path.startswith("data/sources/")}  # all read by data/sources/tables
    found = {path for path, tree in TREES.items() if opens_files(tree)} - covered_by_source
    assert found - known == set(), "a reader without a strategy: add it to READERS"


@pytest.fixture(scope="module", autouse=True)
def _made_beforehand() -> None:
    """Strategies must not draw from other generators, as making these files does."""
    for make in sound_files.ALL:
        make()


CASES = [(module, *case) for module, cases in READERS.items() for case in cases]


@pytest.mark.parametrize(("module", "name", "read", "content"), CASES, ids=[f"{m}-{n}" for m, n, *_ in CASES])
@attempts(25, 5000)
def test_any_bytes_are_read_or_refused_in_a_sentence(tmp_path, module, name, read, content, attempts):
    path = tmp_path / name
    (tmp_path / "k").write_bytes(b"sealed")
    target = tmp_path / "k.seal" if module == "seals.py" and name == "f" else path

    @settings(max_examples=attempts, suppress_health_check=list(HealthCheck))
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
    ".outputs": OutputsTable.read, ".checkpoint": read_networks, ".onnx": read_exported,
    ".tar": lambda path: list_source(str(path)),
}  # fmt: skip
EXPECTED: dict[str, str] = json.loads((CORPUS / "expected.json").read_text(encoding="utf-8"))


def test_the_corpus_is_whole():
    assert {path.name for path in CORPUS.iterdir()} - {"expected.json", "README.md"} == EXPECTED.keys()
    assert all(kind == "read" or issubclass(getattr(errors, kind, ValueError), Exception) for kind in EXPECTED.values())


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_that_once_failed_is_told_in_a_sentence(name):
    path = CORPUS / name
    assert outcome(READERS_OF_CORPUS[path.suffix], path) == EXPECTED[name]
