"""``metadata.json``: what the schema of MONAI's bundles requires, in the types that it asks for."""

from __future__ import annotations

import json

import pytest

from tdumpra.errors import InputFileError
from tdumpra.integrations.monai import metadata, write_metadata

# "required" of monai/bundle/meta_schema.json, and the types of its "properties"
REQUIRED = {
    "schema": str, "version": str, "monai_version": str, "pytorch_version": str, "numpy_version": str,
    "required_packages_version": dict, "optional_packages_version": dict, "task": str, "description": str,
    "authors": str, "copyright": str, "network_data_format": dict,
}  # fmt: skip
TENSOR = {
    "type": str, "format": str, "num_channels": int, "spatial_shape": list, "dtype": str, "value_range": list,
    "is_patch_data": bool, "channel_def": dict,
}  # fmt: skip


def test_every_required_key_has_its_type(model):
    found = json.loads(json.dumps(metadata(model)))
    assert {key: type(found.get(key)) for key in REQUIRED} == REQUIRED
    assert found["network_data_format"].keys() == {"inputs", "outputs"}
    for tensors in found["network_data_format"].values():
        for tensor in tensors.values():
            assert {key: type(tensor.get(key)) for key in TENSOR} == TENSOR


def test_input_and_output_are_those_of_the_model(model):
    found = metadata(model, authors="A. Author", copyright="CC BY 4.0")["network_data_format"]
    image, p = found["inputs"]["pixels"], found["outputs"]["p"]
    framing = model.classifier.transform.framing
    assert (image["num_channels"], image["spatial_shape"]) == (3, [framing.height, framing.width])
    assert list(p["channel_def"].values()) == list(model.class_names)
    assert metadata(model, authors="A. Author")["authors"] == "A. Author"


def test_another_kind_of_metadata_is_not_written_over(model, tmp_path):
    written = write_metadata(model, tmp_path)
    assert json.loads(written.read_text()) == metadata(model)
    assert write_metadata(model, tmp_path) == written
    written.write_text('{"name": "a data set"}')
    with pytest.raises(InputFileError, match="something else"):
        write_metadata(model, tmp_path)
