"""A model on data from elsewhere: the figures are those of an evaluation, and floors are held against them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import array_models
import numpy as np
import pytest
from local_models import local_arrays
from tests.support import make_problem

from tdumpra.artifacts import read_json, write_json
from tdumpra.core.metrics import classification_metrics
from tdumpra.errors import TdumpraError
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.models.bank import add
from tdumpra.models.local_rows import LocalRows, read_rows
from tdumpra.models.opened import OpenedModel, open_model
from tdumpra.models.validate import KIND, SCHEMA, Floor, failures, parse_floors, validate

QUICK = EvaluateConfig(bootstrap=50)


@pytest.fixture
def rows(array_model, tmp_path) -> LocalRows:
    sex = np.where(np.arange(160) % 2, "female", "male")
    path = local_arrays(tmp_path / "away.npz", sex=sex, age=np.arange(160), name=np.char.add("n", sex))
    return read_rows(array_model, str(path))


def some(local: LocalRows, keep: np.ndarray) -> LocalRows:
    return local._replace(
        rows=local.rows.rows(keep), metadata={name: column[keep] for name, column in local.metadata.items()}
    )


def test_figures_are_those_of_the_labelled_rows(array_model, rows):
    y = rows.rows.y.copy()
    y[::4] = -1
    found = validate(array_model, rows._replace(rows=replace(rows.rows, y=y)), "away.npz", settings=QUICK)
    problem, known = make_problem(5).test, np.arange(160) % 4 != 0
    p = array_model.content.predict_proba(problem.p, problem.z)[known]
    expected = classification_metrics(p.astype(np.float64), problem.y[known])
    for metric in ("accuracy", "balanced_accuracy", "macro_auroc"):
        assert found["evaluation"]["comparators"]["gate"][metric] == pytest.approx(expected[metric], abs=1e-6)
    assert found["source"] == {
        **found["source"], "rows": 160, "labelled": 120, "name": "away.npz", "grouped": True,
    }  # fmt: skip
    low, high = found["evaluation"]["intervals"]["gate"]["accuracy"]
    assert low <= expected["accuracy"] <= high
    assert set(found["evaluation"]["subgroups"]) == {"sex", "age"} | ({"name"} & set(found["evaluation"]["subgroups"]))
    assert found["model"]["sha256"] == array_model.digest
    assert {"operating_points", "calibration", "per_class", "gate", "selective"} <= found["evaluation"].keys()


def test_at_home_stand_the_models_own_validation_rows(array_model, rows):
    validation = make_problem(0).val
    p = array_model.content.predict_proba(validation.p, validation.z).astype(np.float64)
    expected = classification_metrics(p, validation.y)
    found = validate(array_model, rows, "away.npz", settings=QUICK)["at_home"]
    assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)


def test_the_document_can_be_written_and_read(array_model, rows, tmp_path):
    found = validate(array_model, rows, "away.npz", settings=QUICK)
    write_json(tmp_path / "validation.json", kind=KIND, schema=SCHEMA, content=found)
    again = read_json(tmp_path / "validation.json", kind=KIND, schema=SCHEMA)
    assert again["sentences"] == found["sentences"]


def test_unlabelled_rows_get_the_shift_alone(array_model, rows):
    bare = rows._replace(rows=replace(rows.rows, y=np.full(160, -1)))
    found = validate(array_model, bare, "away.npz", settings=QUICK)
    assert found["evaluation"] is None
    assert found["shift"]["overconfidence"]["expected"] is not None
    assert "none of the 160 rows has a label" in found["sentences"][0]
    with pytest.raises(TdumpraError, match="no labels"):
        validate(array_model, bare, "away.npz", floors=[Floor("accuracy", 0.5)])


def test_of_one_class_some_figures_are_undefined(array_model, rows):
    one = some(rows, rows.rows.y == 1)
    floors = [Floor("macro_auroc", 0.5), Floor("accuracy", 0.0)]
    found = validate(array_model, one, "away.npz", floors=floors, settings=QUICK)
    assert math.isnan(found["evaluation"]["comparators"]["gate"]["macro_auroc"])
    assert not math.isnan(found["evaluation"]["comparators"]["gate"]["accuracy"])
    assert found["shift"]["classes"]["missing"] == ["0", "2", "3"]
    assert any("macro_auroc" in each["where"] for each in found["evaluation"]["undefined"])
    assert failures(found) == ["AUROC is undefined on these rows, and --fail-under asks for 0.5"]
    assert "balanced accuracy" not in found["sentences"][0]
    assert found["sentences"][1].startswith("all labelled rows are 1")


def test_floors_are_held_against_the_gate(array_model, rows):
    accuracy = validate(array_model, rows, "a", settings=QUICK)["evaluation"]["comparators"]["gate"]["accuracy"]
    at, above = Floor("accuracy", accuracy), Floor("accuracy", accuracy + 0.01)
    assert failures(validate(array_model, rows, "a", floors=[at], settings=QUICK)) == []
    (said,) = failures(validate(array_model, rows, "a", floors=[at, above], settings=QUICK))
    assert f"accuracy is {accuracy:.4f}" in said


def test_floors_are_parsed():
    assert parse_floors(["balanced_accuracy=0.7", " accuracy = 1 "]) == (
        Floor("balanced_accuracy", 0.7),
        Floor("accuracy", 1.0),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("balanced_acuracy=0.7", "did you mean 'balanced_accuracy'"),
        ("ece=0.1", "less is better"),
        ("accuracy", "METRIC=VALUE"),
        ("accuracy=high", "METRIC=VALUE"),
        ("accuracy=70", "between 0 and 1"),
        ("accuracy=nan", "between 0 and 1"),
    ],
)
def test_what_is_no_floor_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        parse_floors([text])


def test_a_cross_fitted_bank_is_tried_without_validation_rows(array_model, rows):
    """At home, validation rows must not meet a bank that holds them."""
    content = array_model.content
    record = replace(array_model.record, bank=array_model.record.bank._replace(with_validation=True))
    bank = record.rebuild_bank(array_model.class_names)
    tuning = replace(content.tuning_, decision=replace(content.decision_, bank=bank))
    other = type(content).from_fitted(content.fitted_._replace(tuning=tuning), None)
    other.record_ = record
    crossed = validate(OpenedModel(array_model.path, "", other), rows, "a", settings=QUICK)
    apart = validate(array_model, rows, "a", settings=QUICK)
    assert crossed["at_home"] == pytest.approx(apart["at_home"])


@pytest.fixture
def with_new_class(tmp_path) -> tuple[OpenedModel, LocalRows]:
    """A model whose bank knows a class that its classifier does not, and labelled rows of all classes."""
    model = open_model(array_models.array_model(tmp_path))
    names = (*array_models.CLASSES, "dun")
    grown: Any = add(model, array_models.local_rows([3] * 8, "added", seed=4), names, "here").content
    grown.save(tmp_path / "grown.safetensors")
    fresh = array_models.local_rows([0, 1, 2, 3] * 5, "fresh", seed=9)
    source = array_models.write_outputs(tmp_path / "fresh.npz", fresh, names)
    opened = open_model(tmp_path / "grown.safetensors")
    return opened, read_rows(opened, str(source))


def test_a_class_that_the_bank_alone_knows_is_scored(with_new_class):
    model, local = with_new_class
    found = validate(model, local, "fresh.npz", settings=QUICK)
    assert found["source"]["classes"]["dun"] == 10
    p = model.content.predict_proba(local.rows.p, local.rows.z)
    expected = classification_metrics(p.astype(np.float64), local.rows.y)
    gate = found["evaluation"]["comparators"]["gate"]
    assert gate["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)
    assert gate["balanced_accuracy"] == pytest.approx(expected["balanced_accuracy"], abs=1e-6)
    # the classifier alone never says it, and the gate does
    assert found["evaluation"]["comparators"]["student"]["balanced_accuracy"] < gate["balanced_accuracy"]
    assert "dun" in found["shift"]["classes"]["new"]


def test_copies_count_as_one_group(array_model, rows):
    twice = rows.rows.joined(
        replace(rows.rows, ids=np.char.add("b", rows.rows.ids), groups=np.char.add("b", rows.rows.groups))
    )
    both = LocalRows(twice, {}, (), "1", array_model.class_names)
    once, again = (validate(array_model, each, "a", settings=QUICK) for each in (rows, both))
    assert again["source"]["groups"] == once["source"]["groups"]
    intervals = [each["evaluation"]["intervals"]["gate"]["accuracy"] for each in (once, again)]
    assert intervals[1] == pytest.approx(intervals[0])  # copies tell nothing new
    bare = replace(twice, groups=twice.ids, grouped=False)
    alone = validate(array_model, both._replace(rows=bare), "a", settings=QUICK)
    assert alone["source"]["groups"] == 160
    assert alone["evaluation"]["grouped"]
