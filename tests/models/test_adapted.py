"""The adapted model: its file says what the trial said, its record rebuilds its bank, and its history tells of it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from two_places import NAMES, arrays, home_model, kept

from tdumpra.core.linear_head import LinearHead
from tdumpra.estimator import DualPathClassifier
from tdumpra.method.record import Record
from tdumpra.models.adapted import adapted_record, content_of, goal_of
from tdumpra.models.bank import remove
from tdumpra.models.local_rows import read_rows
from tdumpra.models.opened import OpenedModel, open_model
from tdumpra.models.ways import Plan, Workbench

pytestmark = [
    pytest.mark.filterwarnings("ignore:n_prototypes"),
    pytest.mark.filterwarnings("ignore:.*validation"),
]
HEAD, BIAS = Plan("head", 0.5, 1.0, 1e-3, 8.0, 0.5), Plan("bias", 0.25)


def opened(sureness: float = 1.0) -> OpenedModel:
    return OpenedModel(Path("home.safetensors"), "0" * 64, copy.copy(home_model(sureness)[0]))


def bench_of(model: OpenedModel, n: int = 60, sureness: float = 1.0) -> Workbench:
    local = kept(arrays(n, there=True, seed=3, sureness=sureness))
    return Workbench(model.decision, model.record, NAMES, local)


def written(path: Path, plan: Plan, sureness: float = 1.0) -> tuple[Workbench, Any]:
    """Write the model of a plan, and read it again."""
    model = opened(sureness)
    bench = bench_of(model, sureness=sureness)
    content = content_of(model, bench, bench.fit(np.ones(60, bool), plan), plan, "csv:there.csv")
    model.write_child(path, content, command="adapt", settings=plan._asdict(), inputs={"data": "1234"})
    return bench, DualPathClassifier.load(path)


@pytest.mark.parametrize("plan", [HEAD, BIAS, Plan(bank_weight=1.0, say=0.3)], ids=lambda plan: plan.way)
@pytest.mark.parametrize("sureness", [1.0, 8.0])
def test_the_file_decides_as_the_trial_did(tmp_path, plan, sureness):
    bench, model = written(tmp_path / "new.safetensors", plan, sureness)
    rows = kept(arrays(300, there=True, seed=5, sureness=sureness))
    if sureness > 1:
        assert np.sort(rows.p, axis=1)[:, 0].min() < 1e-12
    expected = np.asarray(bench.fit(np.ones(60, bool), plan).decide(rows).p)
    found = model.predict_proba(rows.p.astype(np.float64), rows.z, rows.features)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert (model.predict(rows.p, rows.z, rows.features) == np.array(NAMES)[expected.argmax(1)]).all()


def test_its_record_rebuilds_its_bank(tmp_path):
    _, model = written(tmp_path / "new.safetensors", HEAD)
    record = model.record_
    assert torch.equal(record.rebuild_bank(NAMES).prototypes, model.decision_.bank.prototypes)
    added = record.train.sources == "csv:there.csv"
    assert added.sum() == 60
    assert (record.train.weights[added] == 8).all()
    assert (record.train.weights[~added] == 1).all()
    without = record.without(groups=["there 3 lesion 0"])
    assert not torch.equal(without.rebuild_bank(NAMES).prototypes, model.decision_.bank.prototypes)


def test_rows_beside_the_bank_do_not_change_it(tmp_path):
    bench, model = written(tmp_path / "new.safetensors", BIAS)
    assert len(model.record_.train) == len(bench.record.train) + 60
    assert torch.equal(model.record_.rebuild_bank(NAMES).prototypes, bench.decision.bank.prototypes)
    assert model.head_ is None
    assert model.decision_.class_bias


def test_the_history_names_parent_and_dials(tmp_path):
    _, model = written(tmp_path / "new.safetensors", HEAD)
    (step,) = model.lineage_
    assert step.command == "adapt"
    assert step.parent == "0" * 64
    assert step.settings["replay"] == 1.0


def test_probabilities_in_the_record_are_the_new_heads(tmp_path):
    record = home_model()[1]
    head = LinearHead(np.zeros((4, 12), np.float32), np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32)))
    grown = adapted_record(record, kept(arrays(20, there=True, seed=3)), head, 0.0, "x")
    np.testing.assert_allclose(grown.validation.p, np.tile([0.1, 0.2, 0.3, 0.4], (200, 1)), atol=1e-6)
    known = grown.train.has_features
    assert np.isnan(grown.train.p[~known]).all()
    assert not np.isnan(grown.train.p[known]).any()
    artifact = grown.to_artifact()
    again = Record.from_artifact(artifact, n_classes=4, width=6)
    np.testing.assert_array_equal(again.train.weights, grown.train.weights)
    np.testing.assert_array_equal(again.train.sources, grown.train.sources)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapted model with a head of its own."""
    path = tmp_path_factory.mktemp("adapted") / "new.safetensors"
    written(path, HEAD)
    return path


class TestAnAdaptedHead:
    def test_it_asks_for_features(self, path):
        model, rows = DualPathClassifier.load(path), kept(arrays(5, there=True, seed=5))
        with pytest.raises(ValueError, match="12 pooled features"):
            model.predict_proba(rows.p, rows.z)
        with pytest.raises(ValueError, match=r"\(5, 12\), not \(5, 3\)"):
            model.predict_proba(rows.p, rows.z, np.zeros((5, 3)))
        with pytest.raises(ValueError, match="adapted"):
            model.report(rows.p, rows.z, rows.y)

    def test_evidence_shows_its_opinion(self, path):
        model, rows = DualPathClassifier.load(path), kept(arrays(5, there=True, seed=5))
        p = model.predict_proba(rows.p.astype(np.float64), rows.z, rows.features)
        evidence = model.explain(rows.p[0], rows.z[0], features_row=arrays(5, there=True, seed=5)["features"][0])
        np.testing.assert_allclose(evidence.p, p[0], atol=1e-6)

    def test_a_file_of_outputs_is_read_by_it(self, path, tmp_path):
        columns = arrays(30, there=True, seed=9)
        named: dict[str, Any] = {**columns, "classes": np.array(NAMES)}
        np.savez(tmp_path / "there.npz", **named)
        rows = read_rows(open_model(path), str(tmp_path / "there.npz")).rows
        own = DualPathClassifier.load(path).classifier_rows(torch.from_numpy(columns["p"]), columns["features"]).numpy()
        np.testing.assert_allclose(rows.p, own, atol=1e-6)
        assert np.abs(rows.p - columns["p"]).max() > 0.1


class TestGoal:
    def test_the_models_own_tuning_stands_unless_another_is_asked_for(self):
        assert goal_of(opened(), None).objective == "balanced_accuracy"
        assert goal_of(opened(), "nll").objective == "nll"

    def test_no_such_objective(self):
        with pytest.raises(ValueError, match="objective must be one of"):
            goal_of(opened(), "sharpness")
        with pytest.raises(ValueError, match="without costs"):
            goal_of(opened(), "cost")


def test_taking_a_local_group_out_keeps_the_head_and_says_so(path):
    model = open_model(path)
    changed = remove(model, groups=["there 3 lesion 0"])
    content: Any = changed.content
    never = home_model()[1].with_rows(kept(arrays(60, there=True, seed=3)).rows(np.arange(60) > 1), weight=8.0)
    assert torch.equal(content.decision_.bank.prototypes, never.rebuild_bank(NAMES).prototypes)
    before: Any = model.content
    assert np.array_equal(content.head_.weight, before.head_.weight)
    assert any("adapted" in note for note in changed.notes)
    assert not any("several seeds" in note for note in changed.notes)


def test_rows_beside_the_bank_are_not_listed_in_it(tmp_path):
    written(tmp_path / "new.safetensors", BIAS)
    record = open_model(tmp_path / "new.safetensors").record
    assert len(record.bank_rows) == 400
    assert len(record.train) == 460
