"""From a model file to exported files, and nothing where the two differ."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from exported_models import NAMES, OPEN, small_model, write_pictures

import tdumpra
from tdumpra.artifacts import read_seal
from tdumpra.data.images.framing import Framing
from tdumpra.errors import ArtifactError, InputFileError
from tdumpra.export import export as module
from tdumpra.export.compare import TOLERANCE, Reference
from tdumpra.export.export import check_format, compare_with, export_model
from tdumpra.export.images import calibration_frames, pictures_of
from tdumpra.export.onnx_file import ExportError, OnnxGraph
from tdumpra.networks.model_file import Model
from tdumpra.runtime.exported import read_exported
from tdumpra.runtime.prediction import Prediction


class TestOneNetwork:
    def test_it_predicts_as_the_model_does(self, one):
        found = one.export.comparison
        assert found.agrees
        assert (found.n, found.labels, found.openings) == (24, 24, 24)
        assert 0 < found.largest < 1e-5

    def test_the_metadata_say_what_a_user_needs(self, one):
        (graph,) = read_exported(one.exported)
        said, model = graph.description, Model.read(one.model)
        assert said.class_names == NAMES
        assert said.transform == model.classifier.transform
        assert said.decision["thresholds"]["theta"] == OPEN.theta
        assert said.model == read_seal(one.model, kind="model")
        assert said.identity["made_from"] == "the tests"
        assert said.identity["encoder"] == model.classifier.fingerprint
        assert said.precision == "float32"
        assert said.notes["compared"]["labels"] == 24
        assert said.notes["openvino"] == {"INFERENCE_PRECISION_HINT": "f32"}

    def test_any_program_that_reads_onnx_can_run_it(self, one):
        proto = onnx.load(one.exported)
        onnx.checker.check_model(proto)
        assert [each.name for each in proto.graph.input] == ["pixels"]
        sides = proto.graph.input[0].type.tensor_type.shape.dim
        assert sides[0].dim_param
        assert [side.dim_value for side in sides[1:]] == [16, 16, 3]
        assert {"p", "label", "opened", "gamma_cls", "js", "similarity"} <= {each.name for each in proto.graph.output}

    def test_it_tells_nothing_of_the_machine_that_made_it(self, one):
        data = one.exported.read_bytes()
        assert str(Path(tdumpra.__file__).parent).encode() not in data
        assert b"site-packages" not in data


class TestTwoNetworks:
    def test_they_are_a_pair_bound_by_checksums(self, two):
        assert [path.name for path in two.export.files] == ["model.onnx", "model.retrieval.onnx"]
        first, second = read_exported(two.exported)
        assert (first.description.role, second.description.role) == ("classifier", "retrieval")
        assert two.export.comparison.agrees

    def test_the_second_graph_goes_on_from_the_first(self, two):
        inputs = onnx.load(two.export.files[1]).graph.input
        assert [each.name for each in inputs] == ["pixels", "logits"]


class TestNothingIsWritten:
    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        small_model().write(tmp_path / "model.safetensors")
        return tmp_path

    def left(self, place: Path) -> list[str]:
        return sorted(path.name for path in place.iterdir())

    def test_if_the_graph_computes_something_else(self, one, tmp_path, monkeypatch):
        """Here the graph of a model that is a little colder."""
        proto = onnx.load(one.exported)
        del proto.metadata_props[:]
        monkeypatch.setattr(module, "_trace", lambda model, trusted: [OnnxGraph(proto, ())])
        small_model(temperature=1.31).write(tmp_path / "model.safetensors")
        with pytest.raises(ExportError, match="was not written"):
            export_model(tmp_path / "model.safetensors", "onnx", tmp_path / "model.onnx")
        assert self.left(tmp_path) == ["model.safetensors"]

    def test_if_the_disk_is_full(self, two, tmp_path, monkeypatch):
        """At the last file of several: those before it are gone too, and an older export stays as it was."""
        for path in two.export.files:
            (tmp_path / path.name).write_bytes(b"older")
        calls = []

        def full(descriptor):
            calls.append(descriptor)
            if len(calls) == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("tdumpra.writing.os.fsync", full)
        graphs = [graph._replace(path=tmp_path / graph.path.name) for graph in read_exported(two.exported)]
        with pytest.raises(ArtifactError, match="No space left"):
            module._write(graphs)
        assert self.left(tmp_path) == ["model.onnx", "model.retrieval.onnx"]
        assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"older"}

    @pytest.mark.parametrize(("backbone", "reason"), [("branching", "turned into a graph"), ("one_size", "len")])
    def test_if_the_network_is_no_graph(self, tmp_path, backbone, reason):
        small_model(backbone=f"tiny_networks:{backbone}").write(tmp_path / "model.safetensors")
        with pytest.raises(ExportError, match=reason):
            export_model(tmp_path / "model.safetensors", "onnx", tmp_path / "model.onnx")
        assert self.left(tmp_path) == ["model.safetensors"]

    def test_under_a_name_of_another_format(self, place):
        with pytest.raises(ValueError, match=r"\*\.xml"):
            export_model(place / "model.safetensors", "openvino", place / "model.onnx")
        with pytest.raises(ValueError, match="tflite"):
            check_format("tflite")

    @pytest.mark.parametrize("n", [0, 63])
    def test_with_too_few_images_for_int8(self, place, tmp_path_factory, n):
        folder = tmp_path_factory.mktemp("few")
        write_pictures(folder, n)
        with pytest.raises(InputFileError, match=f"{n} readable images.* at least 64"):
            export_model(place / "model.safetensors", "onnx", place / "model.onnx", calibration=str(folder))
        with pytest.raises(InputFileError, match="at least 64"):
            export_model(place / "model.safetensors", "onnx", place / "model.onnx", calibration=str(folder / "no"))
        assert self.left(place) == ["model.safetensors"]


class TestComparing:
    def test_given_images(self, one, tmp_path):
        paths = write_pictures(tmp_path, 5)
        broken = tmp_path / "broken.png"
        broken.write_bytes(b"no picture")
        found = compare_with(one.model, one.exported, [*paths, broken])
        assert found.comparison.agrees
        assert (found.comparison.n, found.comparison.images) == (5, "given images")

    def test_no_image_that_can_be_read(self, one, tmp_path):
        broken = tmp_path / "broken.png"
        broken.write_bytes(b"no picture")
        with pytest.raises(InputFileError, match="none of 1 images"):
            compare_with(one.model, one.exported, [broken])

    def test_another_model(self, one, tmp_path):
        small_model(temperature=1.5).write(tmp_path / "other.safetensors")
        with pytest.raises(ArtifactError, match="another model"):
            compare_with(tmp_path / "other.safetensors", one.exported)

    def test_a_model_without_pictures_is_compared_on_synthetic_lesions(self, tmp_path):
        with pictures_of(small_model(thumbnails=0)) as (paths, what):
            assert len(paths) == 32
            assert what == "synthetic lesions"
        with pictures_of(small_model(thumbnails=300)) as (paths, _):
            assert 64 <= len(paths) <= 128

    def test_what_counts_as_agreement(self, one):
        found = one.export.comparison
        assert not found._replace(labels=23).agrees
        assert not found._replace(openings=23).agrees
        assert not found._replace(largest=2 * TOLERANCE).agrees


def test_int8_is_another_model(two, tmp_path):
    """It is written as one, with its agreement told; preprocessing, bank and decision stay in floating point."""
    write_pictures(tmp_path / "images", 64)
    out = tmp_path / "small.onnx"
    done = export_model(two.model, "onnx", out, calibration=str(tmp_path / "images"))
    assert done.precision == "int8"
    assert not done.comparison.agrees
    assert done.comparison.labels > 16
    for graph in read_exported(out):
        assert graph.description.precision == "int8"
        assert graph.description.notes["compared"]["largest"] == done.comparison.largest
        nodes = onnx.load_from_string(graph.data).graph.node
        made = {name: node for node in nodes for name in node.output}
        convolutions = [node for node in nodes if node.op_type == "Conv"]
        assert convolutions
        assert all(made[node.input[0]].op_type == "DequantizeLinear" for node in convolutions)
        last = [node for node in nodes if node.op_type == "MatMul"]  # with the prototypes
        assert all(name not in made or made[name].op_type != "DequantizeLinear" for node in last for name in node.input)
    assert compare_with(two.model, out).precision == "int8"


def test_a_source_of_data_can_calibrate():
    first, second = Framing(height=16, width=16), Framing(height=20, width=12)
    frames = calibration_frames("synthetic:n=64,size=32", first, second)
    assert frames.first.shape == (64, 16, 16, 3)
    assert frames.second.shape == (64, 20, 12, 3)


def test_a_model_tuned_in_bfloat16_is_exported_in_float32_with_a_warning(tmp_path):
    model = small_model()
    half = replace(model, classifier=replace(model.classifier, precision="bfloat16"))
    half.write(tmp_path / "model.safetensors")
    with pytest.warns(UserWarning, match="bfloat16"):
        done = export_model(tmp_path / "model.safetensors", "onnx", tmp_path / "model.onnx")
    assert done.comparison.agrees


@pytest.mark.services
@pytest.mark.parametrize("kind", ["one", "two"])
def test_openvino(request, kind, tmp_path):
    made = request.getfixturevalue(kind)
    done = export_model(made.model, "openvino", tmp_path / "model.xml")
    assert done.comparison.agrees
    assert all(path.suffix in (".xml", ".bin") for path in done.files)
    assert len(done.files) == (2 if kind == "one" else 4)
    assert compare_with(made.model, tmp_path / "model.xml").comparison.agrees
    bin_file = tmp_path / "model.bin"
    bin_file.write_bytes(bin_file.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="does not belong"):
        read_exported(tmp_path / "model.xml")


@pytest.mark.services
def test_openvino_in_int8(one, tmp_path):
    write_pictures(tmp_path / "images", 64)
    done = export_model(one.model, "openvino", tmp_path / "model.xml", calibration=str(tmp_path / "images"))
    assert done.precision == "int8"
    assert not done.comparison.agrees


@pytest.mark.parametrize("changes", [{"probabilities": {"a": float("nan"), "b": 0.5}}, {"signals": {"gamma_sim": 0.4}}])
def test_what_differs_beside_labels_does_not_agree(changes: Any) -> None:
    own = Prediction("a.png", "a", {"a": 0.5, "b": 0.5}, False, {"gamma_sim": 0.9}, None)
    reference = object.__new__(Reference)
    reference.predictions, reference.images = [own], "given images"
    assert reference._against([own]).agrees
    assert not reference._against([own._replace(**changes)]).agrees
