from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from tdumpra.errors import ArtifactError
from tdumpra.method import lineage
from tdumpra.models.opened import OpenedModel, open_model


def test_both_kinds_of_models_open(image_model, array_model):
    assert image_model.class_names == ("amber", "blue", "cyan")
    assert array_model.class_names == ("0", "1", "2", "3")
    for model in (image_model, array_model):
        assert model.digest == hashlib.sha256(model.path.read_bytes()).hexdigest()
        assert len(model.lineage) == 1
        assert model.decision.bank.width == model.record.train.z.shape[1]


@pytest.mark.parametrize("kind", ["image_model", "array_model"])
def test_a_child_knows_its_parent_and_is_a_new_file(kind, request, tmp_path):
    model: OpenedModel = request.getfixturevalue(kind)
    before = model.path.read_bytes()
    model.write_child(tmp_path / "new.safetensors", model.content, command="adapt", settings={}, inputs={"source": "1"})
    child = open_model(tmp_path / "new.safetensors")
    lineage.check(child.lineage)
    assert [step.command for step in child.lineage][1:] == ["adapt"]
    assert child.lineage[-1].parent == model.digest
    assert len(model.lineage) == 1
    assert model.path.read_bytes() == before
    with pytest.raises(ArtifactError, match="never changed in place"):
        model.write_child(child.path, model.content, command="adapt", settings={}, inputs={})
    with pytest.raises(ArtifactError, match="does not exist"):
        model.write_child(tmp_path / "no" / "m", model.content, command="adapt", settings={}, inputs={})


def test_a_model_without_a_record_says_what_to_do(image_model, tmp_path):
    replace(image_model.content, record=None, lineage=()).write(tmp_path / "old.safetensors")
    old = open_model(tmp_path / "old.safetensors")
    assert old.lineage == ()
    with pytest.raises(ArtifactError, match="tdumpra run"):
        old.record  # noqa: B018


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="cannot read"):
        open_model(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    with pytest.raises(ArtifactError, match="bad"):
        open_model(tmp_path / "bad.safetensors")
