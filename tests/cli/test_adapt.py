"""The command ``adapt``: a new model or the word that nothing wins, and one sentence for a mistake."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from two_places import NAMES, arrays, write_outputs

from tdumpra.estimator import DualPathClassifier
from tdumpra.models.opened import open_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:n_prototypes"),
    pytest.mark.filterwarnings("ignore:.*validation"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of home, as ``attach`` writes it, beside the file that it was made of."""
    from tdumpra.runs.attach import array_model_step, attach_config
    from tdumpra.runs.outputs import all_outputs

    folder = tmp_path_factory.mktemp("home")
    outputs = write_outputs(folder / "outputs.npz")
    config = attach_config(outputs, folder / "run", {"n_prototypes": 2}, {"objective": "accuracy"})
    (only,) = all_outputs(config)
    array_model_step(only).make()
    return folder


def local_file(path: Path, n: int = 60, *, there: bool = True, seed: int = 7, **changes: object) -> Path:
    columns: dict[str, Any] = {**arrays(n, there=there, seed=seed), "classes": np.array(NAMES), **changes}
    np.savez(path, **{name: each for name, each in columns.items() if each is not None})
    return path


def test_a_new_model_its_page_and_its_document(tdumpra, home, tmp_path):
    new, report = tmp_path / "new.safetensors", tmp_path / "report"
    done = tdumpra("adapt", home / "run", home / "outputs.npz", "--out", new, "--report", report, "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["wins"]
    assert document["written"] == "new.safetensors"
    assert document["objective"] == "accuracy"  # that of the model's own tuning
    assert document["rows"] == 160
    assert {"keep", "bias", "head", "bank", "bias+bank", "head+bank"} == set(document["ways"])
    assert document["home"]["rows"] == 200
    assert document["home"]["before"]["accuracy"]["value"] > document["ways"]["keep"]["figures"]["accuracy"]["value"]
    assert [dose["lesions"] for dose in document["dose"]] == [50]
    on_disk = json.loads((report / "adaptation.json").read_text())
    assert on_disk["verdict"] == document["verdict"]
    page = (report / "index.html").read_text()
    assert f"{document['estimate']['accuracy']['value']:.3f}" in page
    assert page.count("<svg") == 2
    model = open_model(new)
    assert [step.command for step in model.lineage] == ["attach", "adapt"]
    assert model.lineage[-1].settings["way"] == document["way"]
    assert isinstance(DualPathClassifier.load(new), DualPathClassifier)

    again = tdumpra("adapt", home / "run", home / "outputs.npz", "--out", new)
    assert again.code == 2
    assert "never changed in place" in again.err


def test_nothing_wins_and_nothing_is_written(tdumpra, home, tmp_path):
    new = tmp_path / "new.safetensors"
    more = local_file(tmp_path / "more.npz", 100, there=False)
    done = tdumpra("adapt", home / "run", more, "--out", new)
    assert done.code == 0, done.err
    assert "Nothing wins" in done.out
    assert "No model was written" in done.out
    assert not new.exists()
    told = json.loads(tdumpra("adapt", home / "run", more, "--out", new, "--objective", "nll", "--json").out)
    assert told["shown"] in told["ways"]
    shown = told["ways"][told["shown"]]["name"]
    words = tdumpra("adapt", home / "run", more, "--out", new, "--objective", "nll", columns=1000).out
    at_home = next(line for line in words.splitlines() if "At home" in line)
    assert "balanced accuracy" in at_home  # whatever the objective is
    if not told["wins"]:
        assert f"had {shown} been kept" in at_home
    assert not told["dose"] or f"by dose ({shown})" in words


def test_a_class_that_is_missing_there_is_said(tdumpra, home, tmp_path):
    columns = arrays(80, there=True, seed=8)
    keep = columns["y"] != 3
    few = local_file(tmp_path / "few.npz", **{name: each[keep] for name, each in columns.items()})
    done = tdumpra("adapt", home / "run", few, "--out", tmp_path / "new.safetensors")
    assert done.code == 0, done.err
    assert "no dun" in done.err


class TestMistakes:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"y": np.array(["dunn"] * 60)}, "did you mean 'dun'"),
            ({"y": np.ones(60, np.int64)}, "all 60 local cases are 'blue'"),
            ({"group": np.repeat(["a", "b", "c"], 20)}, "5 folds, and the source has 3"),
            ({"group": np.array(["home 1 lesion 0"] * 60)}, "training groups"),
            ({"id": np.array([f"home 2 image {i}" for i in range(60)])}, "validation images"),
        ],
        ids=["unknown class", "one class", "few lesions", "trained on", "tuned on"],
    )
    def test_one_sentence_and_nothing_written(self, tdumpra, home, tmp_path, changes, said):
        source = local_file(tmp_path / "there.npz", **changes)
        done = tdumpra(
            "adapt", home / "run", source, "--out", tmp_path / "new.safetensors", "--report", tmp_path / "report"
        )
        assert done.code == 2
        assert said in done.err
        assert len(done.err.strip().splitlines()) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["there.npz"]

    def test_no_such_objective(self, tdumpra, home, tmp_path):
        new = tmp_path / "new.safetensors"
        done = tdumpra("adapt", home / "run", home / "outputs.npz", "--out", new, "--objective", "charm")
        assert done.code == 2
        assert "charm" in done.err

    def test_an_older_model_without_a_record(self, tdumpra, home, tmp_path):
        old = DualPathClassifier.load(home / "run" / "model.safetensors")
        old.record_ = None
        old.save(tmp_path / "old.safetensors")
        shutil.copy(home / "outputs.npz", tmp_path)
        done = tdumpra(
            "adapt", tmp_path / "old.safetensors", tmp_path / "outputs.npz", "--out", tmp_path / "new.safetensors"
        )
        assert done.code == 2
        assert "keeps no record" in done.err
        assert not (tmp_path / "new.safetensors").exists()
