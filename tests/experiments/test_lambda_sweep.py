from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import output_files, save_problem
from tiny_runs import tiny_experiment

from tdumpra.core.metrics import classification_metrics
from tdumpra.experiments import lambda_sweep
from tdumpra.report import outcome
from tdumpra.runs import pixel_stages
from tdumpra.runs.config import Config, SweepConfig, TuneConfig
from tdumpra.runs.folder import RunFolder, RunFolderError
from tdumpra.runs.outputs import all_outputs
from tdumpra.runs.steps import run
from tdumpra.tuning.fit import fit


def swept(config: Config, out: Path) -> dict[str, dict[str, Any]]:
    return run(lambda_sweep.steps(config, out))


def test_saved_outputs_are_told_apart_by_their_training(tmp_path) -> None:
    paths = [tmp_path / name for name in ("net_ce_seed0.npz", "net_joint_seed0.npz", "other_seed0.npz")]
    for seed, path in enumerate(paths):
        save_problem(path, seed)
    config = Config(outputs=output_files(*paths), tune=TuneConfig(preset="paper-swapped"))
    rows = lambda_sweep.table(config, swept(config, tmp_path / "out")).to_json()["rows"]
    assert [row["value"] for row in rows] == [0.0, 0.0, 0.03, 0.03, None, None]
    assert [row["split"] for row in rows] == ["validation", "test"] * 3


def test_the_figures_are_those_of_both_paths_and_the_gate(tmp_path) -> None:
    save_problem(tmp_path / "net_joint_seed0.npz", 0)
    config = Config(outputs=output_files(tmp_path / "net_joint_seed0.npz"), tune=TuneConfig(preset="paper-swapped"))
    splits = all_outputs(config)[0].load()
    decided = fit(splits, config.bank, config.tune).tuning.decision.decide(splits.test.p, splits.test.z)
    (result,) = swept(config, tmp_path / "out").values()
    found = result["points"][1]
    for prefix, p in (("classifier_", decided.p_cls), ("similarity_", decided.p_sim), ("", decided.p)):
        expected = classification_metrics(p.double().numpy(), splits.test.y.numpy())
        for name in ("accuracy", "balanced_accuracy"):
            assert found[f"{prefix}{name}"] == pytest.approx(expected[name])
    assert found["opened"] == int(decided.opened.sum())


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:n_prototypes=\d+ is more than the distinct groups")
def test_each_weight_is_trained_once_and_the_runs_own_is_used(tmp_path, monkeypatch) -> None:
    config = replace(tiny_experiment(tmp_path), sweep=SweepConfig(contrastive_weights=(0.0, 0.03, 1.0)))
    pixel_stages.train_and_embed(config, RunFolder(tmp_path / "run"), 0)
    trained = []
    train = pixel_stages.train_and_embed

    def counted(config: Config, *arguments: Any) -> None:
        trained.append(config.train.contrastive_weight)
        train(config, *arguments)

    monkeypatch.setattr(pixel_stages, "train_and_embed", counted)
    results = run(outcome.sweep.steps(config, tmp_path / "out"))
    assert trained == [0.0, 1.0]
    found = outcome.sweep.write(config, results, tmp_path / "out")
    assert [table.title for table in found.tables][1:] == ["Sweep of λ"]
    rows = found.document["sweep_lambda"]["rows"]
    assert [row["value"] for row in rows if row["split"] == "test"] == [0.0, 0.03, 1.0]
    swept(config, tmp_path / "again")
    assert trained == [0.0, 1.0]


@pytest.mark.filterwarnings(r"ignore:n_prototypes=\d+ is more than the distinct groups")
def test_a_plain_sweep_trains_nothing(tmp_path, monkeypatch) -> None:
    config = tiny_experiment(tmp_path)
    pixel_stages.train_and_embed(config, RunFolder(tmp_path / "run"), 0)
    monkeypatch.setattr(pixel_stages, "train_and_embed", lambda *_: pytest.fail("trained"))
    (step,) = lambda_sweep.steps(config, tmp_path / "out")
    assert (step.name, step.seconds) == ("tiny, seed 0: lambda 0.03", 1.5)
    results = swept(config, tmp_path / "out")
    assert "name others in sweep.contrastive_weights" in lambda_sweep.table(config, results).notes[-1]
    changed = replace(config, train=replace(config.train, learning_rate=0.5))
    with pytest.raises(RunFolderError):  # the tables are of another training
        swept(changed, tmp_path / "out")


@pytest.mark.filterwarnings(r"ignore:n_prototypes=\d+ is more than the distinct groups")
def test_from_nothing_each_weight_is_trained_and_nothing_else_moved(tmp_path) -> None:
    config = replace(tiny_experiment(tmp_path), sweep=SweepConfig(contrastive_weights=(0.0, 1.0)))
    steps = outcome.sweep.steps(config, tmp_path / "out")
    assert [step.seconds for step in steps] == [None, None]
    results = run(steps)
    found = outcome.sweep.write(config, results, tmp_path / "out")
    assert list(found.document) == ["sweep_lambda"]
    assert "it needs  tdumpra train" in found.sentences[0]
    assert [step.seconds for step in outcome.sweep.steps(config, tmp_path / "out")] == [1.5, 1.5]


def test_weights_that_look_alike_are_told_apart(tmp_path) -> None:
    config = replace(tiny_experiment(tmp_path), sweep=SweepConfig(contrastive_weights=(1.0, 1.0000001)))
    assert len({step.name for step in lambda_sweep.steps(config, tmp_path)}) == 2


def test_a_network_that_is_taken_as_it_is_has_no_weight(tmp_path) -> None:
    config = replace(tiny_experiment(tmp_path), sweep=SweepConfig(contrastive_weights=(1.0,)))
    config = replace(config, network=replace(config.network, finished=True))
    with pytest.raises(ValueError, match="this one is taken as it is"):
        lambda_sweep.steps(config, tmp_path)


def test_saved_outputs_cannot_be_trained(tmp_path) -> None:
    config = Config(outputs=output_files("a.npz"), sweep=SweepConfig(contrastive_weights=(0.1,)))
    with pytest.raises(ValueError, match=r"sweep.contrastive_weights trains networks, and outputs are saved ones"):
        lambda_sweep.steps(config, tmp_path)
