from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tdumpra import run_outputs
from tdumpra.config import Config, TrainConfig
from tdumpra.errors import TdumpraError

CE, JOINT = "x/lite0_ce2_seed0.npz", "x/lite0_joint_seed3.npz"
WITHOUT = TrainConfig(contrastive_weight=0.0)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (CE, ("lite0", "ce", 0)),
        (JOINT, ("lite0", "joint", 3)),
        ("resnet101-scl-s2.csv", ("resnet101", "joint", 2)),
        ("ce=mine.npz", ("mine", "ce", 0)),
        ("joint=runs/a_seed5.npz", ("a", "joint", 5)),
        ("mine.npz", ("mine", None, 0)),
        ("seed1.npz", ("seed1", None, 1)),
    ],
)
def test_names(entry, expected):
    (run,) = run_outputs.saved_runs(Config(outputs=(entry,)))
    assert (run.backbone, run.training, run.seed) == expected
    assert str(run.path) == str(Path(entry.split("=")[-1]))


def test_the_training_decides_which_file_answers():
    config = Config(outputs=(CE, JOINT))
    assert run_outputs.seeds_for(config) == (3,)
    assert run_outputs.seeds_for(replace(config, train=WITHOUT)) == (0,)


def test_a_file_that_does_not_say_stands_for_the_configuration_itself():
    config = Config(outputs=("mine.npz",))
    assert run_outputs.seeds_for(config) == (0,)
    assert run_outputs.seeds_for(replace(config, train=WITHOUT)) == ()


def test_the_same_seed_twice():
    with pytest.raises(TdumpraError, match="both look like seed 0 of lite0_ce: rename one"):
        run_outputs.saved_runs(Config(outputs=("a/lite0_ce_seed0.npz", "b/lite0_ce_seed0.npz")))


def test_what_cannot_be_had():
    with pytest.raises(TdumpraError, match="names no saved outputs"):
        run_outputs.outputs_for(Config(), 0)
    with pytest.raises(TdumpraError, match="no saved outputs were trained without the contrastive loss and seed 0"):
        run_outputs.outputs_for(Config(outputs=(JOINT,), train=WITHOUT), 0)
    with pytest.raises(TdumpraError, match="not 'other'"):
        run_outputs.read_saved(run_outputs.saved_runs(Config(outputs=(CE,)))[0], "other")


def test_training_is_part_of_the_identity():
    assert run_outputs.identity(Config(), 0) != run_outputs.identity(Config(), 1)
    assert run_outputs.identity(Config(), 0) != run_outputs.identity(Config(train=WITHOUT), 0)
    assert run_outputs.identity(Config(), 0) == run_outputs.identity(Config(name="other"), 0)
