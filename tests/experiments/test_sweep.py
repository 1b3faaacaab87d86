"""Which gate the curves are drawn with. The command itself is tried in ``cli/test_experiments``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from tests.support import output_files, save_problem

from tdumpra.experiments import sweep
from tdumpra.runs import table_stages
from tdumpra.runs.config import BankConfig, Config, TuneConfig
from tdumpra.runs.steps import run
from tdumpra.runs.table_stages import fitted_variant
from tdumpra.tuning.fit import Fitted, fit
from tdumpra.tuning.presets import PRESETS


def test_the_gate_that_is_moved_is_called_what_it_is(tmp_path) -> None:
    config = Config(outputs=output_files(save_problem(tmp_path / "mine.npz")))
    (outputs,) = sweep.curve_outputs(config)
    preset = replace(PRESETS["default"], gates=("clauses",))
    tuning = fitted_variant(outputs, tmp_path / "out", preset).tuning
    bench = sweep._bench(outputs.load(), tuning, preset)
    assert bench.decision.calibrated is None  # whatever tuning itself would choose
    assert bench.gate == "the best five-clause gate"
    point = {"value": 0.5, "accuracy": 0.8}
    curve = {"gate": bench.gate, "chosen": 0.5, "points": [{**point, "split": part} for part in ("validation", "test")]}
    summary = sweep._summary((outputs,), {f"mine, seed 0: {parameter}": curve for parameter in sweep.PARAMETERS})
    assert bench.gate in summary.notes[0]


def test_all_curves_of_a_run_stand_on_one_gate(tmp_path, monkeypatch) -> None:
    config = Config(
        folder=str(tmp_path / "run"),
        outputs=output_files(save_problem(tmp_path / "mine.npz")),
        tune=TuneConfig(preset="paper"),
    )
    fitted = []

    def counted(*arguments: Any, **options: Any) -> Fitted:
        fitted.append(options["preset"])
        return fit(*arguments, **options)

    monkeypatch.setattr(table_stages, "fit", counted)
    steps = [step for step in sweep.steps(config, tmp_path / "out") if "lambda" not in step.name]
    assert len(steps) == len(sweep.PARAMETERS) + 1
    results = run([step for step in steps if step.name.endswith((": theta", ": alpha", ": tau"))])
    assert len(fitted) == 1
    assert len({result["gate"] for result in results.values()}) == 1
    assert not (tmp_path / "run").exists()  # an experiment writes to its own folder alone


def test_the_mean_over_seeds_stands_beside_them(tmp_path) -> None:
    files = [save_problem(tmp_path / f"net_joint_seed{seed}.npz", seed) for seed in (0, 1)]
    config = Config(outputs=output_files(*files), tune=TuneConfig(preset="paper"))

    def curve(accuracy: float) -> dict[str, Any]:
        points = [
            {"value": value, "split": split, "n": 160, "accuracy": accuracy if value == 0.5 else 0.5, "opened": 1}
            for value in (0.5, 0.6)
            for split in ("validation", "test")
        ]
        return {"gate": "a gate", "chosen": 0.5, "points": points}

    results = {
        step.name: curve(0.75 if "seed 1" in step.name else 0.5) for step in sweep.steps(config, tmp_path / "out")
    }
    tables = sweep.tables(config, results)
    for name in ("sweep_theta", "sweep_tau", "sweep_lambda"):
        means = [row for row in tables[name].rows if row["seed"] == "mean" and row["split"] == "test"]
        assert [str(row["accuracy"]) for row in means] == ["0.6250 ± 0.1768", "0.5000 ± 0.0000"]
    assert [row["seed"] for row in tables["sweep_summary"].rows].count("mean") == len(sweep.PARAMETERS)
    (points,) = sweep.mean_points(tables["sweep_theta"]).values()
    assert [(point["value"], point["accuracy"]) for point in points] == [(0.5, 0.625)] * 2 + [(0.6, 0.5)] * 2


def test_the_bank_that_is_moved_is_the_bank_in_use(tmp_path) -> None:
    config = Config(outputs=output_files(save_problem(tmp_path / "mine.npz")), bank=BankConfig(n_prototypes=3, seed=7))
    (outputs,) = sweep.curve_outputs(config)
    tuning = fitted_variant(outputs, tmp_path / "out", None).tuning
    bench = sweep._bench(outputs.load(), tuning, PRESETS["default"])
    moved = sweep._bank(bench, outputs.load().train.z, 3, config)
    assert torch.equal(moved.prototypes, tuning.decision.bank.prototypes)
