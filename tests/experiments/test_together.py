"""Outputs in one table: of one network, and of the same test rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.support import output_files, save_problem, seed_arrays

from tdumpra.errors import TdumpraError
from tdumpra.experiments import ablate, reproduce, sweep
from tdumpra.report import outcome
from tdumpra.runs.config import Config, TuneConfig
from tdumpra.runs.steps import run

SHARED = "must share their test rows"


def outputs(folder: Path, *names: str, other: str | None = None) -> Config:
    """Files of outputs; ``other`` has lost a test row."""
    files = [save_problem(folder / f"{name}.npz") for name in names]
    if other is not None:
        files.append(folder / f"{other}.npz")
        np.savez(files[-1], allow_pickle=False, **{name: array[:-1] for name, array in seed_arrays().items()})
    return Config(outputs=output_files(*files))


def test_an_ablation_is_of_one_network(tmp_path):
    config = outputs(tmp_path, "a_ce_seed0", "a_joint_seed0", "a_joint_seed1")
    assert len(ablate.steps(config, tmp_path)) == 3 + 2 * 5  # with the single paths calibrated
    several = outputs(tmp_path, "a_joint_seed0", "b_joint_seed0")
    with pytest.raises(TdumpraError, match=r"the outputs are of 2 \(a, b\)"):
        ablate.steps(several, tmp_path)
    assert len(reproduce.steps("ham10000", {}, several, tmp_path)) == 2  # both trained with the contrastive loss


@pytest.mark.parametrize("other", ["a_joint_seed1", "a_ce_seed0"])
def test_trainings_of_a_backbone_share_their_test_rows(tmp_path, other):
    config = outputs(tmp_path, "a_joint_seed0", other=other)
    for steps in (ablate.steps, partial(reproduce.steps, "ham10000", {})):
        with pytest.raises(TdumpraError, match=f"trainings of one backbone {SHARED}"):
            steps(config, tmp_path)


def test_models_that_are_evaluated_apart_need_not(tmp_path):
    assert len(outcome.evaluate.steps(outputs(tmp_path, "a_joint_seed0", other="a_ce_seed0"), tmp_path)) == 2
    with pytest.raises(TdumpraError, match=f"seeds of one model {SHARED}"):
        outcome.evaluate.steps(outputs(tmp_path, "a_joint_seed0", other="a_joint_seed1"), tmp_path)


def test_what_is_tuned_together_is_of_one_kind(tmp_path):
    config = outputs(tmp_path, "a_joint_seed0")
    more = tmp_path / "a_joint_seed1.npz"
    np.savez(more, allow_pickle=False, **seed_arrays(n_classes=3))
    config = replace(config, outputs=(*config.outputs, *output_files(more)))
    pooled = replace(config, tune=TuneConfig(pool_seeds=True))
    for steps in (sweep.steps, outcome.tune.steps):
        with pytest.raises(TdumpraError, match=r"3 classes and .* has 4: seeds of one model must agree"):
            steps(pooled, tmp_path)
        assert steps(config, tmp_path)


def test_ids_in_one_file_alone_are_no_contradiction(tmp_path):
    with_ids = save_problem(tmp_path / "a_joint_seed0.npz")
    without = save_problem(tmp_path / "a_ce_seed0.npz", leave_out=("id",))
    config = Config(outputs=output_files(with_ids, without))
    results = run(ablate.steps(config, tmp_path / "out"))
    assert len(ablate.table(config, results).rows) == 8
