"""The model file: what it holds, what it refuses, and whose code it may call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import decide, make_model
from tiny_runs import SIZE, colour_of, settings, train_run
from torch import Tensor

import tdumpra
from tdumpra.errors import ArtifactError, UntrustedCodeError
from tdumpra.networks.build import NetworkError
from tdumpra.networks.model_file import Model
from tdumpra.networks.predict import Predictor
from tdumpra.networks.training_images import THUMBNAIL_SIZE, thumbnail
from tdumpra.runs.folder import RunFolder


def test_each_of_two_networks_keeps_the_head_that_is_asked(model, images):
    assert not any(name.startswith("projection.") for name in model.classifier.state)
    assert not any(name.startswith("classifier.") for name in model.retrieval.state)
    predictor = Predictor(model)
    pixels = torch.rand(2, 3, SIZE, SIZE)
    assert predictor._classifier(pixels).z.shape == (2, 0)
    assert predictor.matcher[0](pixels).logits.shape == (2, 0)


def test_one_network_for_both_keeps_both_heads(config, data, folder):
    own = replace(config, bank=replace(config.bank, space="student"))
    state = make_model(own, data, folder).classifier.state
    assert {"classifier", "projection"} <= {name.split(".")[0] for name in state}


def test_tables_of_other_weights_are_refused(config, data, folder, tmp_path):
    stale = RunFolder(tmp_path)
    for part in ("outputs", "checkpoints"):
        (tmp_path / part).mkdir()
    for part in ("train", "val", "test"):
        stale.outputs(part).write_bytes(folder.outputs(part).read_bytes())
    once = settings(epochs=1)
    other = train_run(once, tmp_path / "o", data)
    torch.use_deterministic_algorithms(False)
    stale.checkpoint("last").write_bytes(other.checkpoint("last").read_bytes())
    with pytest.raises(ArtifactError, match="made by other weights than its checkpoint holds: embed again"):
        make_model(once, data, stale, decide(config, folder))


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_round_trip_bit_for_bit(model, images, tmp_path):
    model.write(tmp_path / "m.safetensors")
    read = Model.read(tmp_path / "m.safetensors")
    for before, after in ((model.classifier, read.classifier), (model.retrieval, read.retrieval)):
        assert before is not None
        assert after is not None
        assert after.fingerprint == before.fingerprint
        assert (after.network, after.transform) == (before.network, before.transform)
        assert_same(dict(before.state), dict(after.state))
    assert_same(dict(model.thumbnails), dict(read.thumbnails))
    assert (read.class_names, read.identity) == (model.class_names, model.identity)
    before = list(Predictor(model).predict(images))
    assert list(Predictor(read).predict(images)) == before
    assert list(tdumpra.Predictor.load(tmp_path / "m.safetensors").predict(images)) == before


def test_a_model_holds_small_pictures_of_its_exemplars(model, data):
    wanted = {e.id for c in model.decision.bank.exemplars for k in c for e in k}
    assert set(model.thumbnails) == wanted
    record = next(r for r in data.manifest.records if r.id in wanted)
    assert np.array_equal(model.thumbnails[record.id].numpy(), colour_of(record))  # no larger than that already
    assert all(max(t.shape[:2]) <= THUMBNAIL_SIZE for t in model.thumbnails.values())


def test_large_pictures_are_made_small():
    assert thumbnail(np.zeros((150, 300, 3), np.uint8)).shape == (48, 96, 3)


def test_a_model_without_pictures(config, data, folder, tmp_path, images):
    private = replace(config, bank=replace(config.bank, thumbnails=False))
    model = make_model(private, data, folder)
    model.write(tmp_path / "m.safetensors")
    read = Model.read(tmp_path / "m.safetensors")
    assert read.thumbnails == {}
    assert next(iter(Predictor(read).predict(images[:1], evidence=True))).evidence is not None


@pytest.mark.parametrize("where", [0.1, 0.5, 0.99])
def test_an_altered_model_is_refused(model, tmp_path, where):
    path = tmp_path / "m.safetensors"
    model.write(path)
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 4
    path.write_bytes(bytes(data))
    with pytest.raises(ArtifactError):
        Predictor.load(path)


@pytest.fixture
def hostile(model, tmp_path: Path, monkeypatch) -> Path:
    """A sealed model that names a module lying in the current folder, as a stranger could send it."""
    (tmp_path / "evilmod.py").write_text(
        "from pathlib import Path\nfrom tiny_networks import plain as make\nPath('executed').touch()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for role in ("classifier", "retrieval"):
        encoder = getattr(model, role)
        model = replace(model, **{role: replace(encoder, network=replace(encoder.network, backbone="evilmod:make"))})
    model.write(tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


def test_a_model_file_calls_no_code_that_nobody_trusts(hostile, images, tdumpra):
    with pytest.raises(UntrustedCodeError):
        Predictor.load(hostile)
    for command in ("predict", "explain"):
        done = tdumpra(command, hostile, images[0])
        assert done.code == 2
        assert "--trust-code evilmod:make" in done.err
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", ["model.onnx", "model.xml"])
def test_an_exported_model_is_told_from_a_damaged_one(tmp_path, name):
    (tmp_path / name).write_bytes(b"graph")
    with pytest.raises(ArtifactError, match="is an exported model"):
        Model.read(tmp_path / name)


@pytest.mark.parametrize(
    "name", ["tdumpra.artifacts:make_folder", "os:system", ":", "evilmod:", "hf-hub:someone/model"]
)
def test_no_other_name_reaches_the_import(model, name):
    changed = replace(model.classifier, network=replace(model.classifier.network, backbone=name))
    with pytest.raises(UntrustedCodeError):
        Predictor(replace(model, classifier=changed))


def test_a_small_file_asks_for_no_large_network(model):
    """Nothing of the network that a file names is allocated before it is known that the file has its weights."""
    network = replace(model.classifier.network, backbone="vit_base_patch16_224")
    with pytest.raises(NetworkError, match=r"vit_base_patch16_224 has 8.,...,... weights, and the model holds"):
        Predictor(replace(model, classifier=replace(model.classifier, network=network)))


def test_code_that_the_user_trusts_is_called(hostile, images, tdumpra):
    done = tdumpra("predict", hostile, images[0], "--trust-code", "evilmod:make", "--csv")
    assert done.code == 0, done.err
    assert Path("executed").exists()


def test_a_factory_that_changed_since(model):
    network = replace(model.classifier.network, backbone="tiny_networks:without_norm")
    changed = replace(model.classifier, network=network)
    with pytest.raises(NetworkError, match="weights do not fit 'tiny_networks:without_norm', which builds another"):
        Predictor(replace(model, classifier=changed))
