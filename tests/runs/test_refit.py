"""The second network of ``train.refit``: what it is trained on, what is carried over to it, and what it may not see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import colours, embed_run, launched, outputs_of, refit_run, settings, silent, tiny_experiment

from tdumpra.artifacts import read_artifact
from tdumpra.core import metrics
from tdumpra.core.calibration import adjust_prior, apply_temperature, class_prior, fit_temperature
from tdumpra.data.dataset import Dataset
from tdumpra.errors import ArtifactError
from tdumpra.evaluation.rivals import adjusted, calibrated
from tdumpra.experiments import ablate, sweep
from tdumpra.method.bank import PrototypeBank
from tdumpra.networks.checkpoint import epochs_behind, is_finished
from tdumpra.networks.model_file import Model
from tdumpra.runs.config import Config, EvaluateConfig
from tdumpra.runs.documents import Part, case_of, evaluated, with_baseline
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.model import model_step
from tdumpra.runs.outputs import TrainedOutputs
from tdumpra.runs.pixel_stages import embed_stage, train_stage
from tdumpra.runs.refit import refit_rows, second_pass
from tdumpra.runs.table_stages import banked, evaluate_step, refit_step, refitted, tune_step
from tdumpra.runs.tables import OutputsTable, read_tables

pytestmark = pytest.mark.filterwarnings("ignore:n_prototypes")


def refit_settings(**train: Any) -> Config:
    config = settings(epochs=2, refit=True, **train)
    return replace(config, evaluate=EvaluateConfig(bootstrap=0))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return refit_run(refit_settings(), tmp_path_factory.mktemp("refit") / "run", colours())


@pytest.fixture
def outputs(trained: RunFolder) -> TrainedOutputs:
    return outputs_of(refit_settings(), trained)


def groups_shown(bank: PrototypeBank) -> set[str]:
    return {case.group for of_class in bank.exemplars for of_prototype in of_class for case in of_prototype}


# --- the second training


def test_the_second_network_is_trained_on_train_and_validation_images(trained, data):
    tables = read_tables(trained.refit)
    first = read_tables(trained)
    assert tables.keys() == {"train", "test"}
    assert set(tables["train"].ids) == set(first["train"].ids) | set(first["val"].ids)
    assert tables["test"].ids == first["test"].ids
    assert tables["train"].identity["encoder"] != first["train"].identity["encoder"]
    steps = [row["step"] for row in trained.refit.read_metrics() if "loss" in row]
    assert max(steps) == 2 * (len(data.rows("train", "val")) // 8)
    assert not any("validation" in row for row in trained.refit.read_metrics())


def test_the_epochs_of_the_checkpoint_in_use_are_carried_over(tmp_path, data, monkeypatch):
    losses, real = iter([3.0, 1.0, 2.0, 2.0]), metrics.classification_metrics

    def scripted(p: Any, y: Any) -> dict[str, float]:
        calls.append(1)
        return {**real(p, y), "nll": next(losses) if len(calls) % 2 else 0.0}  # student, teacher, student, ...

    calls: list[int] = []
    monkeypatch.setattr(metrics, "classification_metrics", scripted)
    config = settings(epochs=4, refit=True, warmup_epochs=0.0)
    config = replace(config, embed=replace(config.embed, checkpoint="best"))
    folder = refit_run(config, tmp_path / "run", data)
    assert epochs_behind(folder.checkpoint("last")) == 4
    assert epochs_behind(folder.refit.checkpoint("last")) == epochs_behind(folder.checkpoint("best")) == 2
    assert is_finished(folder.refit.checkpoint("last"))
    rates = {
        each: [row["learning_rate"] for row in each.read_metrics() if "learning_rate" in row]
        for each in (folder, folder.refit)
    }
    assert rates[folder][-1] < 0.1 * config.train.learning_rate
    assert rates[folder.refit][-1] > 0.5 * config.train.learning_rate  # half-way down the cosine of all four epochs
    last = replace(config, embed=replace(config.embed, checkpoint="last"))
    whole, place, epochs = second_pass(last, data, folder)
    for stage in (train_stage, embed_stage):  # that network would be another: neither is it made nor taken for it
        with pytest.raises(ArtifactError, match="other epochs"):
            stage(last, whole, place, seed=0, fabric=launched(last), console=silent(), epochs=epochs)


def test_a_second_training_that_was_stopped_goes_on(trained, tmp_path, data, monkeypatch):
    config = refit_settings()
    folder = embed_run(config, tmp_path / "run", data)
    whole, place, epochs = second_pass(config, data, folder)
    real = RunFolder.append_metrics

    def stop(self: RunFolder, row: dict[str, Any]) -> None:
        real(self, row)
        if row["step"] == 8:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "append_metrics", stop)
    with pytest.raises(KeyboardInterrupt):
        train_stage(config, whole, place, seed=0, fabric=launched(config), console=silent(), epochs=epochs)
    monkeypatch.undo()
    assert not is_finished(place.checkpoint("last"))
    assert train_stage(config, whole, place, seed=0, fabric=launched(config), console=silent(), epochs=epochs)
    ends = [read_artifact(each.refit.checkpoint("last"), kind="checkpoint", schema=1) for each in (folder, trained)]
    assert all(torch.equal(ends[0].tensors[name], ends[1].tensors[name]) for name in ends[0].tensors)


# --- what is carried over


def test_what_was_chosen_is_carried_over(outputs):
    first = tune_step(outputs).result().tuning.decision
    second = refitted(outputs, first)
    assert second is not None
    assert second.decision.to_json() == first.to_json()
    y = torch.cat([outputs.load().train.y, outputs.load().validation.y])
    assert torch.equal(second.decision.prior, class_prior(y, 3))
    other = refitted(outputs, replace(first, prior=torch.tensor([0.5, 0.25, 0.25])))
    assert other is not None
    assert torch.equal(other.decision.prior, second.decision.prior)  # counted anew, whatever it was
    assert len(second.rows.train) == len(y)
    bank = banked(outputs, second=True).bank
    assert torch.equal(second.decision.bank.prototypes, bank.prototypes)
    held_out = set(outputs.load().validation.groups.tolist())
    assert held_out <= groups_shown(bank)
    assert not held_out & groups_shown(first.bank)


def test_comparators_are_fitted_on_the_first_network_alone(outputs):
    fitted, splits = tune_step(outputs).result(), outputs.load()
    second = refitted(outputs, fitted.tuning.decision)
    assert second is not None
    first = case_of(splits, (), fitted, outputs.config)
    case = first.refitted(second.rows.train, second.rows.test, second.decision)
    with pytest.raises(RuntimeError, match="never saw"):
        case.fitted("something new", lambda: 1)
    document = evaluated([Part(splits, (), fitted, None, second)], outputs.config, 0).document
    alone = evaluated([Part(splits, (), fitted)], outputs.config, 0).document
    assert document["rows"] == {"train": len(splits.train) + len(splits.validation), "val": len(splits.validation),
                                "test": len(splits.test)}  # fmt: skip
    assert (document["refit"], alone["refit"]) == (True, False)
    test, y = second.rows.test, second.rows.test.y.numpy()
    temperature = fit_temperature(splits.validation.p.log(), splits.validation.y)
    decided = second.decision.decide(test.p, test.z)
    expected = {
        "student": test.p,
        "temperature": apply_temperature(test.p, temperature),
        "similarity": decided.p_sim,
        "gate": decided.p,
    }
    for name, p in expected.items():
        assert document["comparators"][name] == pytest.approx(metrics.classification_metrics(p.numpy(), y)), name
    assert document["comparators"].keys() == alone["comparators"].keys()
    assert document["rivals"] == alone["rivals"] != {}
    on_validation = case.on_validation()
    assert on_validation is not None
    assert torch.equal(on_validation.test.p, splits.validation.p)
    assert on_validation.decision.bank is first.decision.bank


def test_a_carried_exponent_divides_by_the_new_prior(outputs):
    fitted, splits = tune_step(outputs).result(), outputs.load()
    second = refitted(outputs, fitted.tuning.decision)
    assert second is not None
    first = case_of(splits, (), fitted, outputs.config)
    case = first.refitted(second.rows.train, second.rows.test, second.decision)
    case.fits.update({"temperature of p": 2.0, "power of classifier": {"exponent": 0.5, "harmless": True}})
    found = adjusted(case, "classifier", calibrated(case, "p"))
    assert found is not None
    recalibrated = apply_temperature(second.rows.test.p, 2.0)
    torch.testing.assert_close(found.test, adjust_prior(recalibrated, second.decision.prior, 0.5))


def test_the_second_networks_word_on_validation_images_has_no_say(trained, tmp_path, outputs):
    """Whatever it says of images that it was trained on, the evaluation is the same."""
    before = evaluate_step(outputs).make().document
    table = OutputsTable.read(trained.refit.outputs("train"))
    noise = torch.randn(table.logits.shape, generator=torch.Generator().manual_seed(0))
    try:
        replace(table, logits=noise, logits_teacher=noise).write(trained.refit.outputs("train"))
        after = evaluate_step(outputs).make().document
    finally:
        table.write(trained.refit.outputs("train"))
    assert before["inputs"]["refit"] != after["inputs"]["refit"]
    for key in ("comparators", "gate", "selective", "tuning", "retrieval_worth"):
        assert before[key] == after[key]


def test_the_model_holds_the_second_network(outputs, data, trained):
    model = Model.read(model_step(outputs, data).result())
    assert model.identity["encoder"] == OutputsTable.read(trained.refit.outputs("train")).identity["encoder"]
    second = refitted(outputs, tune_step(outputs).result().tuning.decision)
    assert second is not None
    assert torch.equal(model.decision.bank.prototypes, second.decision.bank.prototypes)
    assert model.decision.to_json() == second.decision.to_json()


# --- what does not fit together


def test_tables_that_are_not_there_are_a_step_to_run(tmp_path, data):
    config = refit_settings()
    outputs = outputs_of(config, embed_run(config, tmp_path / "run", data))
    tune_step(outputs).result()
    assert refit_step(outputs).kept() is None
    assert evaluate_step(outputs).kept() is None
    for step in (refit_step(outputs), evaluate_step(outputs)):
        with pytest.raises(ArtifactError, match="tdumpra train  and  tdumpra embed  first"):
            step.result()


def test_a_second_network_of_other_images_is_refused(trained, outputs):
    splits = outputs.load()
    fewer = splits._replace(validation=splits.validation.rows(np.arange(len(splits.validation)) > 0))
    with pytest.raises(ArtifactError, match="trained on other images"):
        refit_rows(outputs, fewer)


@pytest.mark.parametrize("steps", [ablate.steps, sweep.steps])
def test_experiments_compare_first_networks(tmp_path, steps):
    config = tiny_experiment(tmp_path)
    with pytest.raises(ValueError, match=r"--set train\.refit=false"):
        steps(replace(config, train=replace(config.train, refit=True)), tmp_path / "out")


# --- the space of another run


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return refit_run(settings(epochs=1, refit=True), tmp_path_factory.mktemp("refit") / "other", colours())


def in_space_of(config: Config, folder: RunFolder) -> Config:
    return replace(config, bank=replace(config.bank, space=str(folder.root)))


def test_two_runs_with_a_second_network_each(trained, other):
    outputs = outputs_of(in_space_of(refit_settings(), other), trained)
    splits = outputs.load()
    second = refit_rows(outputs, splits)
    tables, again = read_tables(other), read_tables(other.refit)
    assert torch.equal(splits.validation.z, tables["val"].embedding("teacher"))
    assert torch.equal(splits.train.z, tables["train"].embedding("teacher"))
    assert torch.equal(second.train.z, again["train"].embedding("teacher"))
    assert torch.equal(second.test.z, again["test"].embedding("teacher"))
    assert second.test.p_second is not None


def test_a_run_without_a_second_network_takes_the_first_of_another(trained, other):
    config = in_space_of(settings(epochs=2), other)
    splits = outputs_of(config, trained).load()
    assert torch.equal(splits.test.z, read_tables(other)["test"].embedding("teacher"))


def test_a_second_network_beside_a_run_without_one_is_refused(trained, tmp_path, data):
    plain = embed_run(settings(epochs=1), tmp_path / "plain", data)
    with pytest.raises(ArtifactError, match=r"train\.refit is on here and off in"):
        outputs_of(in_space_of(refit_settings(), plain), trained).load()


def test_a_baseline_is_the_network_that_its_run_put_into_use(trained, other, outputs):
    found = with_baseline(outputs.load(), str(other.root), 0).test.p_baseline
    assert found is not None
    assert torch.equal(found, OutputsTable.read(other.refit.outputs("test")).posterior())


def test_data_without_validation(data: Dataset, tmp_path: Path):
    whole = data.without_validation()
    assert whole.rows("val").size == 0
    assert np.array_equal(whole.rows("train"), data.rows("train", "val"))
    assert np.array_equal(whole.rows("test"), data.rows("test"))
    assert whole.split.fingerprint != data.split.fingerprint
    assert data.rows("val").size > 0
