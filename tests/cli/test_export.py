"""The commands export and verify, and engines of predict."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from exported_models import exported_once, small_model, write_pictures

from tdumpra.cli.predict import load_any
from tdumpra.runtime import ExportedPredictor, sessions
from tdumpra.runtime.exported import read_exported


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return exported_once(tmp_path_factory.mktemp("exported"), two=True)


@pytest.fixture
def run(made, tmp_path):
    """The folder of a run with its exported model."""
    for path in (made.model, *made.export.files):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_export_beside_the_model(tdumpra, tmp_path):
    small_model().write(tmp_path / "model.safetensors")
    done = tdumpra("export", tmp_path, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["files"] == [str(tmp_path / "model.onnx")]
    assert told["compared"]["labels"] == told["compared"]["n"] == 24
    assert told["precision"] == "float32"


def test_a_format_that_is_not_known(tdumpra, run):
    done = tdumpra("export", run, "--to", "tflite")
    assert (done.code, done.out) == (2, "")
    assert "onnx, openvino" in done.err


def test_verify_compares(tdumpra, run):
    done = tdumpra("verify", run, run / "model.onnx")
    assert done.code == 0, done.err
    assert "labels equal on 24 of 24" in done.out
    told = json.loads(tdumpra("verify", run, run / "model.onnx", "--json").out)
    assert told["agrees"]
    assert told["largest"] < 1e-5


@pytest.mark.parametrize("engine", ["onnx", pytest.param("openvino", marks=pytest.mark.services)])
def test_verify_runs_the_export_by_the_engine_that_will(tdumpra, run, monkeypatch, engine):
    opened = []

    def open_session(graph, engine, threads):
        opened.append(engine)
        return sessions.open_session(graph, engine, threads)

    monkeypatch.setattr("tdumpra.runtime.predict.open_session", open_session)
    done = tdumpra("verify", run, run / "model.onnx", "--engine", engine)
    assert (done.code, set(opened)) == (0, {engine}), done.err


def test_verify_by_an_engine_that_runs_no_export(tdumpra, run):
    for engine in ("torch", "onxx"):
        done = tdumpra("verify", run, run / "model.onnx", "--engine", engine)
        assert done.code == 2
        assert "openvino" in done.err


def test_verify_on_images_of_ones_own(tdumpra, run):
    write_pictures(run / "images", 6)
    done = tdumpra("verify", run, run / "model.onnx", "--images", run / "images")
    assert "6 given images" in done.out


def test_verify_on_a_folder_without_images(tdumpra, run, tmp_path):
    done = tdumpra("verify", run, run / "model.onnx", "--images", tmp_path)
    assert done.code == 2
    assert str(tmp_path) in done.err.replace("\n", "")


def test_verify_checks_seals(tdumpra, run):
    assert tdumpra("verify", run).code == 0
    assert tdumpra("verify", run / "model.onnx").code == 0
    for name in ("model.safetensors", "model.onnx"):
        path = run / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        done = tdumpra("verify", path)
        assert done.code == 2
        assert "altered" in done.err
    assert tdumpra("verify", run / "a", run / "b").code == 2


def test_verify_takes_all_files_of_an_export(tdumpra, run):
    """As a shell lists them: the second network's file is a part of the first one's."""
    exports = sorted(run.glob("*.onnx"))
    assert len(exports) == 2
    done = tdumpra("verify", *exports, columns=1000)
    assert done.code == 0, done.err
    assert done.out.count("is whole") == 1
    compared = tdumpra("verify", run / "model.safetensors", *exports)
    assert compared.code == 0, compared.err
    assert "Compared" in compared.out
    alone = tdumpra("verify", exports[1])
    assert alone.code == 2
    assert "name the file of its classifier" in alone.err
    shutil.copy(run / "model.onnx", run / "other.onnx")
    several = tdumpra("verify", run, run / "model.onnx", run / "other.onnx", "--json")
    assert several.code == 2
    assert "one by one" in several.err


def test_verify_refuses_to_call_int8_the_same(tdumpra, run, monkeypatch):
    graphs = read_exported(run / "model.onnx")
    quantised = [g._replace(description=replace(g.description, precision="int8")) for g in graphs]
    monkeypatch.setattr("tdumpra.export.export.read_exported", lambda path: quantised)
    done = tdumpra("verify", run, run / "model.onnx")
    assert done.code == 2
    assert "tuned again" in done.err
    assert "labels equal" in done.out
    assert tdumpra("verify", run, run / "model.onnx", "--int8").code == 0


def test_verify_fails_where_the_two_differ(tdumpra, run, monkeypatch):
    monkeypatch.setattr("tdumpra.export.compare.TOLERANCE", 1e-12)
    done = tdumpra("verify", run, run / "model.onnx")
    assert done.code == 2
    assert "something else" in done.err


def test_predict_with_an_engine(tdumpra, run):
    images = write_pictures(run / "images", 9)
    by_torch = json.loads(tdumpra("predict", run, run / "images", "--json", "--device", "cpu").out)
    for model, engine in ((run / "model.onnx", "auto"), (run, "onnx"), (run / "model.onnx", "onnx")):
        done = tdumpra("predict", model, run / "images", "--json", "--engine", engine)
        assert done.code == 0, done.err
        found = json.loads(done.out)
        assert [each["label"] for each in found] == [each["label"] for each in by_torch]
        assert [each["gate"] for each in found] == [each["gate"] for each in by_torch]
        assert len(found) == len(images)
    assert "second network looked at" in tdumpra("predict", run / "model.onnx", run / "images").out


def test_auto_is_what_the_file_is_for(run):
    options = {"mode": "lazy", "device": None, "precision": None}
    assert isinstance(load_any(run / "model.onnx", "auto", **options), ExportedPredictor)
    assert not isinstance(load_any(run, "auto", **options), ExportedPredictor)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "tpu"], "auto, torch, onnx, openvino"),
        (["--engine", "torch"], "name the model file"),
        (["--device", "cuda"], "leave --device out"),
        (["--precision", "bfloat16"], "own precision"),
    ],
)
def test_what_an_exported_model_cannot_do(tdumpra, run, arguments, words):
    images = write_pictures(run / "images", 1)
    done = tdumpra("predict", run / "model.onnx", *images, *arguments)
    assert done.code == 2
    assert words in done.err


def test_an_export_must_be_there_and_of_this_very_model(tdumpra, run):
    images = write_pictures(run / "images", 1)
    small_model(two=True, temperature=1.7).write(run / "model.safetensors")
    done = tdumpra("predict", run, *images, "--engine", "onnx")
    assert done.code == 2
    assert "another model" in done.err
    (run / "model.onnx").unlink()
    done = tdumpra("predict", run, *images, "--engine", "onnx")
    assert done.code == 2
    assert "tdumpra export" in done.err
