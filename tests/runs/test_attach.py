from __future__ import annotations

import json

import numpy as np
import pytest
from demo_arrays import demo_outputs, write_demo
from tests.support import without_training_rows

from tdumpra import DualPathClassifier
from tdumpra.errors import ArtifactError, InputFileError
from tdumpra.runs.attach import attach

METRICS = {"accuracy", "macro_f1", "balanced_accuracy", "macro_auroc", "ece", "nll", "brier"}
GATE = {"n", "opened", "flipped", "fixed", "broken", "mcnemar_p", "harm_upper", "guarantees_similarity", "thresholds"}


@pytest.fixture(scope="module")
def demo_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "outputs.npz"
    write_demo(path)
    return path


@pytest.fixture(scope="module")
def attached(demo_file, tmp_path_factory):
    return attach(demo_file, tmp_path_factory.mktemp("attached"), DualPathClassifier())


def test_what_scripts_rely_on_is_in_the_evaluation(attached):
    evaluation = json.loads((attached.folder / "evaluation.json").read_text())
    expected = {"student", "temperature", "logit_adjusted", "knn", "similarity", "average", "gate", "oracle"}
    assert expected <= set(evaluation["comparators"])
    assert "teacher" not in evaluation["comparators"]  # none was given
    assert all(set(scores) >= METRICS for scores in evaluation["comparators"].values())
    assert set(evaluation["gate"]) >= GATE
    assert evaluation["gate"]["n"] == evaluation["rows"]["test"]


def test_the_model_predicts_what_was_scored(attached, demo_file):
    arrays = np.load(demo_file)
    test = arrays["split"] == 2
    p = arrays["p"][test].astype(np.float64)
    model = DualPathClassifier.load(attached.folder / "model.safetensors")
    labels = model.predict(p / p.sum(1, keepdims=True), arrays["z"][test])
    accuracy = (labels == arrays["y"][test]).mean()
    assert accuracy == pytest.approx(attached.evaluation["comparators"]["gate"]["accuracy"], abs=1e-12)


def test_the_demo_shows_a_real_effect(attached):
    gate = attached.evaluation["gate"]
    assert gate["fixed"] > 3 * gate["broken"]
    assert gate["mcnemar_p"] < 0.001


def test_the_demo_is_the_same_every_time_and_another_by_seed():
    first, second, other = demo_outputs(0), demo_outputs(0), demo_outputs(1)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["y"], other["y"])
    groups = [set(first["group"][first["split"] == code]) for code in range(3)]
    assert not groups[0] & groups[1]
    assert not groups[1] & groups[2]


def test_class_names_reach_the_evaluation_and_the_evidence(demo_file, tmp_path):
    arrays = dict(np.load(demo_file))
    names = np.array([f"class {letter}" for letter in "hgfedcba"[: arrays["p"].shape[1]]])
    np.savez(tmp_path / "named.npz", allow_pickle=False, **{**arrays, "y": names[arrays["y"]], "classes": names})
    attached = attach(tmp_path / "named.npz", tmp_path / "out", DualPathClassifier())
    evaluation = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert list(evaluation["per_class"]["gate"]) == names.tolist()
    model = DualPathClassifier.load(tmp_path / "out" / "model.safetensors")
    assert model.explain(arrays["p"][0].astype(float), arrays["z"][0]).class_names == tuple(names)
    by_number = attach(demo_file, tmp_path / "numbers", DualPathClassifier())
    assert attached.evaluation["comparators"] == by_number.evaluation["comparators"]


def test_what_tuning_notes_is_in_the_evaluation(demo_file, tmp_path):
    arrays = dict(np.load(demo_file))
    validation = np.flatnonzero(arrays["split"] == 1)
    kept = np.setdiff1d(np.arange(len(arrays["y"])), validation[60:])
    np.savez(tmp_path / "small.npz", allow_pickle=False, **{name: array[kept] for name, array in arrays.items()})
    with pytest.warns(UserWarning, match="validation") as warned:
        attached = attach(tmp_path / "small.npz", tmp_path / "out", DualPathClassifier())
    assert any("validation is small (60 rows" in note for note in attached.evaluation["notes"])
    assert [str(each.message) for each in warned] == list(attached.evaluation["notes"])


def test_the_same_settings_may_be_run_again(attached, demo_file):
    attach(demo_file, attached.folder, DualPathClassifier())


def test_results_of_other_settings_are_not_written_over(attached, demo_file):
    before = (attached.folder / "evaluation.json").read_bytes()
    with pytest.raises(ArtifactError, match=r"holds results of other settings \(n_prototypes differ\)"):
        attach(demo_file, attached.folder, DualPathClassifier(n_prototypes=2))
    assert (attached.folder / "evaluation.json").read_bytes() == before


def test_force_writes_over(demo_file, tmp_path):
    attach(demo_file, tmp_path, DualPathClassifier(n_prototypes=1))
    attach(demo_file, tmp_path, DualPathClassifier(n_prototypes=2), force=True)
    assert DualPathClassifier.load(tmp_path / "model.safetensors").n_prototypes == 2


@pytest.mark.parametrize("missing", [1, 3])
def test_a_class_without_a_training_row_needs_a_word(tmp_path, missing):
    path = without_training_rows(tmp_path / "outputs.npz", missing)
    with pytest.raises(InputFileError, match=rf"class {missing} has no training row: .* --n-classes 4 "):
        attach(path, tmp_path / "out", DualPathClassifier(3))
    assert attach(path, tmp_path / "out", DualPathClassifier(3, n_classes=4)).classifier.bank_.n_classes == 4


def test_bad_input_leaves_nothing_behind(tmp_path):
    with pytest.raises(InputFileError):
        attach(tmp_path / "none.npz", tmp_path / "out", DualPathClassifier())
    assert not (tmp_path / "out").exists()
