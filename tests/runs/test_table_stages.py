"""Bank, gate and evaluation: made once, made again when what they depend on changes or their file is damaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import equal_tensors, output_files, save_problem
from tiny_runs import CLASS_NAMES, outputs_of, settings

from tdumpra.artifacts import read_json
from tdumpra.method.bank import PrototypeBank
from tdumpra.runs import steps, table_stages
from tdumpra.runs.config import BankConfig, Config, EvaluateConfig, TuneConfig
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.outputs import Outputs, all_outputs
from tdumpra.runs.table_stages import (
    banked,
    evaluate_step,
    evaluation_made_from,
    fitted_variant,
    gate_made_from,
    gate_of,
    over_models,
    tune_step,
)
from tdumpra.runs.tables import read_tables
from tdumpra.tuning.presets import PRESETS


def outputs_in(folder: Path, *files: Path, **changes: Any) -> tuple[Outputs, ...]:
    """Return outputs whose stages take a moment, of a file beside them unless some are given."""
    paths = files or (save_problem(folder / "net.npz"),)
    config = Config(
        folder=str(folder / "out"),
        outputs=output_files(*paths),
        tune=TuneConfig(preset="paper"),
        evaluate=EvaluateConfig(bootstrap=10),
    )
    return all_outputs(replace(config, **changes))


@pytest.fixture
def outputs(tmp_path: Path) -> Outputs:
    (found,) = outputs_in(tmp_path)
    return found


def changed(outputs: Outputs, part: str, **values: Any) -> Outputs:
    config = outputs.config
    return replace(outputs, config=replace(config, **{part: replace(getattr(config, part), **values)}))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_everything_is_made_once_and_reads_back_the_same(outputs, monkeypatch):
    assert evaluate_step(outputs).kept() is None
    fitted, result = tune_step(outputs).result(), evaluate_step(outputs).result()
    assert set(contents(outputs.place)) == {
        "bank.safetensors", "gate.safetensors", "gate.json", "evaluation.json", "compared.json",
    }  # fmt: skip
    for name in ("cluster", "fit", "evaluated"):
        monkeypatch.setattr(table_stages, name, None)  # it would fail if it were called
    again = tune_step(outputs).result()
    assert equal_tensors(again.to_artifact().tensors, fitted.to_artifact().tensors)
    assert evaluate_step(outputs).result() == result
    assert not banked(outputs).made
    assert gate_of(outputs)["sentence"] == fitted.verdict()


def test_each_stage_stands_on_the_one_before(outputs):
    bank = banked(outputs)
    assert bank.made
    kept = RunFolder(outputs.place).bank.read_bytes()
    fitted = tune_step(outputs).result()
    assert torch.equal(fitted.tuning.decision.bank.prototypes, bank.bank.prototypes)
    assert RunFolder(outputs.place).bank.read_bytes() == kept
    gate = contents(outputs.place)["gate.safetensors"]
    evaluation = evaluate_step(outputs).result().document
    assert contents(outputs.place)["gate.safetensors"] == gate
    assert evaluation["tuning"] == fitted.verdict()
    splits = outputs.load()
    assert evaluation["rows"]["test"] == len(splits.test)
    right = fitted.tuning.decision.decide(splits.test.p, splits.test.z).p.argmax(1) == splits.test.y
    assert evaluation["comparators"]["gate"]["accuracy"] == pytest.approx(right.double().mean().item())


@pytest.mark.parametrize(
    "name", ["bank.safetensors", "gate.safetensors", "gate.json", "evaluation.json", "compared.json"]
)
@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes()[:-3]), Path.unlink])
def test_what_is_damaged_or_gone_is_made_again(outputs, name, damage: Callable[[Path], Any]):
    evaluate_step(outputs).result()
    before = contents(outputs.place)
    damage(outputs.place / name)
    banked(outputs)
    evaluate_step(outputs).result()
    assert contents(outputs.place) == before


@pytest.mark.parametrize(
    ("part", "values", "of_gate"),
    [
        ("bank", {"n_prototypes": 2}, True),
        ("bank", {"seed": 1}, True),
        ("tune", {"preset": "paper-swapped"}, True),
        ("tune", {"objective": "accuracy"}, True),
        ("evaluate", {"bootstrap": 11}, False),
    ],
)
def test_a_change_of_settings_is_noticed(outputs, part, values, of_gate):
    evaluate_step(outputs).result()
    other = changed(outputs, part, **values)
    assert evaluate_step(other).kept() is None
    assert (tune_step(other).kept() is None) == of_gate
    assert banked(other).made == (part == "bank")


def test_thumbnails_are_no_part_of_it(outputs):
    evaluate_step(outputs).result()
    assert evaluate_step(changed(outputs, "bank", thumbnails=False)).kept() is not None


def test_other_contents_of_the_file_are_noticed(outputs):
    evaluate_step(outputs).result()
    save_problem(outputs.origin, seed=1)
    assert tune_step(outputs).kept() is None
    assert evaluate_step(outputs).kept() is None
    assert banked(outputs).made


def test_another_computation_is_noticed(outputs, monkeypatch):
    evaluate_step(outputs).result()
    monkeypatch.setattr(steps, "COMPUTATION", -1)
    assert tune_step(outputs).kept() is None
    assert evaluate_step(outputs).kept() is None
    assert banked(outputs).made


def test_an_altered_table_of_columns_asks_for_a_new_evaluation_alone(outputs, tmp_path):
    table = tmp_path / "columns.csv"
    ids = outputs.load().test.ids
    assert ids is not None

    def write(site: str) -> None:
        table.write_text("id,site\n" + "".join(f"{name},{site}{i % 2}\n" for i, name in enumerate(ids)))

    write("back")
    asked = changed(outputs, "evaluate", metadata=str(table), subgroups=("site",))
    assert set(evaluate_step(asked).result().document["subgroups"]["site"]) >= {"back0", "back1"}
    write("face")
    assert tune_step(asked).kept() is not None
    assert evaluate_step(asked).kept() is None
    table.rename(tmp_path / "moved.csv")
    write("face")
    before = evaluation_made_from(asked)
    moved = changed(asked, "evaluate", metadata=str(tmp_path / "moved.csv"))
    assert evaluation_made_from(moved) == before  # named by its contents


def test_tables_behind_a_bank_have_sources(run):
    config = settings(epochs=1)
    config = replace(config, bank=BankConfig(n_prototypes=2), tune=TuneConfig(preset="paper"))
    outputs = outputs_of(replace(config, evaluate=EvaluateConfig(bootstrap=10)), run)
    found = banked(outputs)
    assert found.health.purity.keys() == set(CLASS_NAMES)  # the records have a source
    assert torch.equal(PrototypeBank.load(run.bank).prototypes, found.bank.prototypes)
    evaluation = evaluate_step(outputs).result().document
    assert evaluation["rows"] == {part: len(table) for part, table in read_tables(run).items()}
    assert {"student", "teacher", "gate", "oracle"} <= set(evaluation["comparators"])
    other = replace(outputs.config, evaluate=replace(outputs.config.evaluate, baseline=str(run.root)))
    asked = replace(outputs, config=other)
    before = evaluation_made_from(asked)
    table = read_tables(run)["test"]
    replace(table, logits=table.logits + torch.arange(3.0)).write(run.outputs("test"))
    assert evaluation_made_from(asked) != before


class TestVariants:
    def test_the_runs_own_gate_is_read(self, outputs, tmp_path, monkeypatch):
        own = tune_step(outputs).result()
        monkeypatch.setattr(table_stages, "fit", None)
        found = fitted_variant(outputs, tmp_path / "experiment")
        assert equal_tensors(found.to_artifact().tensors, own.to_artifact().tensors)
        assert not (tmp_path / "experiment").exists()

    def test_another_gate_is_kept_below_the_experiment_and_nothing_in_the_run(self, outputs, tmp_path, monkeypatch):
        tune_step(outputs).result()
        before = contents(outputs.place)
        preset = replace(PRESETS["paper"], theta=(0.9,))
        found = fitted_variant(outputs, tmp_path / "experiment", preset)
        assert found.tuning.curve.axes["theta"] == (0.9,)
        assert contents(outputs.place) == before
        monkeypatch.setattr(table_stages, "fit", None)
        again = fitted_variant(outputs, tmp_path / "experiment", preset)
        assert equal_tensors(again.to_artifact().tensors, found.to_artifact().tensors)

    def test_a_damaged_gate_is_made_again(self, outputs, tmp_path):
        fitted_variant(outputs, tmp_path / "experiment")
        (path,) = (tmp_path / "experiment" / "gates").iterdir()
        before = path.read_bytes()
        path.write_bytes(before[:-3])
        fitted_variant(outputs, tmp_path / "experiment")
        assert path.read_bytes() == before


class TestSeeds:
    @pytest.fixture
    def files(self, tmp_path: Path) -> list[Path]:
        return [save_problem(tmp_path / f"net_seed{seed}.npz", seed) for seed in (0, 1)]

    def test_pooled_seeds_make_one_choice(self, files, tmp_path):
        both = outputs_in(tmp_path, *files, tune=TuneConfig(preset="paper", pool_seeds=True))
        first, second = (tune_step(each).result().tuning.decision for each in both)
        assert first.thresholds == second.thresholds
        assert not torch.equal(first.bank.prototypes, second.bank.prototypes)
        assert {gate_of(each)["cases"]["rows"] for each in both} == {400}
        save_problem(files[1], seed=2)
        assert tune_step(both[0]).kept() is None  # the other seed had a say

    def test_seeds_apart_do_not_heed_each_other(self, files, tmp_path):
        first, _ = outputs_in(tmp_path, *files)
        name = gate_made_from(first)
        save_problem(files[1], seed=2)
        assert gate_made_from(first) == name

    def test_models_are_taken_together_over_their_seeds(self, files, tmp_path):
        found = outputs_in(tmp_path, *files, save_problem(tmp_path / "other.npz"))
        results = {each.name: evaluate_step(each).result() for each in found}
        models = over_models(found, results)
        assert list(models) == ["net", "other"]
        written = read_json(found[2].place / "evaluation.json", kind="evaluation", schema=1)
        corrected = models["other"]["paired"]["student"].pop("holm_p")  # for two models on one test set
        assert corrected >= written["paired"]["student"]["sign_flip_p"]
        assert {name: written[name] for name in models["other"]} == models["other"]  # one seed's is its own
        accuracies = [each["comparators"]["gate"]["accuracy"] for each in models["net"]["by_seed"].values()]
        assert models["net"]["comparators"]["gate"]["accuracy"] == pytest.approx(np.mean(accuracies))
