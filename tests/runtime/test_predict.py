"""An exported model predicts files as its model does."""

from __future__ import annotations

import numpy as np
import pytest
from exported_models import NAMES, pictures, write_pictures

from tdumpra.errors import ArtifactError, MissingExtraError
from tdumpra.networks.predict import Predictor
from tdumpra.runtime import ExportedPredictor
from tdumpra.runtime.prediction import NOT_FINITE


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    paths = write_pictures(tmp_path_factory.mktemp("images"), 40)
    paths[3].write_bytes(b"no picture")
    paths.insert(8, paths[0].with_name("missing.png"))
    return paths


def assert_same(found, expected, *, signals=True):
    for own, other in zip(found, expected, strict=True):
        assert own[:2] == other[:2]
        assert own.opened == other.opened
        assert own.error == other.error
        assert own.probabilities == pytest.approx(other.probabilities, abs=1e-5)
        assert (own.signals is None) == (other.signals is None)
        if own.signals is not None and signals:
            assert own.signals == pytest.approx(other.signals, abs=1e-5)
            assert type(own.signals["label_sim"]) is int


@pytest.mark.parametrize("kind", ["one", "two"])
@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_files_to_predictions(request, kind, mode, images):
    made = request.getfixturevalue(kind)
    predictor = ExportedPredictor.load(made.exported, mode=mode)
    reference = Predictor.load(made.model, mode=mode, device="cpu")
    found = list(predictor.predict(images))
    expected = list(reference.predict(images))
    assert_same(found, expected)
    assert any(each.opened for each in found)
    assert any(each.error for each in found)
    assert (predictor.rows_seen, predictor.rows_matched) == (reference.rows_seen, reference.rows_matched)
    assert predictor.class_names == reference.class_names == NAMES
    assert predictor.has_two_networks == reference.has_two_networks == (kind == "two")
    if kind == "two" and mode == "lazy":
        assert 0 < predictor.rows_matched < predictor.rows_seen


def test_the_size_of_a_batch_changes_nothing(two, images):
    predictor = ExportedPredictor.load(two.exported, threads=1)
    assert_same(predictor.predict(images, batch_size=1), list(predictor.predict(images, batch_size=64)))


def test_embeddings_of_every_image(two, images):
    found = list(ExportedPredictor.load(two.exported).predict(images, embeddings=True))
    expected = list(Predictor.load(two.model, device="cpu").predict(images, embeddings=True))
    for own, other in zip(found, expected, strict=True):
        assert (own.embedding is None) == (other.embedding is None) == (own.error is not None)
        if own.embedding is not None and other.embedding is not None:
            np.testing.assert_allclose(own.embedding, other.embedding, atol=1e-5)


def test_one_path_is_one_image(one, images):
    assert len(list(ExportedPredictor.load(one.exported).predict(images[0]))) == 1


def test_framed_pixels_to_all_outputs(two):
    predictor = ExportedPredictor.load(two.exported)
    outputs = predictor.decide(pictures(12, 9))
    assert {"p", "label", "opened", "js", "p_sim", "similarity", "embedding", "logits", "asked"} <= outputs.keys()
    assert {len(values) for values in outputs.values()} == {12}
    assert outputs["similarity"].shape == (12, 3, 2)
    assert not outputs["opened"][~outputs["asked"]].any()
    assert np.array_equal(outputs["label"], outputs["p"].argmax(1))
    eager = predictor.decide(pictures(12, 9), eager=True)
    assert eager["asked"].all()
    np.testing.assert_allclose(eager["p"], outputs["p"], atol=1e-6)


def test_which_images_are_asked_about_is_the_first_graphs_to_say(two, monkeypatch):
    predictor = ExportedPredictor.load(two.exported)
    first, second = predictor._sessions
    wanted = predictor.decide(pictures(12, 9))["asked"].copy()
    assert 0 < wanted.sum() < 12

    def denying(**inputs):
        return {**second(**inputs), "asked": np.zeros(len(inputs["pixels"]), dtype=bool)}

    monkeypatch.setattr(predictor, "_sessions", [first, denying])
    assert np.array_equal(predictor.decide(pictures(12, 9))["asked"], wanted)


def test_an_output_that_is_not_finite_is_an_error(one, images, monkeypatch):
    predictor = ExportedPredictor.load(one.exported)
    real = predictor._sessions[0]

    def damaged(**inputs):
        outputs = dict(real(**inputs))
        outputs["finite"] = np.zeros_like(outputs["finite"])
        return outputs

    monkeypatch.setattr(predictor, "_sessions", [damaged])
    assert next(iter(predictor.predict(images))).error == NOT_FINITE


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("p", np.zeros((16, 7)), "must give p"),
        ("opened", None, "must give opened"),
        ("label", np.full(16, 3), "beyond its 3 classes"),
        ("label_sim", np.full(16, -1), "beyond its 3 classes"),
        ("opened", np.full(16, 7), "gives opened in the type int64"),
        ("label", np.full(16, 0.5), "gives label in the type float64"),
        ("gamma_sim", np.full(16, "a"), "gives gamma_sim in the type"),
    ],
)
def test_a_graph_that_breaks_its_promise_is_refused(one, monkeypatch, name, value, words):
    predictor = ExportedPredictor.load(one.exported)
    real = predictor._sessions[0]

    def odd(**inputs):
        outputs = {**real(**inputs), name: value}
        return {key: each for key, each in outputs.items() if each is not None}

    monkeypatch.setattr(predictor, "_sessions", [odd])
    with pytest.raises(ArtifactError, match=words):
        predictor.decide(pictures(16))


def test_pixels_of_another_frame_are_refused(one):
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        ExportedPredictor.load(one.exported).decide(pictures(2, size=(20, 16)))


@pytest.mark.parametrize(
    "options", [{"engine": "torch"}, {"mode": "idle"}, {"threads": 0}, {"threads": 1.5}, {"engine": "onnxx"}]
)
def test_options_are_checked(one, options):
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        ExportedPredictor.load(one.exported, **options)


def test_masks_that_do_nothing_are_told(one, images):
    predictor = ExportedPredictor.load(one.exported)
    with pytest.warns(UserWarning, match="whole images"):
        next(predictor.predict(images[:1], masks=images[:1]))
    with pytest.raises(ValueError, match="one entry per image"):
        predictor.predict(images[:2], masks=images[:1])
    with pytest.raises(ValueError, match="batch_size"):
        predictor.predict(images[:2], batch_size=0)


@pytest.mark.parametrize(("engine", "package"), [("onnx", "onnxruntime"), ("openvino", "openvino")])
def test_a_missing_engine_names_its_install_line(one, monkeypatch, engine, package):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"tdumpra\[{engine}\]"):
        ExportedPredictor.load(one.exported, engine=engine)


@pytest.mark.services
@pytest.mark.parametrize("kind", ["one", "two"])
def test_openvino_runs_a_file_of_onnx_too(request, kind, images):
    made = request.getfixturevalue(kind)
    found = ExportedPredictor.load(made.exported, engine="openvino").predict(images)
    assert_same(found, list(ExportedPredictor.load(made.exported).predict(images)))
