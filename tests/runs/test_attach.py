from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo_arrays import demo_outputs, write_demo
from tests.support import alter_byte, save_problem, without_training_rows

from tdumpra import DualPathClassifier
from tdumpra.artifacts import read_json
from tdumpra.errors import ArtifactError, InputFileError
from tdumpra.runs.attach import array_model_step, attach_config, refuse_other_results
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.outputs import all_outputs
from tdumpra.runs.table_stages import evaluate_step

METRICS = {"accuracy", "macro_f1", "balanced_accuracy", "macro_auroc", "ece", "nll", "brier"}
GATE = {"n", "opened", "flipped", "fixed", "broken", "mcnemar_p", "harm_upper", "guarantees_similarity", "thresholds"}


def attach(file: Path, out: Path, *, force: bool = False, preset: str = "paper", **bank: Any) -> dict[str, Any]:
    """Take the steps of the command, and return the evaluation as it was written."""
    config = attach_config(file, out, bank, {"preset": preset})
    config = replace(config, evaluate=replace(config.evaluate, bootstrap=20))
    if not force:
        refuse_other_results(config)
    (outputs,) = all_outputs(config)
    evaluate_step(outputs).result()
    array_model_step(outputs).result()
    RunFolder(out).note_settings(config, 0)
    return read_json(out / "evaluation.json", kind="evaluation", schema=1)


def model_in(folder: Path) -> DualPathClassifier:
    return DualPathClassifier.load(folder / "model.safetensors")


@pytest.fixture(scope="module")
def demo_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo(tmp_path_factory.mktemp("demo") / "outputs.npz")


@pytest.fixture(scope="module")
def attached(demo_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("attached")
    attach(demo_file, out, preset="default")
    return out


@pytest.fixture(scope="module")
def evaluation(attached: Path) -> dict[str, Any]:
    return read_json(attached / "evaluation.json", kind="evaluation", schema=1)


def test_what_scripts_rely_on_is_in_the_evaluation(evaluation):
    expected = {"student", "temperature", "logit_adjusted", "knn", "similarity", "average", "gate", "oracle"}
    assert expected <= set(evaluation["comparators"])
    assert "teacher" not in evaluation["comparators"]  # none was given
    assert all(set(scores) >= METRICS for scores in evaluation["comparators"].values())
    assert set(evaluation["gate"]) >= GATE
    assert evaluation["gate"]["n"] == evaluation["rows"]["test"]


def test_the_model_predicts_what_was_scored(attached, evaluation, demo_file):
    arrays = np.load(demo_file)
    test = arrays["split"] == 2
    p = arrays["p"][test].astype(np.float64)
    labels = model_in(attached).predict(p / p.sum(1, keepdims=True), arrays["z"][test])
    accuracy = (labels == arrays["y"][test]).mean()
    assert accuracy == pytest.approx(evaluation["comparators"]["gate"]["accuracy"], abs=1e-12)


def test_the_demo_shows_a_real_effect(evaluation):
    gate = evaluation["gate"]
    assert gate["fixed"] > 3 * gate["broken"]
    assert gate["mcnemar_p"] < 0.001


def test_the_demo_is_the_same_every_time_and_another_by_seed():
    first, second, other = demo_outputs(0), demo_outputs(0), demo_outputs(1)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["y"], other["y"])
    groups = [set(first["group"][first["split"] == code]) for code in range(3)]
    assert not groups[0] & groups[1]
    assert not groups[1] & groups[2]


def test_class_names_reach_the_evaluation_and_the_evidence(tmp_path):
    file = save_problem(tmp_path / "numbered.npz")
    arrays = dict(np.load(file))
    names = np.array([f"class {letter}" for letter in "hgfedcba"[: arrays["p"].shape[1]]])
    np.savez(tmp_path / "named.npz", allow_pickle=False, **{**arrays, "y": names[arrays["y"]], "classes": names})
    named = attach(tmp_path / "named.npz", tmp_path / "out")
    assert list(named["per_class"]["gate"]) == names.tolist()
    explained = model_in(tmp_path / "out").explain(arrays["p"][0].astype(float), arrays["z"][0])
    assert explained.class_names == tuple(names)
    assert named["comparators"] == attach(file, tmp_path / "numbers")["comparators"]


def test_what_tuning_notes_is_in_the_evaluation(demo_file, tmp_path):
    arrays = dict(np.load(demo_file))
    validation = np.flatnonzero(arrays["split"] == 1)
    kept = np.setdiff1d(np.arange(len(arrays["y"])), validation[60:])
    np.savez(tmp_path / "small.npz", allow_pickle=False, **{name: array[kept] for name, array in arrays.items()})
    notes = attach(tmp_path / "small.npz", tmp_path / "out", preset="default")["notes"]
    assert any("60 rows" in note for note in notes)


def test_the_same_may_be_attached_again_from_anywhere(tmp_path, monkeypatch):
    file = save_problem(tmp_path / "mine.npz")
    attach(file, tmp_path / "out")
    before = (tmp_path / "out" / "evaluation.json").read_bytes()
    attach(file, tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    attach(Path(os.path.relpath(file)), Path("out"))
    assert (tmp_path / "out" / "evaluation.json").read_bytes() == before


@pytest.mark.parametrize("config_is_there", [True, False])
def test_results_of_other_settings_are_not_written_over(tmp_path, config_is_there):
    file = save_problem(tmp_path / "mine.npz")
    attach(file, tmp_path / "out")
    if not config_is_there:
        (tmp_path / "out" / "config.toml").unlink()
    before = (tmp_path / "out" / "evaluation.json").read_bytes()
    with pytest.raises(ArtifactError, match="n_prototypes" if config_is_there else "other settings"):
        attach(file, tmp_path / "out", n_prototypes=2)
    assert (tmp_path / "out" / "evaluation.json").read_bytes() == before


def test_results_of_another_file_are_not_written_over(tmp_path):
    file = save_problem(tmp_path / "mine.npz")
    attach(file, tmp_path / "out")
    save_problem(file, seed=1)
    with pytest.raises(ArtifactError, match="outputs"):
        attach(file, tmp_path / "out")


def test_force_writes_over(tmp_path):
    file = save_problem(tmp_path / "mine.npz")
    attach(file, tmp_path, n_prototypes=1)
    attach(file, tmp_path, n_prototypes=2, force=True)
    assert model_in(tmp_path).n_prototypes == 2


def test_a_damaged_model_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")  # a model tells when it was made
    file, model = save_problem(tmp_path / "mine.npz"), tmp_path / "out" / "model.safetensors"
    attach(file, tmp_path / "out")
    before = model.read_bytes()
    alter_byte(model, len(before) - 3)
    attach(file, tmp_path / "out")
    assert model.read_bytes() == before


@pytest.mark.parametrize("missing", [1, 3])
def test_a_class_without_a_training_row_needs_a_word(tmp_path, missing):
    path = without_training_rows(tmp_path / "outputs.npz", missing)
    with pytest.raises(InputFileError, match=rf"class {missing} has no training row: .*n_classes = 4"):
        attach(path, tmp_path / "out", n_prototypes=3)
    attach(path, tmp_path / "out", n_prototypes=3, n_classes=4)
    assert model_in(tmp_path / "out").bank_.n_classes == 4


def test_bad_input_leaves_nothing_behind(tmp_path):
    with pytest.raises(InputFileError):
        attach(tmp_path / "none.npz", tmp_path / "out")
    assert not (tmp_path / "out").exists()
