"""The commands ``validate``, ``history`` and ``verify`` on finished models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from local_models import local_arrays, local_folder, model_of_arrays, model_of_images
from tests.support import alter_byte

from tdumpra.artifacts import read_artifact, read_json, write_artifact
from tdumpra.models.opened import open_model
from tdumpra.networks.model_file import KIND, SCHEMA, Model

FOLDER = [i % 3 for i in range(24)]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_of_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_of_arrays(tmp_path_factory.mktemp("arrays"))


def test_a_source_of_images_is_validated(tdumpra, images, tmp_path):
    source = f"folder:{local_folder(tmp_path / 'away', FOLDER)}"
    done = tdumpra("validate", images, source, "--out", tmp_path / "out", "--fail-under", "accuracy=0")
    assert done.code == 0, done.err
    assert "own validation" in done.out
    found = read_json(tmp_path / "out" / "validation.json", kind="validation", schema=1)
    assert found["source"]["rows"] == 24
    assert found["source"]["name"] == "folder:away"  # no folders of this machine
    assert found["shift"]["colours"] is not None
    assert "<title>model.safetensors on folder:away" in (tmp_path / "out" / "index.html").read_text()


def test_outputs_of_images_are_kept_and_give_the_same_figures(tdumpra, images, tmp_path):
    source, kept = f"folder:{local_folder(tmp_path / 'away', FOLDER)}", tmp_path / "kept.npz"
    first = tdumpra("validate", images, source, "--outputs", kept, "--json")
    assert first.code == 0, first.err
    again = tdumpra("validate", images, kept, "--json")
    assert again.code == 0, again.err
    one, other = (json.loads(each.out)["evaluation"]["comparators"]["gate"] for each in (first, again))
    assert [one[name] for name in ("accuracy", "nll")] == pytest.approx([other[name] for name in ("accuracy", "nll")])
    for rows, wanted in ((source, kept), (kept, "new.npz"), (source, "new.csv"), (source, "nowhere/new.npz")):
        assert tdumpra("validate", images, rows, "--outputs", wanted).code == 2


def test_a_folder_with_other_results_is_not_written_over(tdumpra, arrays, tmp_path):
    one, other = (local_arrays(tmp_path / f"{seed}.npz", seed=seed) for seed in (5, 6))
    out = tmp_path / "out"
    assert tdumpra("validate", arrays, one, "--out", out).code == 0
    before = (out / "validation.json").read_bytes()
    refused = tdumpra("validate", arrays, other, "--out", out)
    assert refused.code == 2
    assert "on other data" in refused.err
    assert (out / "validation.json").read_bytes() == before
    assert tdumpra("validate", arrays, one, "--out", out).code == 0  # the same again
    (out / "validation.json").write_text("{")
    assert tdumpra("validate", arrays, other, "--out", out).code == 0


def test_below_a_floor_the_exit_code_is_1_and_a_sentence_says_why(tdumpra, arrays, tmp_path):
    source = local_arrays(tmp_path / "away.npz")
    done = tdumpra("validate", arrays, source, "--fail-under", "accuracy=0.2", "--fail-under", "balanced_accuracy=1")
    assert done.code == 1
    assert "balanced accuracy is 0." in done.err
    assert "asks for 1" in done.err
    printed = tdumpra("validate", arrays, source, "--fail-under", "macro_f1=1", "--json")
    assert printed.code == 1
    assert json.loads(printed.out)["fail_under"][0]["met"] is False


def test_without_labels_there_is_shift_and_no_floor(tdumpra, arrays, tmp_path):
    source = local_arrays(tmp_path / "away.npz", y=None)
    done = tdumpra("validate", arrays, source, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert "Expect confidence" in done.out
    assert 'id="results"' not in (tmp_path / "out" / "index.html").read_text()
    refused = tdumpra("validate", arrays, source, "--fail-under", "accuracy=0.5", "--out", tmp_path / "none")
    assert refused.code == 2
    assert "no labels" in refused.err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fail-under", "acuracy=0.5"], "did you mean 'accuracy'"),
        (["--rename", "nevus"], "THEIRS=OURS"),
        (["--prefix", ""], "among the training groups"),
    ],
)
def test_mistakes_end_in_a_sentence_and_write_nothing(tdumpra, arrays, tmp_path, options, words):
    source = local_arrays(tmp_path / "away.npz", group=np.array(["train-0"] * 160))
    done = tdumpra("validate", arrays, source, "--out", tmp_path / "out", *options)
    assert done.code == 2
    assert words in done.err
    assert not (tmp_path / "out").exists()


def test_a_model_of_before_is_refused_with_the_way_out(tdumpra, images, tmp_path):
    tensors, meta = read_artifact(images, kind=KIND, schema=SCHEMA)
    older = {name: tensor for name, tensor in tensors.items() if not name.startswith("record.")}
    meta = {name: value for name, value in meta.items() if name not in ("record", "lineage")}
    write_artifact(tmp_path / "old.safetensors", kind=KIND, schema=SCHEMA, tensors=older, meta=meta)
    assert Model.read(tmp_path / "old.safetensors").record is None
    done = tdumpra("validate", tmp_path / "old.safetensors", f"folder:{local_folder(tmp_path / 'away', FOLDER)}")
    assert done.code == 2
    assert "tdumpra run" in done.err
    told = tdumpra("history", tmp_path / "old.safetensors")
    assert told.code == 0
    assert "nothing of its history" in told.out


def test_history_tells_each_step(tdumpra, images, tmp_path):
    parent = open_model(images)
    parent.write_child(
        tmp_path / "child.safetensors", parent.content, command="bank remove", settings={"group": "a"}, inputs={}
    )
    done = tdumpra("history", tmp_path / "child.safetensors")
    assert done.code == 0, done.err
    assert done.out.index("1. run") < done.out.index("2. bank remove")
    assert parent.digest[:12] in done.out
    assert "train.epochs = 4" in done.out
    assert "train.batch_size = 64" not in done.out
    steps = json.loads(tdumpra("history", tmp_path / "child.safetensors", "--json").out)["history"]
    assert [step["command"] for step in steps] == ["run", "bank remove"]


def test_verify_checks_bytes_and_history(tdumpra, images, arrays, tmp_path):
    child, parent = tmp_path / "child.safetensors", open_model(images)
    parent.write_child(child, parent.content, command="adapt", settings={}, inputs={})
    done = tdumpra("verify", child, images, arrays, columns=1000)
    assert done.code == 0, done.err
    assert f"2 steps holds; it was made from {images}" in done.out
    steps = list(open_model(child).lineage)
    steps[0] = steps[0]._replace(time="2020-01-01T00:00:00+00:00")
    replace(parent.content, lineage=tuple(steps)).write(tmp_path / "forged.safetensors")
    for command in ("verify", "history"):
        refused = tdumpra(command, tmp_path / "forged.safetensors")
        assert refused.code == 2
        assert "step 1 of 2" in refused.err
    alter_byte(child, child.stat().st_size - 3)
    assert tdumpra("verify", child).code == 2
    (tmp_path / "notes.txt").write_text("no model")
    assert tdumpra("verify", tmp_path / "notes.txt").code == 2


def test_with_a_key_any_file_is_verified_and_models_by_their_history_too(tdumpra, images, tmp_path):
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    notes, model = tmp_path / "notes.txt", tmp_path / "model.safetensors"
    notes.write_text("no model")
    model.write_bytes(images.read_bytes())
    assert tdumpra("seal", notes, model, "--key", key).code == 0
    done = tdumpra("verify", notes, model, "--key", key, columns=1000)
    assert done.code == 0, done.err
    assert done.out.count("was sealed with this key") == 2
    assert "its history of 1 step holds" in done.out
