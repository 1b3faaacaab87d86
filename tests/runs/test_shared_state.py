"""Processes with folders of their own go on from the first one's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny_runs import colours, launched, settings, silent, train_run
from two_processes import TWO, run_two

from tdumpra.networks.checkpoint import Checkpointer, Progress, RunFolderError, is_finished, read_networks
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.pixel_stages import embed_stage, train_stage


def own_folder(root: Path, rank: int) -> RunFolder:
    folder = RunFolder(root / f"machine-{rank}")
    for part in ("checkpoints", "outputs"):
        (folder.root / part).mkdir(parents=True, exist_ok=True)
    return folder


def both_stages(rank: int, config: Config, root: Path) -> None:
    fabric, folder = launched(config), own_folder(root, rank)
    train_stage(config, colours(), folder, seed=0, fabric=fabric, console=silent())
    embed_stage(config, colours(), folder, fabric=fabric, console=silent())


def refused(rank: int, config: Config, root: Path) -> None:
    with pytest.raises(RunFolderError, match="do not go on from the same files"):
        train_stage(config, colours(), own_folder(root, rank), seed=0, fabric=launched(config), console=silent())


def test_machines_with_folders_of_their_own_train_like_those_with_one(tmp_path):
    config = settings("tiny_networks:dropout", **TWO)
    run_two(both_stages, config, tmp_path)
    first, second = own_folder(tmp_path, 0), own_folder(tmp_path, 1)
    assert is_finished(first.checkpoint("last"))
    assert first.checkpoint("last").read_bytes() == second.checkpoint("last").read_bytes()
    before = first.outputs("train").read_bytes()
    run_two(both_stages, config, tmp_path)  # a finished run is left as it is, in every process
    assert first.outputs("train").read_bytes() == before


def killed_after_an_epoch(rank: int, config: Config, root: Path) -> None:
    save = Checkpointer.save

    def save_and_die(self: Checkpointer, progress: Progress, name: str = "last") -> None:
        save(self, progress, name)
        if progress.epoch == 1 and name == "last":
            os._exit(0)

    setattr(Checkpointer, "save", save_and_die)  # noqa: B010  # for this process alone
    both_stages(rank, config, root)


def test_a_machine_without_the_checkpoint_resumes_with_the_first(tmp_path):
    config = settings("tiny_networks:dropout", **TWO)
    run_two(both_stages, config, tmp_path / "whole")
    run_two(killed_after_an_epoch, config, tmp_path / "killed")
    first, second = own_folder(tmp_path / "killed", 0), own_folder(tmp_path / "killed", 1)
    assert first.checkpoint("last").exists()
    assert not second.checkpoint("last").exists()
    run_two(both_stages, config, tmp_path / "killed")
    whole = own_folder(tmp_path / "whole", 0)
    assert read_networks(first.checkpoint("last")).identity == read_networks(whole.checkpoint("last")).identity
    for part in ("train", "test"):
        assert first.outputs(part).read_bytes() == whole.outputs(part).read_bytes()


def test_more_training_on_another_machine_than_on_the_first_is_refused_by_all(tmp_path):
    config = settings("tiny_networks:dropout", **TWO)
    own_folder(tmp_path, 0)
    alone = settings("tiny_networks:dropout", batch_size=8)
    train_run(alone, own_folder(tmp_path, 1).root)
    run_two(refused, config, tmp_path)
