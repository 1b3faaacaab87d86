"""An adapted model with networks: the predictor says of images what the trial said of rows, with views and without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_config import run_command, write_config

from tdumpra.core.linear_head import LinearHead
from tdumpra.data.sources import open_source
from tdumpra.errors import ArtifactError, SourceError
from tdumpra.models.adapted import content_of
from tdumpra.models.local_rows import read_rows
from tdumpra.models.opened import OpenedModel, open_model
from tdumpra.models.ways import Plan, Workbench
from tdumpra.networks.build import NetworkError
from tdumpra.networks.model_file import Model
from tdumpra.networks.predict import Predictor

pytestmark = pytest.mark.filterwarnings("ignore:n_prototypes")
THERE = "synthetic:n=40,size=32,seed=5"
TRUSTED = ["tiny_networks:plain"]
PLAN = Plan("head", 0.0, 1.0, 1e-3, 4.0, 0.5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OpenedModel:
    out = tmp_path_factory.mktemp("trained")
    run_command(write_config(out / "run.toml", out / "cache"), out / "run", quiet=True)
    return open_model(out / "run" / "model.safetensors")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, manifest = tmp_path_factory.mktemp("images"), open_source(THERE)
    paths = [folder / f"{number}.png" for number in range(len(manifest))]
    for path, record in zip(paths, manifest.records, strict=True):
        Image.fromarray(manifest.reader(record)).save(path)
    return paths


@pytest.mark.parametrize("views", [1, 2])
def test_images_get_what_rows_got(model, images, tmp_path, views):
    content = replace(model.content, classifier=replace(model.content.classifier, views=views))
    model = OpenedModel(model.path, model.digest, content)
    local = read_rows(model, THERE, prefix="there-", trusted=TRUSTED)
    bench = Workbench(model.decision, model.record, model.class_names, local.rows)
    adapted = bench.fit(np.ones(len(local.rows), bool), PLAN)
    model.write_child(
        tmp_path / "new.safetensors", content_of(model, bench, adapted, PLAN, "there"), command="adapt", settings={},
        inputs={},
    )  # fmt: skip
    predictor = Predictor.load(tmp_path / "new.safetensors", trusted=TRUSTED)
    found = np.array([list(each.probabilities.values()) for each in predictor.predict(images)])
    expected = np.asarray(adapted.decide(local.rows).p)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    before = np.array(
        [list(each.probabilities.values()) for each in Predictor(model.content, trusted=TRUSTED).predict(images)]
    )
    assert np.abs(found - before).max() > 0.01
    with pytest.raises(SourceError, match="training images"):  # it has seen them now
        read_rows(open_model(tmp_path / "new.safetensors"), THERE, prefix="again-", trusted=TRUSTED)


def test_a_head_that_does_not_fit_is_refused(model, tmp_path):
    content = model.content
    uneven = content.classifier.with_head(torch.zeros(7, 3), torch.zeros(2))
    replace(content, classifier=uneven).write(tmp_path / "uneven.safetensors")
    with pytest.raises(ArtifactError, match="adapted_head"):
        Model.read(tmp_path / "uneven.safetensors")
    narrow = LinearHead(np.zeros((7, 3), np.float32), np.zeros(7, np.float32))
    with pytest.raises(NetworkError):
        Predictor(replace(content, classifier=content.classifier.with_head(*narrow)), trusted=TRUSTED)


def test_the_fingerprint_tells_heads_apart(model):
    encoder = model.content.classifier
    one, other = (encoder.with_head(torch.full((7, 3), value), torch.zeros(7)) for value in (0.0, 1.0))
    assert len({encoder.fingerprint, one.fingerprint, other.fingerprint}) == 3


def test_the_command_takes_images(tdumpra, model, images, tmp_path):
    new = tmp_path / "new.safetensors"
    trust = ("--trust-code", *TRUSTED)
    done = tdumpra(
        "adapt", model.path, "synthetic:n=120,size=32,seed=5", "--prefix", "there-", "--objective", "nll", "--out", new,
        "--json", *trust,
    )  # fmt: skip
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert "head" in document["ways"]
    assert document["wins"] == new.exists()
    assert document["wins"]  # two epochs leave a network that a few cases can calibrate
    predicted = tdumpra("predict", new, *images[:3], "--json", *trust)
    assert predicted.code == 0, predicted.err
    assert len(json.loads(predicted.out)) == 3
