"""Models in a folder laid out like a hub's, and on a hub: by huggingface_hub's own mixin, offline, without pickles."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, ModelCard

from tdumpra.errors import ArtifactError, InputFileError, MissingExtraError
from tdumpra.networks.hub import FILE
from tdumpra.networks.model_file import Model
from tdumpra.networks.predict import Predictor

EVALUATION = {
    "name": "tiny", "version": "0.1.0", "rows": {"train": 60, "val": 10, "test": 20}, "grouped": True, "seeds": [0],
    "data": {"source": "folder:x", "protocol": "grouped"}, "tuning": "", "notes": [], "bootstrap": None,
    "metrics": {"gate": {"accuracy": {"value": 0.75, "interval": [0.5, 1.0]}}}, "per_class": {}, "operating_points": {},
    "subgroups": {}, "refer": None, "ece_if_calibrated": None,
    "gate": {"n": 20, "opened": 0, "flipped": 0, "fixed": 0, "broken": 0, "mcnemar_p": 1.0, "harm_upper": 0.1},
}  # fmt: skip


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory, model) -> Path:
    place: Path = tmp_path_factory.mktemp("hub") / "my-model"
    Predictor(
        replace(model, evaluation=EVALUATION), trusted=["tiny_networks:plain"]
    ).save_pretrained(place)  # fmt: skip
    return place


def test_a_folder_comes_back_as_the_same_model(shared_folder, model, images, tmp_path):
    assert sorted(path.name for path in shared_folder.iterdir()) == ["README.md", "config.json", FILE]
    replace(model, evaluation=EVALUATION).write(tmp_path / FILE)
    assert (shared_folder / FILE).read_bytes() == (tmp_path / FILE).read_bytes()
    read = Predictor.from_pretrained(shared_folder, mode="eager")
    assert read.mode == "eager"
    pairs = zip(read.predict(images), Predictor(model).predict(images), strict=True)
    assert all(a.probabilities == b.probabilities for a, b in pairs)
    assert json.loads((shared_folder / "config.json").read_text())["id2label"]["0"] == model.class_names[0]


def test_a_folder_with_a_model_is_not_written_over(shared_folder, model):
    before = (shared_folder / FILE).read_bytes()
    with pytest.raises(ArtifactError, match="never changed in place"):
        Predictor(model, trusted=["tiny_networks:plain"]).save_pretrained(shared_folder)
    assert (shared_folder / FILE).read_bytes() == before


def test_the_card_is_ours_and_the_hub_can_read_its_header(shared_folder, model):
    card = ModelCard.load(shared_folder / "README.md")
    assert card.data.library_name == "tdumpra"
    assert card.data.pipeline_tag == "image-classification"
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_name) == ("accuracy", 0.75, "folder:x")
    assert card.data.model_name == "my-model"
    assert "## TRIPOD+AI" in card.text
    assert all(name in card.text for name in model.class_names)


def test_a_model_that_was_altered_on_its_way_is_refused(shared_folder, tmp_path):
    (tmp_path / "config.json").write_bytes((shared_folder / "config.json").read_bytes())
    data = bytearray((shared_folder / FILE).read_bytes())
    data[-3] ^= 1
    (tmp_path / FILE).write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match="checksum"):
        Predictor.from_pretrained(tmp_path)
    (tmp_path / FILE).unlink()
    with pytest.raises(InputFileError, match=FILE):
        Predictor.from_pretrained(tmp_path)


def test_from_a_hub_that_was_visited_before(shared_folder, model, tmp_path):
    """The cache of huggingface_hub, as a download leaves it."""
    commit = "a" * 40
    place = tmp_path / "models--someone--my-model"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    snapshot = place / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name in (FILE, "config.json"):
        (snapshot / name).write_bytes((shared_folder / name).read_bytes())
    read = Predictor.from_pretrained("someone/my-model", cache_dir=tmp_path, local_files_only=True)
    assert read.model.class_names == model.class_names
    with pytest.raises(ArtifactError, match="someone/other is no folder"):
        Predictor.from_pretrained("someone/other", cache_dir=tmp_path, local_files_only=True)


def test_a_push_uploads_what_a_folder_holds(model, monkeypatch):
    sent: dict[str, Any] = {}

    def create_repo(self, repo_id, **options):
        return type("Repo", (), {"repo_id": repo_id})()

    def upload_folder(self, *, repo_id, folder_path, **options):
        sent.update({path.name: path.read_bytes() for path in Path(folder_path).iterdir()}, repo=repo_id)
        Model.read(Path(folder_path) / FILE)
        return "commit"

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    assert Predictor(model).push_to_hub("someone/my-model") == "commit"
    assert sent.keys() == {"README.md", "config.json", FILE, "repo"}
    assert b"# Model card: someone/my-model" in sent["README.md"]


def test_without_the_extra_a_sentence_names_it(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "tdumpra.networks.hub")
    with pytest.raises(MissingExtraError, match=r"tdumpra\[hub\]"):
        Predictor(model).save_pretrained(tmp_path)
