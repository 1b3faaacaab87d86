"""What the table says of its figures. The command itself is tried in ``cli/test_experiments``."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import output_files, save_problem, seed_arrays

from tdumpra.core import metrics
from tdumpra.evaluation.over_seeds import Figure
from tdumpra.experiments import ablate, lambda_sweep
from tdumpra.experiments.results import Value
from tdumpra.runs.config import BankConfig, Config, NetworkConfig, TuneConfig
from tdumpra.runs.outputs import all_outputs
from tdumpra.runs.steps import run
from tdumpra.tuning.fit import fit
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.presets import PRESETS

REAL = Path(__file__).parents[3] / "shared" / "outputs" / "lite0_ce2_seed0.npz"


def notes_of(config: Config) -> str:
    results: Any = defaultdict(lambda: defaultdict(float))
    return "\n".join(ablate.table(config, results).notes)


def test_what_is_not_known_of_files_is_not_claimed(tmp_path) -> None:
    notes = notes_of(Config(outputs=output_files(save_problem(tmp_path / "mine.npz"))))
    assert "Protocol grouped" not in notes
    assert notes.startswith("Preset default")
    assert "The protocol of saved outputs is not known" in notes
    assert notes.count("mine.npz") == 2  # its training, and its teacher


def test_a_runs_own_protocol_is_named() -> None:
    assert notes_of(Config()).startswith("Protocol grouped; preset default")
    assert "not known" not in notes_of(Config())


def test_with_folds_nothing_is_chosen_on_rows_that_the_bank_holds(tmp_path) -> None:
    config = Config(
        outputs=output_files(save_problem(tmp_path / "a_joint_seed0.npz")),
        bank=BankConfig(n_prototypes=20),
        tune=TuneConfig(folds=3),
    )
    (outputs,) = all_outputs(config)
    splits = outputs.load()
    fitted = fit(splits, config.bank, config.tune)
    held, unseen = (
        decision.decide(splits.validation.p, splits.validation.z)
        for decision in (fitted.tuning.decision, fitted.unseen)
    )
    right = [float((each.p_sim.argmax(1) == splits.validation.y).double().mean()) for each in (held, unseen)]
    assert right[0] > right[1] + 0.05  # the rows were in the bank
    goal = Goal.check("balanced_accuracy", None, n_classes=4)
    scores = {
        alpha: goal.score(alpha * unseen.p_cls + (1 - alpha) * unseen.p_sim, splits.validation.y).objective
        for alpha in PRESETS["default"].alpha
    }
    assert scores[ablate.fixed_alpha(splits, fitted, config)] == max(scores.values())
    (result,) = run(lambda_sweep.steps(config, tmp_path / "out")).values()
    points = result["points"]
    assert points[0]["similarity_accuracy"] == pytest.approx(right[1])


@pytest.mark.parametrize("preset", ["free", "paper"])
def test_single_paths_are_the_classifier_as_it_is(tmp_path, preset) -> None:
    """An overconfident classifier under a skewed prior: calibration changes its confidence and its labels."""
    arrays: dict[str, Any] = seed_arrays(0)
    sharp = arrays["p"] ** 4 * np.array([8.0, 1.0, 1.0, 1.0])
    arrays["p"] = sharp / sharp.sum(1, keepdims=True)
    files = []
    for training in ("ce", "joint"):
        files.append(tmp_path / f"net_{training}_seed0.npz")
        np.savez(files[-1], **arrays)
    tune = TuneConfig(preset=preset, adjust_prior=True)
    config = Config(name="net", folder=str(tmp_path / "run"), outputs=output_files(*files), tune=tune)
    results = run(ablate.steps(config, tmp_path / "out"))
    rows = {row["number"]: row for row in ablate.table(config, results).rows}
    assert list(rows) == ["1", "1c", "2", "3", "3c", "4", "5", "6"]
    test = arrays["split"] == 2
    p, y = arrays["p"][test], arrays["y"][test]
    raw = metrics.classification_metrics(p, y)
    for number in ("1", "3"):
        assert {name: figure(rows[number][name]) for name in ("accuracy", "ece")} == pytest.approx(
            {name: raw[name] for name in ("accuracy", "ece")}
        )
        assert (rows[number]["fixed"], rows[number]["broken"]) == (0, 0)
        assert figure(rows[f"{number}c"]["ece"]) != pytest.approx(raw["ece"], abs=1e-3)
    for row in rows.values():  # what a row did to the labels of the raw classifier accounts for its accuracy
        gained = (int(str(row["fixed"])) - int(str(row["broken"]))) / len(y)
        assert figure(row["accuracy"]) - raw["accuracy"] == pytest.approx(gained)
    assert rows["1c"]["fixed"] != 0


def figure(value: Value) -> float:
    assert isinstance(value, Figure)
    assert value.mean is not None
    return value.mean


@pytest.mark.skipif(not REAL.is_file(), reason="needs the real outputs in ../shared/outputs")
def test_the_first_row_of_real_outputs_is_the_raw_classifier(tmp_path) -> None:
    config = Config(name="lite0", outputs=output_files(REAL), tune=TuneConfig(preset="free"))
    splits = all_outputs(config)[0].load()
    (step,) = [step for step in ablate.steps(config, tmp_path / "out") if step.name.startswith("row 1,")]
    raw = metrics.classification_metrics(splits.test.p.double().numpy(), splits.test.y.numpy())
    assert step.result()["ece"] == pytest.approx(raw["ece"])
    assert raw["ece"] == pytest.approx(0.0737, abs=5e-5)


def test_a_network_that_is_taken_as_it_is_has_nothing_to_ablate(tmp_path) -> None:
    with pytest.raises(ValueError, match="this one is taken as it is"):
        ablate.steps(Config(network=NetworkConfig(backbone="resnet18", finished=True, weights="x.pth")), tmp_path)


def test_a_bank_elsewhere_is_no_part_of_it() -> None:
    assert "is no part of it" in notes_of(Config(bank=BankConfig(space="runs/other")))
    assert "is no part of it" not in notes_of(Config())
