"""Trainings behind an experiment: made once, shared, finished first, and never in the run's own folder."""

from __future__ import annotations

import io
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tiny_runs import launched, silent, tiny_experiment

from tdumpra.data.dataset import open_data
from tdumpra.errors import ArtifactError, StopRequestedError
from tdumpra.experiments import ablate
from tdumpra.networks import train
from tdumpra.runs import pixel_stages
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.outputs import Outputs, all_outputs, variant_outputs
from tdumpra.runs.steps import plan, run

pytestmark = pytest.mark.filterwarnings("ignore:n_prototypes=5 is more than the distinct groups")


def variant(config: Config) -> Outputs:
    (found,) = variant_outputs(config)
    return found


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_nobody_trained_is_trained_once_and_shared(tmp_path, monkeypatch):
    """The rows of the ablation stand on two trainings."""
    config = tiny_experiment(tmp_path)
    assert variant(config).seconds_to_make() is None  # nobody knows yet
    trained = []
    original = pixel_stages.train_and_embed

    def counted(config: Config, folder: RunFolder, *arguments: Any) -> None:
        trained.append(folder.root)
        original(config, folder, *arguments)

    monkeypatch.setattr(pixel_stages, "train_and_embed", counted)
    assert len(run(ablate.steps(config, tmp_path / "out"))) == 8  # two of them calibrated
    assert variant(config).seconds_to_make() == 0  # it is there
    other = replace(config, train=replace(config.train, learning_rate=1.0))
    assert (variant(other).seconds_to_make() or 0) > 0  # what was trained tells
    for network in (replace(config.network, backbone="resnet18"), replace(config.network, image_size=48)):
        assert variant(replace(config, network=network)).seconds_to_make() is None  # of another network it does not
    assert len(trained) == 2  # with the contrastive loss, and without
    assert all(root.parent == tmp_path / "run" / "trainings" for root in trained)
    assert all(each.finished for each in plan(ablate.steps(config, tmp_path / "out")))
    run(ablate.steps(config, tmp_path / "again"))
    assert len(trained) == 2


def test_outputs_of_another_precision_are_not_taken_for_these(tmp_path, monkeypatch):
    config = tiny_experiment(tmp_path)
    rough = replace(config, embed=replace(config.embed, precision="bfloat16"))
    folder = RunFolder(tmp_path / "run")
    pixel_stages.train_and_embed(rough, folder, 0)
    assert variant(rough).origin == folder.root
    assert variant(config).origin != folder.root
    assert variant(config).seconds_to_make() != 0
    assert variant(replace(rough, embed=replace(rough.embed, batch_size=3))).seconds_to_make() == 0
    elsewhere = replace(rough, data=replace(rough.data, workers=1), train=replace(rough.train, log_every=7))
    assert variant(elsewhere).identity() == variant(rough).identity()  # nor does how it was computed matter
    with folder.claim(config, 0):  # notes the other precision; the tables are what they were
        assert folder.was_embedded_with(config, 0)
    assert variant(config).seconds_to_make() != 0
    with pytest.raises(ArtifactError, match=r"embed\.precision"):
        all_outputs(config)[0].load()
    own = contents(folder.root)
    with monkeypatch.context() as patched:
        patched.setattr(pixel_stages, "train", lambda *_, **__: pytest.fail("trained again"))
        variant(config).load()  # embeds again, elsewhere
    assert {path: path.read_bytes() for path in own} == own
    made = variant(config)
    assert made.seconds_to_make() == 0
    assert made.identity() != variant(rough).identity()
    assert [made.origin] == list(folder.root.glob("trainings/*"))
    renamed = made.origin.rename(made.origin.parent / "by-another-name")
    assert (variant(config).origin, variant(config).identity()) == (renamed, made_identity(config, renamed))


def made_identity(config: Config, root: Path) -> dict[str, Any]:
    """Return the identity of the same tables where they are a run's own."""
    (own,) = all_outputs(replace(config, folder=str(root)))
    return own.identity()


def test_a_damaged_table_is_made_again_elsewhere(tmp_path):
    config, folder = tiny_experiment(tmp_path), RunFolder(tmp_path / "run")
    pixel_stages.train_and_embed(config, folder, 0)
    assert variant(config).origin == folder.root
    folder.outputs("train").write_bytes(b"torn")
    assert variant(config).origin != folder.root
    variant(config).load()
    assert folder.outputs("train").read_bytes() == b"torn"


def test_a_training_that_was_stopped_is_finished_first(tmp_path, monkeypatch):
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

    monkeypatch.setattr(pixel_stages, "train", stopped)
    with pytest.raises(StopRequestedError):
        pixel_stages.train_and_embed(config, folder, 0)
    monkeypatch.setattr(pixel_stages, "train", ended)
    console = silent()
    pixel_stages.embed_stage(config, open_data(config.data), folder, fabric=launched(config), console=console)
    assert "is not trained to its end" in cast("io.StringIO", console.file).getvalue()
    with pytest.warns(UserWarning, match="before its training had come to its end"):
        before = all_outputs(config)[0].load().test.p
    assert variant(config).seconds_to_make() != 0
    own = contents(folder.root)
    steps = ablate.steps(config, tmp_path / "out")[-1:]
    run(steps)
    assert plan(steps)[0].finished
    assert not torch.equal(before, variant(config).load().test.p)
    (below,) = (tmp_path / "run").glob("trainings/*")
    logged = [row["step"] for row in RunFolder(below).read_metrics() if "loss" in row]
    assert logged[0] > 1  # a copy went on where the run had stopped, and the run is as it was
    assert {path: path.read_bytes() for path in own} == own


def test_a_run_of_one_seed_is_found_among_several(tmp_path):
    config = tiny_experiment(tmp_path)
    pixel_stages.train_and_embed(config, RunFolder(tmp_path / "run"), 0)
    first, second = variant_outputs(replace(config, seeds=(0, 1)))
    assert first.origin == tmp_path / "run"
    assert second.origin.parent == tmp_path / "run" / "trainings"
