"""The data set that FiftyOne reads: its layout, its fields, and that they say what the model said."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from tdumpra.errors import InputFileError
from tdumpra.integrations.fiftyone import write_dataset
from tdumpra.networks.predict import Predictor


@pytest.fixture(scope="module")
def written(tmp_path_factory, model, images):
    folder = tmp_path_factory.mktemp("fiftyone") / "set"
    (broken := tmp_path_factory.mktemp("broken") / "no.png").write_bytes(b"no image")
    labels = [*(model.class_names[int(path.parent.name)] for path in images), model.class_names[0]]
    write_dataset(
        Predictor(model, trusted=["tiny_networks:plain"]),
        [*images, broken],
        folder,
        labels=labels,
        groups=list("aabbc"),
    )
    return folder


def documents(folder) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return json.loads((folder / "metadata.json").read_text()), json.loads((folder / "samples.json").read_text())[
        "samples"
    ]


def test_every_value_stands_in_a_declared_field_of_its_type(written):
    metadata, samples = documents(written)
    kinds = {"StringField": str, "FloatField": float, "ListField": list, "EmbeddedDocumentField": dict,
             "ObjectIdField": dict}  # fmt: skip
    fields = {each["db_field"]: each for each in metadata["sample_fields"]}
    inner = {each["db_field"]: each for each in fields["prediction"]["fields"]}
    for sample in samples:
        assert sample.keys() == fields.keys()
        for known, document in ((fields, sample), (inner, sample["prediction"] or {})):
            for key, value in document.items():
                if key != "_cls" and value is not None:
                    assert isinstance(value, kinds[known[key]["ftype"].rpartition(".")[2]]), key
    assert metadata["media_type"] == "image"
    assert {"name", "version", "sample_collection_name", "app_config"} <= metadata.keys()


def test_images_of_one_name_are_all_there(written, images):
    _, samples = documents(written)
    copies = [written / sample["filepath"] for sample in samples]
    assert len(set(copies)) == 5
    assert [copy.read_bytes() for copy in copies[:4]] == [path.read_bytes() for path in images]
    ids = [sample["_id"]["$oid"] for sample in samples]
    assert len(set(ids)) == 5
    assert all(re.fullmatch("[0-9a-f]{24}", each) for each in ids)


def test_samples_say_what_the_model_says(written, model, images):
    _, samples = documents(written)
    found = list(Predictor(model).predict(images, evidence=True, groups=list("aabb")))
    for sample, prediction in zip(samples, found, strict=False):
        assert prediction.evidence is not None
        assert sample["prediction"]["label"] == prediction.label
        assert sample["prediction"]["confidence"] == pytest.approx(max(prediction.probabilities.values()))
        assert sample["classifier"]["label"] == model.class_names[prediction.evidence.label_classifier]
        moved = sample["classifier"]["label"] != prediction.label
        assert sample["gate"] == ("moved" if moved else "opened" if prediction.opened else "shut")
        assert sample["evidence"] == prediction.evidence.sentence
        assert len(sample["embedding"]) == model.decision.bank.width
        assert np.linalg.norm(sample["embedding"]) == pytest.approx(1, abs=1e-3)
    assert samples[2]["ground_truth"]["label"] == model.class_names[1]


def test_an_image_that_cannot_be_read_has_its_reason(written):
    _, samples = documents(written)
    assert samples[-1]["error"]
    assert (samples[-1]["prediction"], samples[-1]["embedding"]) == (None, [])


def test_nothing_is_written_over_and_lengths_must_fit(written, model, images, tmp_path):
    with pytest.raises(InputFileError, match="there already"):
        write_dataset(Predictor(model), images, written)
    with pytest.raises(ValueError, match="labels needs one entry per image: 4, not 1"):
        write_dataset(Predictor(model), images, tmp_path / "new", labels=["amber"])
    with pytest.raises(InputFileError, match="is no file"):
        write_dataset(Predictor(model), [*images, tmp_path / "gone.png"], tmp_path / "new")
    assert not (tmp_path / "new").exists()
