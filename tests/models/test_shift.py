"""What has shifted, by the record alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from local_models import local_folder
from tests.support import make_problem

from tdumpra.method.rows import KeptRows, no_rows
from tdumpra.models.local_rows import read_rows
from tdumpra.models.opened import OpenedModel
from tdumpra.models.shift import look, shift
from tdumpra.models.shift_words import _gap


def local(seed: int = 5, *, keep: slice = slice(None)) -> KeptRows:
    """Return test rows of another draw of the problem that the model of arrays was made for."""
    rows = make_problem(seed).test
    found = KeptRows(ids=rows.ids, groups=np.char.add("away-", rows.groups), y=rows.y, p=rows.p, z=rows.z)
    return found.rows(np.arange(len(rows.y))[keep])


def shift_of(model: OpenedModel, rows: KeptRows) -> dict[str, Any]:
    record = model.record
    return shift(look(model.decision, rows), look(model.decision, record.validation), record, model.class_names)


def own(model: OpenedModel) -> KeptRows:
    """Return rows of the same kind as the model's own."""
    rows = make_problem(0).test
    return KeptRows(ids=rows.ids, groups=rows.groups, y=rows.y, p=rows.p, z=rows.z)


def test_rows_like_the_models_own_have_not_shifted(array_model):
    found = shift_of(array_model, own(array_model))
    assert found["classes"]["p_adjusted"] > 0.05
    assert found["confidence"]["p_adjusted"] > 0.05
    assert found["familiarity"]["p_adjusted"] > 0.05
    assert abs(found["familiarity"]["chance_below"] - 0.5) < 0.1
    low, high = found["overconfidence"]["expected"]["interval"]
    assert low <= found["overconfidence"]["measured"]["gap"] <= high
    assert any("much as in training" in each for each in found["sentences"])


def test_another_mix_of_classes_is_told(array_model):
    rows = own(array_model)
    found = shift_of(array_model, rows.rows(rows.y != 0))  # the largest class is gone
    assert found["classes"]["distance"] > 0.3
    assert found["classes"]["new"]["0"] == 0
    assert found["classes"]["missing"] == ["0"]
    assert sum(found["classes"]["before"].values()) == pytest.approx(1)
    assert any("spread differently" in each and "0 is less common" in each for each in found["sentences"])


def test_without_labels_predictions_are_compared_with_those_on_validation(array_model):
    rows = own(array_model)
    found = shift_of(array_model, replace(rows, y=np.full(len(rows), -1)))
    assert (found["classes"]["of"], found["classes"]["reference"]) == ("predictions", "validation")
    assert found["overconfidence"]["measured"] is None
    assert found["overconfidence"]["expected"] is not None


def test_embeddings_from_elsewhere_are_less_familiar(array_model):
    rows = own(array_model)
    noise = np.random.default_rng(0).normal(size=rows.z.shape).astype(np.float32)
    found = shift_of(array_model, replace(rows, z=noise))["familiarity"]
    assert found["chance_below"] > 0.8
    assert found["unlike"] > 0.2
    assert found["p_adjusted"] < 0.001


def test_a_classifier_that_is_too_sure_is_measured(array_model):
    rows = own(array_model)
    sure = rows.p**6 / (rows.p**6).sum(1, keepdims=True)
    found = shift_of(array_model, replace(rows, p=sure))
    assert found["confidence"]["chance_below"] < 0.3
    assert found["overconfidence"]["measured"]["gap"] > 0.1
    assert any("measured" in each and "too high by" in each for each in found["sentences"])


def test_colours_outside_of_training_are_told(image_model, tmp_path):
    near = read_rows(image_model, f"folder:{local_folder(tmp_path / 'near', [i % 3 for i in range(40)])}").rows
    dark = read_rows(
        image_model, f"folder:{local_folder(tmp_path / 'dark', [i % 3 for i in range(40)], start=7000, darker=50)}"
    ).rows
    as_before, darker = (shift_of(image_model, rows) for rows in (near, dark))
    assert as_before["colours"]["outside"] < 0.15
    assert darker["colours"]["outside"] > 0.9
    assert darker["colours"]["channels"]["mean of red"]["chance_below"] > 0.6
    assert any("outside of what training saw" in each for each in darker["sentences"])
    assert any("are those that training saw" in each or "have shifted" in each for each in as_before["sentences"])


def test_few_rows_and_no_validation_rows_are_said(array_model):
    rows, record = own(array_model).rows(np.arange(4)), array_model.record
    bare = replace(record, validation=no_rows(4, 8))
    seen = look(array_model.decision, rows)
    found = shift(seen, look(array_model.decision, bare.validation), bare, array_model.class_names)
    assert found["overconfidence"]["expected"] is None
    assert np.isnan(found["confidence"]["p_adjusted"])
    assert any("no validation rows" in each for each in found["sentences"])
    assert any("groups: whether anything has shifted" in each for each in found["sentences"])
    assert any("colours cannot be compared" in each for each in found["sentences"])


@pytest.mark.parametrize(
    ("gap", "interval", "words"),
    [
        (0.02, (-0.05, 0.08), "about right"),
        (0.02, (-0.3, 0.25), "cannot tell"),
        (-0.2, (-0.3, -0.1), "too low by 0.20"),
    ],
)
def test_confidence_is_called_right_only_where_the_interval_is_narrow(gap, interval, words):
    assert words in _gap({"gap": gap, "interval": interval})
