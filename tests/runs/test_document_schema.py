"""Sealed documents that make no sense are made again where they can be, and refused where they are only shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import save_problem

from tdumpra.artifacts import read_artifact, read_json, write_artifact, write_json
from tdumpra.errors import ArtifactError
from tdumpra.method.bank import KIND as BANK_KIND
from tdumpra.method.bank import SCHEMA as BANK_SCHEMA
from tdumpra.runs.attach import attach_config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.outputs import Outputs, all_outputs
from tdumpra.runs.steps import read_document
from tdumpra.runs.table_stages import evaluate_step, tune_step

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Outputs:
    root = tmp_path_factory.mktemp("run")
    (found,) = all_outputs(attach_config(save_problem(root / "o.npz"), root / "out", {}, {"preset": "paper"}))
    evaluate_step(found).result()
    return found


def put(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in keys[:-1]:
            content = content[key]
        assert keys[-1] in content
        content[keys[-1]] = value

    return change


SENSELESS = [
    ("evaluation", put("rows", value=7)),
    ("evaluation", put("rows", "test", value=-1)),
    ("evaluation", put("comparators", value={})),
    ("evaluation", put("comparators", "gate", value=[])),
    ("evaluation", put("comparators", "gate", "accuracy", value="high")),
    ("evaluation", put("gate", "mcnemar_p", value=3)),
    ("evaluation", put("intervals", value={"gate": {}})),
    ("evaluation", put("notes", value=[1])),
    ("evaluation", put("seeds", value=["one"])),
    ("evaluation", put("selective", "gate", value=None)),
    ("compared", put("gained", value=[])),
    ("compared", put("compared", "replicates", "gate", "accuracy", value="0.5")),
    ("gate", put("decision", value=None)),
    ("gate", put("cases", "by_class", value=[-3])),
    ("gate", put("best", "objective", value="much")),
]  # fmt: skip


def place(outputs: Outputs, kind: str) -> Path:
    folder = RunFolder(outputs.place)
    return {"evaluation": folder.evaluation, "compared": folder.compared, "gate": folder.gate_document}[kind]


@pytest.mark.parametrize(("kind", "change"), SENSELESS)
def test_a_document_that_makes_no_sense_is_noticed(outputs, kind, change):
    path = place(outputs, kind)
    sound = path.read_bytes()
    content = read_json(path, kind=kind, schema=1)
    change(content)
    write_json(path, kind=kind, schema=1, content=content)
    try:
        with pytest.raises(ArtifactError) as error:
            read_document(path, kind)
        assert str(path) in str(error.value)
        assert evaluate_step(outputs).kept() is None
    finally:
        path.write_bytes(sound)
    assert evaluate_step(outputs).kept() is not None


def test_a_gate_that_makes_no_sense_is_made_again(outputs):
    path = RunFolder(outputs.place).gate
    sound = path.read_bytes()
    tensors, meta = read_artifact(path, kind="gate", schema=1)
    write_artifact(path, kind="gate", schema=1, tensors=tensors, meta={"made_from": meta["made_from"]})
    assert tune_step(outputs).kept() is None
    tune_step(outputs).result()
    assert path.read_bytes() == sound


def test_a_bank_of_another_run_is_made_again(outputs):
    path = RunFolder(outputs.place).bank
    sound = path.read_bytes()
    tensors, meta = read_artifact(path, kind=BANK_KIND, schema=BANK_SCHEMA)
    write_artifact(path, kind=BANK_KIND, schema=BANK_SCHEMA, tensors=tensors, meta={**meta, "made_from": "another"})
    evaluate_step(outputs).result()
    assert path.read_bytes() == sound
