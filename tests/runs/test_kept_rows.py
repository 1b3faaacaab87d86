"""What a model keeps of its rows: enough to build its bank again to the bit, and nothing where that is not wanted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import save_problem
from tiny_runs import colours, embed_run, outputs_of, refit_run, settings

from tdumpra import DualPathClassifier
from tdumpra.data.images.appearance import appearance
from tdumpra.method import lineage
from tdumpra.method.bank import PrototypeBank
from tdumpra.networks.model_file import Model
from tdumpra.runs.attach import array_model_step, attach_config
from tdumpra.runs.model import is_current, model_step
from tdumpra.runs.outputs import all_outputs
from tdumpra.runs.tables import OutputsTable
from tdumpra.tuning.settings import BankConfig, TuneConfig

pytestmark = pytest.mark.filterwarnings("ignore:n_prototypes")


def same_bank(one: PrototypeBank, other: PrototypeBank) -> bool:
    return (
        all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("prototypes", "mask", "reference"))
        and one.exemplars == other.exemplars
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained run, its outputs and its data."""
    config, data = settings(epochs=1), colours()
    folder = embed_run(config, tmp_path_factory.mktemp("run"), data)
    torch.use_deterministic_algorithms(False)
    return outputs_of(config, folder), data


def test_the_model_of_a_run_keeps_its_rows(run):
    outputs, data = run
    model = Model.read(model_step(outputs, data).result())
    record, splits = model.record, outputs.load()
    assert record is not None
    assert same_bank(record.rebuild_bank(model.class_names), model.decision.bank)
    assert record.train.ids.tolist() == splits.train.ids.tolist()
    np.testing.assert_array_equal(record.validation.z, splits.validation.z.numpy())
    np.testing.assert_allclose(record.validation.p, splits.validation.p.numpy(), atol=1e-6)
    looks = appearance(data.prepared.images.read(data.rows("train")))
    np.testing.assert_array_equal(record.train.content, looks.content)
    np.testing.assert_array_equal(record.train.colours, looks.colours)
    assert record.train.has_features.all()
    lineage.check(model.lineage)
    (made,) = model.lineage
    assert made.command == "run"
    assert {"data", "split", "encoder", "outputs"} <= made.inputs.keys()
    assert made.settings["train"]["epochs"] == 1


def test_the_features_give_the_classifiers_logits(run):
    outputs, data = run
    model = Model.read(model_step(outputs, data).result())
    assert model.record is not None
    rows, state = model.record.validation, model.classifier.state
    logits = (
        torch.from_numpy(np.asarray(rows.features)).float() @ state["classifier.weight"].T + state["classifier.bias"]
    )
    np.testing.assert_allclose(logits.softmax(1).numpy(), rows.p, atol=2e-3)


def test_the_record_can_be_left_out(run):
    outputs, data = run
    model_step(outputs, data).result()
    config = replace(outputs.config, bank=replace(outputs.config.bank, record=False))
    without = replace(outputs, config=config)
    assert not is_current(without)
    model = Model.read(model_step(without, data).result())
    assert model.record is None
    assert len(model.lineage) == 1


def test_tables_of_before_give_a_record_without_features_and_looks(run, tmp_path):
    outputs, data = run
    folder = embed_run(outputs.config, tmp_path / "old", data)
    torch.use_deterministic_algorithms(False)
    for part in folder.parts:
        table = OutputsTable.read(folder.outputs(part))
        replace(table, features=None, features_teacher=None, colours=None, content=None).write(folder.outputs(part))
    record = Model.read(model_step(outputs_of(outputs.config, folder), data).result()).record
    assert record is not None
    assert record.train.features is record.train.colours is record.train.content is None


def test_the_second_network_of_a_refit_has_no_validation_rows(tmp_path):
    config, data = settings(epochs=1, refit=True), colours()
    folder = refit_run(config, tmp_path, data)
    torch.use_deterministic_algorithms(False)
    model = Model.read(model_step(outputs_of(config, folder), data).result())
    assert model.record is not None
    assert len(model.record.train) == len(data.rows("train", "val"))
    assert len(model.record.validation) == 0
    assert same_bank(model.record.rebuild_bank(model.class_names), model.decision.bank)


def attached(file: Path, out: Path, **settings: Any) -> DualPathClassifier:
    config = attach_config(file, out, {}, {})
    config = replace(config, **settings)
    (outputs,) = all_outputs(config)
    return DualPathClassifier.load(array_model_step(outputs).result())


@pytest.mark.parametrize("tune", [TuneConfig(), TuneConfig(folds=2)])
def test_the_model_of_a_file_keeps_its_rows(tmp_path, tune):
    file = save_problem(tmp_path / "mine.npz")
    model = attached(file, tmp_path / "out", tune=tune)
    assert model.record_ is not None
    record, names = model.record_, [str(c) for c in range(model.decision_.bank.n_classes)]
    assert same_bank(record.rebuild_bank(names), model.decision_.bank)
    assert record.train.features is None
    assert [step.command for step in model.lineage_] == ["attach"]


def test_a_files_features_are_kept(tmp_path):
    arrays = dict(np.load(save_problem(tmp_path / "mine.npz")))
    features = np.random.default_rng(0).normal(size=(len(arrays["y"]), 6)).astype(np.float16)
    np.savez(tmp_path / "mine.npz", allow_pickle=False, **arrays, features=features)
    record = attached(tmp_path / "mine.npz", tmp_path / "out").record_
    assert record is not None
    np.testing.assert_array_equal(record.validation.features, features[arrays["split"] == 1])


def test_a_files_record_can_be_left_out(tmp_path):
    file = save_problem(tmp_path / "mine.npz")
    assert attached(file, tmp_path / "out", bank=BankConfig(record=False)).record_ is None
    assert attached(file, tmp_path / "out").record_ is not None
