from __future__ import annotations

import io
import os
import signal
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from demo_arrays import write_demo
from tests.support import make_problem, output_files, save_problem, without_training_rows
from tiny_runs import launched, silent, tiny_experiment

from tdumpra.data.dataset import open_data
from tdumpra.errors import ArtifactError, InputFileError, StopRequestedError, TdumpraError
from tdumpra.experiments import evaluation
from tdumpra.runs import outputs as run_outputs
from tdumpra.runs.config import BankConfig, Config, OutputFile, TrainConfig, TuneConfig
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.outputs import SavedRun

CE, JOINT = "x/lite0_ce2_seed0.npz", "x/lite0_joint_seed3.npz"
WITHOUT = TrainConfig(contrastive_weight=0.0)


def test_what_the_configuration_says_of_a_file():
    plain, ce, joint, other, seed = (
        OutputFile(file="a.npz"),
        OutputFile(file="b.npz", training="ce"),
        OutputFile(file="c.npz", training="joint"),
        OutputFile(file="d.npz", training="ce"),
        OutputFile(file="e.npz", training="joint", seed=7, backbone="net"),
    )
    runs = run_outputs.saved_runs(Config(name="mine", outputs=(plain, ce, joint, other, seed)))
    assert [(run.path.name, run.model, run.seed) for run in runs] == [
        ("a.npz", "mine", 0), ("b.npz", "mine_ce", 0), ("c.npz", "mine_joint", 0), ("d.npz", "mine_ce", 1),
        ("e.npz", "net_joint", 7),
    ]  # fmt: skip


def test_the_training_decides_which_file_answers():
    config = Config(outputs=output_files(CE, JOINT))
    assert run_outputs.seeds_for(config) == (3,)
    assert run_outputs.seeds_for(replace(config, train=WITHOUT)) == (0,)


def test_a_file_that_does_not_say_stands_for_the_configuration_itself():
    config = Config(outputs=output_files("mine.npz"))
    assert run_outputs.seeds_for(config) == (0,)
    assert run_outputs.seeds_for(replace(config, train=WITHOUT)) == ()


def test_the_same_seed_twice():
    with pytest.raises(TdumpraError, match="are both seed 0 of lite0_ce"):
        run_outputs.saved_runs(Config(outputs=output_files("a/lite0_ce_seed0.npz", "b/lite0_ce_seed0.npz")))


def test_what_cannot_be_had():
    with pytest.raises(TdumpraError, match="does not exist: run  tdumpra train  and  tdumpra embed  first"):
        run_outputs.run_identity(run_outputs.saved_runs(Config(name="never trained"))[0])
    with pytest.raises(TdumpraError, match="no saved outputs were trained without the contrastive loss and seed 0"):
        run_outputs.outputs_for(Config(outputs=output_files(JOINT), train=WITHOUT), 0)
    with pytest.raises(TdumpraError, match="not 'other'"):
        run_outputs.outputs_for(Config(outputs=output_files(CE), train=WITHOUT, bank=BankConfig(space="other")), 0)


def test_training_is_part_of_the_identity():
    both = Config(seeds=(0, 1))
    assert run_outputs.identity(both, 0) != run_outputs.identity(both, 1)
    assert run_outputs.identity(Config(), 0) != run_outputs.identity(Config(train=WITHOUT), 0)
    assert run_outputs.identity(Config(), 0) == run_outputs.identity(Config(name="other"), 0)


@pytest.mark.filterwarnings("ignore:n_prototypes=5 is more than the distinct groups")
def test_what_nobody_trained_is_trained_once_and_shared(tmp_path, monkeypatch):
    """The six rows of the ablation stand on two trainings; the run's own folder is one of them once it exists."""
    from tdumpra.experiments import ablate, grid
    from tdumpra.runs import stages

    config = tiny_experiment(tmp_path)
    assert run_outputs.training_seconds(config, 0) is None  # nobody knows yet
    trained = []
    train = stages.train_and_embed

    def counted(config, folder, seed):
        trained.append(folder.root)
        train(config, folder, seed)

    monkeypatch.setattr(stages, "train_and_embed", counted)
    results = grid.run(ablate.cells(config), tmp_path / "out")
    assert len(results) == 6
    assert run_outputs.training_seconds(config, 0) == 0  # it is there
    other = replace(config, train=replace(config.train, learning_rate=1.0))
    assert (run_outputs.training_seconds(other, 0) or 0) > 0  # what was trained tells
    assert len(trained) == 2  # with the contrastive loss, and without
    assert all(root.parent == tmp_path / "run" / "trainings" for root in trained)
    grid.run(ablate.cells(config), tmp_path / "again")
    assert len(trained) == 2


def test_what_was_pooled_is_part_of_a_cells_name(tmp_path) -> None:
    paths = [tmp_path / f"net_joint_seed{seed}.npz" for seed in (0, 1)]
    for seed, path in enumerate(paths):
        write_demo(path, seed)
    config = Config(outputs=output_files(*paths), tune=TuneConfig(pool_seeds=True))
    before = run_outputs.pooled_runs_identity(config)
    assert run_outputs.pool_identity(config) == before  # the contents of files name them either way
    write_demo(paths[1], seed=2)
    assert run_outputs.pooled_runs_identity(config) != before
    alone = replace(config, tune=TuneConfig())
    assert run_outputs.pool_identity(alone) == run_outputs.pooled_runs_identity(alone) == {}


@pytest.mark.filterwarnings("ignore:n_prototypes=5 is more than the distinct groups")
def test_outputs_of_another_precision_are_not_taken_for_these(tmp_path, monkeypatch):
    from tdumpra.runs import stages

    config = tiny_experiment(tmp_path)
    rough = replace(config, embed=replace(config.embed, precision="bfloat16"))
    folder = RunFolder(tmp_path / "run")
    stages.train_and_embed(rough, folder, 0)
    assert run_outputs.training_seconds(rough, 0) == 0
    assert run_outputs.training_seconds(config, 0) != 0
    assert run_outputs.training_seconds(replace(rough, embed=replace(rough.embed, batch_size=3)), 0) == 0
    elsewhere = replace(rough, data=replace(rough.data, workers=1), train=replace(rough.train, log_every=7))
    assert run_outputs.identity(elsewhere, 0) == run_outputs.identity(rough, 0)  # nor does how it was computed matter
    with folder.claim(config, 0):  # notes the other precision; the tables are what they were
        assert folder.was_embedded_with(config, 0)
    assert run_outputs.training_seconds(config, 0) != 0
    with pytest.raises(ArtifactError, match=r"embed\.precision = 'bfloat16', and it is 'float32' now"):
        run_outputs.read_saved(run_outputs.saved_runs(config)[0], config)
    own = {path: path.read_bytes() for path in folder.root.rglob("*") if path.is_file()}
    with monkeypatch.context() as patched:
        patched.setattr(stages, "train", lambda *_, **__: pytest.fail("trained again"))
        run_outputs.outputs_for(config, 0)  # embeds again, elsewhere
    assert {path: path.read_bytes() for path in own} == own
    assert run_outputs.training_seconds(config, 0) == 0
    assert run_outputs.identity(config, 0) != run_outputs.identity(rough, 0)
    assert len(list(folder.root.glob("trainings/*"))) == 1
    renamed = next(folder.root.glob("trainings/*")).rename(folder.root / "trainings" / "by-another-name")
    assert run_outputs.identity(config, 0) == run_outputs.run_identity(SavedRun(renamed, "x", None, 0, False))


@pytest.mark.filterwarnings("ignore:n_prototypes=5 is more than the distinct groups")
def test_a_training_that_was_stopped_is_finished_first(tmp_path, monkeypatch):
    from tdumpra.experiments import ablate, grid
    from tdumpra.networks import train
    from tdumpra.runs import stages

    config = tiny_experiment(tmp_path)
    config = replace(config, train=replace(config.train, epochs=3))
    folder = RunFolder(tmp_path / "run")
    ended = train.train

    def stopped(*arguments: Any, **options: Any) -> Any:
        screen = options["screen"]
        advance = screen.advance

        def stop(progress: Any) -> None:
            advance(progress)
            if progress.epoch == 1:
                os.kill(os.getpid(), signal.SIGINT)

        screen.advance = stop
        return ended(*arguments, **options)

    monkeypatch.setattr(stages, "train", stopped)
    with pytest.raises(StopRequestedError):
        stages.train_and_embed(config, folder, 0)
    monkeypatch.setattr(stages, "train", ended)
    fabric = launched(config)
    console = silent()
    stages.embed_stage(config, open_data(config.data), folder, fabric=fabric, console=console)
    assert "is not trained to its end" in cast("io.StringIO", console.file).getvalue()
    with pytest.warns(UserWarning, match="before its training had come to its end"):
        before = run_outputs.read_saved(run_outputs.saved_runs(config)[0], config).test.p
    assert run_outputs.training_seconds(config, 0) != 0
    own = {path: path.read_bytes() for path in folder.root.rglob("*") if path.is_file()}
    cells = ablate.cells(config)
    grid.run(cells[-1:], tmp_path / "out")
    assert grid.plan(cells[-1:], tmp_path / "out")[0].finished
    assert not torch.equal(before, run_outputs.outputs_for(config, 0).test.p)
    (below,) = (tmp_path / "run").glob("trainings/*")
    logged = [row["step"] for row in RunFolder(below).read_metrics() if "loss" in row]
    assert logged[0] > 1  # a copy went on where the run had stopped, and the run is as it was
    assert {path: path.read_bytes() for path in own} == own


def test_the_teacher_classifies_where_the_configuration_says_so(tmp_path) -> None:
    made = make_problem(0)
    teacher = np.concatenate([part.p for part in made])[:, ::-1]
    path = save_problem(tmp_path / "net_joint_seed0.npz", pt=teacher)
    student, asked = (
        Config(outputs=output_files(path), tune=TuneConfig(classifier=who)) for who in ("student", "teacher")
    )
    before, after = (run_outputs.outputs_for(config, 0) for config in (student, asked))
    for own, swapped in ((before.validation, after.validation), (before.test, after.test)):
        assert own.p_teacher is not None
        assert torch.equal(swapped.p, own.p_teacher)
        assert not torch.equal(swapped.p, own.p)
    assert after.train.p is None  # only the student's is known
    assert after.fingerprint != before.fingerprint
    first, second = (evaluation.gate_cells(config)[0].settings for config in (student, asked))
    assert first != second


def test_a_teacher_that_the_file_lacks_is_missed(tmp_path) -> None:
    path = save_problem(tmp_path / "net_joint_seed0.npz")
    config = Config(outputs=output_files(path), tune=TuneConfig(classifier="teacher"))
    with pytest.raises(InputFileError, match=r"has no pt, .* put them into the file, or take \"student\""):
        run_outputs.outputs_for(config, 0)


def test_saved_outputs_heed_role_and_space(tmp_path) -> None:
    made = make_problem(0)
    z = np.concatenate([part.z for part in made])
    save_problem(tmp_path / "net.npz", 0, zt=z[:, ::-1])
    for space, wanted in (("teacher", z[:, ::-1]), ("student", z)):
        config = Config(outputs=output_files(tmp_path / "net.npz"), bank=BankConfig(space=space))
        found = run_outputs.outputs_for(config, 0).train.z
        np.testing.assert_allclose(found, wanted[: len(made.train.y)], atol=1e-6)
    elsewhere = Config(outputs=output_files(tmp_path / "net.npz"), bank=BankConfig(space="runs/other"))
    with pytest.raises(TdumpraError, match="the teacher's and the student's space, not 'runs/other'"):
        run_outputs.outputs_for(elsewhere, 0)


@pytest.mark.parametrize("missing", [1, 3])
def test_a_class_without_a_training_row_is_refused(tmp_path, missing) -> None:
    names = np.array(["nv", "bcc", "bkl", "mel"])
    path = without_training_rows(tmp_path / "net_joint_seed0.npz", missing, classes=names)
    with pytest.raises(InputFileError, match=rf"class {missing} \('{names[missing]}'\) has no training row: give it"):
        run_outputs.outputs_for(Config(outputs=output_files(path)), 0)
    meant = Config(outputs=output_files(path), bank=BankConfig(n_classes=4))
    assert run_outputs.outputs_for(meant, 0).n_classes == 4
    with pytest.raises(InputFileError, match=r"it tells 4 classes apart, and bank\.n_classes is 5"):
        run_outputs.outputs_for(Config(outputs=output_files(path), bank=BankConfig(n_classes=5)), 0)


def test_what_a_file_does_not_say_is_said(tmp_path) -> None:
    z = np.concatenate([part.z for part in make_problem(0)])
    save_problem(tmp_path / "mine.npz")
    save_problem(tmp_path / "net_joint_seed1.npz", zt=z[:, ::-1])
    files = output_files(tmp_path / "mine.npz", tmp_path / "net_joint_seed1.npz")
    protocol, training, teacher = run_outputs.unknown_of_files(Config(outputs=files))
    assert protocol.startswith("The protocol of saved outputs is not known")
    assert training.endswith("taken as joint (mine.npz).")
    assert teacher.endswith("are the student's (mine.npz).")
    assert len(run_outputs.unknown_of_files(Config(outputs=files[1:]))) == 1
    assert run_outputs.unknown_of_files(Config()) == []
