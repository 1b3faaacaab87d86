"""Files that anyone may have made are read, or refused in a sentence."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
from exported_models import Made
from onnx import TensorProto, helper

from tdumpra.errors import ArtifactError
from tdumpra.limits import VARIABLE
from tdumpra.runtime import ExportedPredictor
from tdumpra.runtime.description import BLANK, MODEL_KEY, SEAL_KEY, Description, find_description, seal
from tdumpra.runtime.exported import is_exported, read_exported


@pytest.fixture
def pair(two: Made, tmp_path):
    for path in two.export.files:
        shutil.copy(path, tmp_path)
    return tmp_path / "model.onnx"


def doctored(path, change):
    """Change a graph and seal it again, as anyone can."""
    proto = onnx.load(path)
    change(proto)
    for entry in proto.metadata_props:
        if entry.key == SEAL_KEY:
            entry.value = BLANK
    path.write_bytes(seal(proto.SerializeToString()))
    return path


def with_metadata(**values):
    def change(proto):
        entry = next(each for each in proto.metadata_props if each.key == MODEL_KEY)
        said = {**json.loads(entry.value), **values}
        entry.value = json.dumps({key: value for key, value in said.items() if value is not None})

    return change


def test_what_is_written_is_read_back(one):
    (graph,) = read_exported(one.exported)
    text = find_description(graph.data)
    assert text is not None
    assert Description.parse(text) == graph.description
    assert json.loads(graph.description.to_json()) == json.loads(text)


def test_a_pair_may_be_renamed_together(pair):
    other = pair.with_name("lesions.onnx")
    pair.rename(other)
    pair.with_name("model.retrieval.onnx").rename(other.with_name("lesions.retrieval.onnx"))
    assert len(read_exported(other)) == 2


def test_every_flipped_bit_is_found(one, tmp_path):
    data = one.exported.read_bytes()
    path = tmp_path / "model.onnx"
    for place in np.linspace(0, len(data) - 1, 60).astype(int):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(ArtifactError):
            read_exported(path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_file_that_was_cut_short(one, tmp_path, share):
    data = one.exported.read_bytes()
    path = tmp_path / "model.onnx"
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        read_exported(path)


def test_the_parts_of_a_pair_belong_together(pair, one):
    second = pair.with_name("model.retrieval.onnx")
    with pytest.raises(ArtifactError, match="name the file of its classifier"):
        read_exported(second.rename(second.with_name("alone.onnx")))
    with pytest.raises(ArtifactError, match="No such file"):
        read_exported(pair)
    shutil.copy(second.with_name("alone.onnx"), second)
    doctored(second, with_metadata(notes={"another": "export"}))
    with pytest.raises(ArtifactError, match="does not belong"):
        read_exported(pair)
    shutil.copy(one.exported, second)
    with pytest.raises(ArtifactError, match="model part"):
        read_exported(pair)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"schema": 2}, "version 2"),
        ({"schema": None}, "schema"),
        ({"role": "janitor"}, "role"),
        ({"precision": "int4"}, "precision"),
        ({"class_names": ["a", 3]}, "class"),
        ({"class_names": ["a"]}, "classes"),
        ({"class_names": "abc"}, "class_names"),
        ({"transform": {}}, "transform"),
        ({"files": {"retrieval": "x"}}, "SHA-256"),
        ({"identity": {"a": 1}}, "string"),
        ({"notes": []}, "notes"),
        ({"model": 7}, "model"),
    ],
)
def test_metadata_are_checked(pair, values, words):
    with pytest.raises(ArtifactError, match=words):
        read_exported(doctored(pair, with_metadata(**values)))


def test_a_frame_too_large_to_be_meant(one, tmp_path):
    path = tmp_path / "model.onnx"
    shutil.copy(one.exported, path)
    transform = read_exported(path)[0].description.transform.to_dict()
    transform["framing"]["height"] = 100_000
    with pytest.raises(ArtifactError, match="4096"):
        read_exported(doctored(path, with_metadata(transform=transform)))


def test_metadata_that_claim_to_be_huge(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"tdumpra_model\x12\xff\xff\xff\x7f{}")
    with pytest.raises(ArtifactError, match="not exported by tdumpra"):
        read_exported(path)


def test_a_graph_of_someone_else(tmp_path):
    node = helper.make_node("Identity", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    onnx.save(helper.make_model(helper.make_graph([node], "g", [x], [y])), tmp_path / "model.onnx")
    with pytest.raises(ArtifactError, match="not exported by tdumpra"):
        read_exported(tmp_path / "model.onnx")


def test_other_names_are_no_exports(one, tmp_path):
    assert is_exported(one.exported)
    assert not is_exported(one.model)
    with pytest.raises(ArtifactError, match=r"\*\.onnx"):
        read_exported(one.model)
    with pytest.raises(ArtifactError, match="No such file"):
        read_exported(tmp_path / "model.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ArtifactError, match="cannot read"):
        read_exported(tmp_path / "folder.onnx")


def test_the_limit_of_bytes(one, monkeypatch):
    monkeypatch.setenv(VARIABLE, "artifact_bytes=1000")
    with pytest.raises(ArtifactError, match="artifact_bytes"):
        read_exported(one.exported)


def test_weights_in_another_file_are_refused(one, tmp_path):
    """ONNX can name a file outside; a stranger could name any."""
    path = tmp_path / "model.onnx"
    shutil.copy(one.exported, path)

    def outside(proto):
        tensor = proto.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", "../secret"

    with pytest.raises(ArtifactError, match="another file"):
        read_exported(doctored(path, outside))


def test_a_graph_with_other_inputs(one, tmp_path):
    path = tmp_path / "model.onnx"
    shutil.copy(one.exported, path)

    def wider(proto):
        proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 17

    doctored(path, wider)
    with pytest.raises(ArtifactError):
        ExportedPredictor.load(path)


def test_custom_operators_are_not_loaded(one, tmp_path):
    path = tmp_path / "model.onnx"
    shutil.copy(one.exported, path)

    def custom(proto):
        proto.graph.node[0].op_type, proto.graph.node[0].domain = "Launch", "missiles"
        proto.opset_import.append(helper.make_opsetid("missiles", 1))

    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        ExportedPredictor.load(doctored(path, custom))


def test_damaged_graphs_behind_a_new_seal(one, tmp_path):
    """Sealed anew, damage reaches the engine, and comes back as a sentence."""
    data = one.exported.read_bytes()
    nodes = data.index(b"pixels")  # where the graph begins
    path = tmp_path / "model.onnx"
    for place in (nodes, nodes + 30, nodes + 90):
        broken = bytearray(data)
        broken[place : place + 8] = b"\xff" * 8
        at = broken.index(SEAL_KEY.encode()) + len(SEAL_KEY) + 2
        broken[at : at + 64] = BLANK.encode()
        path.write_bytes(seal(bytes(broken)))
        with pytest.raises(ArtifactError, match=r"model\.onnx"):
            ExportedPredictor.load(path)
