"""What the table says of its figures. The command itself is tried in ``cli/test_experiments``."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from tests.support import output_files, save_problem

from tdumpra.experiments import ablate, lambda_sweep
from tdumpra.runs.config import BankConfig, Config, NetworkConfig, TuneConfig
from tdumpra.runs.outputs import all_outputs
from tdumpra.runs.steps import run
from tdumpra.tuning.fit import fit
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.presets import PRESETS


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


def test_a_network_that_is_taken_as_it_is_has_nothing_to_ablate(tmp_path) -> None:
    with pytest.raises(ValueError, match="this one is taken as it is"):
        ablate.steps(Config(network=NetworkConfig(backbone="resnet18", finished=True, weights="x.pth")), tmp_path)


def test_a_bank_elsewhere_is_no_part_of_it() -> None:
    assert "is no part of it" in notes_of(Config(bank=BankConfig(space="runs/other")))
    assert "is no part of it" not in notes_of(Config())
