"""Run folders: one process at a time, one set of settings, and what is noted down."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_runs import settings

from tdumpra.artifacts import write_json
from tdumpra.errors import TdumpraError
from tdumpra.runs.config import Config, read_config
from tdumpra.runs.folder import RunFolder, RunFolderError, refuse_results_of_another, run_folders


def changed(config: Config, part: str, **values: object) -> Config:
    return replace(config, **{part: replace(getattr(config, part), **values)})


def test_a_claim_notes_settings_and_environment(tmp_path):
    config = settings(seeds=(3, 4))
    folder = RunFolder(tmp_path / "deep" / "run")
    with folder.claim(config, 4):
        assert read_config(folder.config) == replace(config, seeds=(4,))
        environment = json.loads((folder.root / "environment.json").read_text())
    assert environment["packages"]["torch"]
    assert environment["python"].startswith("3.")
    assert folder.checkpoint("best") == folder.root / "checkpoints" / "best.safetensors"
    assert folder.outputs("val").parent.is_dir()


def test_a_second_claim_is_refused_until_the_first_ends(tmp_path):
    folder = RunFolder(tmp_path)
    refused = pytest.raises(RunFolderError, match="another process is working in")
    with folder.claim(settings(), 0), refused, folder.claim(settings(), 0):
        pass
    with folder.claim(settings(), 0):
        pass


def test_a_claim_removes_what_a_killed_process_left(tmp_path):
    left = tmp_path / "outputs" / ".val.safetensors.abcd1234.part"
    left.parent.mkdir()
    left.touch()
    os.utime(left, (0, 0))
    with RunFolder(tmp_path).claim(settings(), 0):
        assert not left.exists()


def test_settings_may_change_until_something_was_made(tmp_path):
    folder = RunFolder(tmp_path)
    for size in (8, 16):
        with folder.claim(settings(batch_size=size), 0):
            pass
    assert read_config(folder.config).train.batch_size == 16


@pytest.mark.parametrize(
    ("part", "values", "said"),
    [
        ("train", {"batch_size": 4}, r"train\.batch_size was 8 and is now 4"),
        ("network", {"embedding": 9}, r"network\.embedding was 8 and is now 9"),
        ("data", {"split_seed": 5}, r"data\.split_seed was 0 and is now 5"),
        ("augment", {"horizontal_flip": 0.1}, r"augment\.horizontal_flip was 0\.5 and is now 0\.1"),
    ],
)
def test_what_differs_is_said(tmp_path, part, values, said):
    folder = trained(tmp_path)
    with pytest.raises(RunFolderError, match=said), folder.claim(changed(settings(), part, **values), 0):
        pass
    assert read_config(folder.config) == settings()  # and nothing was written over


def test_another_seed_is_another_run(tmp_path):
    with (
        pytest.raises(RunFolderError, match=r"seeds was \(0,\) and is now \(1,\)"),
        trained(tmp_path).claim(settings(), 1),
    ):
        pass


def test_many_differences_are_counted(tmp_path):
    other = settings(batch_size=4, epochs=9, learning_rate=0.5, weight_decay=0.3)
    with pytest.raises(RunFolderError, match=r"\(and 1 more\); take another name"), trained(tmp_path).claim(other, 0):
        pass


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("train", {"log_every": 7, "checkpoint_minutes": 1.0, "accelerator": "auto"}),
        ("data", {"workers": 5, "pipeline": "device", "cache": "elsewhere"}),
        ("bank", {"n_prototypes": 3}),
        ("tune", {"preset": "paper"}),
        ("embed", {"batch_size": 3}),
    ],
)
def test_what_has_no_bearing_on_the_weights_may_change(tmp_path, part, values):
    with trained(tmp_path).claim(changed(settings(), part, **values), 0):
        pass


def trained(root: Path) -> RunFolder:
    folder = RunFolder(root)
    with folder.claim(settings(), 0):
        folder.checkpoint("last").write_bytes(b"weights")
    return folder


def test_seeds_live_side_by_side(tmp_path):
    assert run_folders(tmp_path, (7,)) == {7: RunFolder(tmp_path)}
    assert run_folders(tmp_path, (0, 1)) == {s: RunFolder(tmp_path / f"seed-{s}") for s in (0, 1)}


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunFolderError, match=r"cannot use the folder .*file"),
        RunFolder(tmp_path / "file" / "x").claim(settings(), 0),
    ):
        pass


def test_metrics_that_cannot_be_written(tmp_path):
    with pytest.raises(RunFolderError, match=r"cannot write .*metrics\.jsonl"):
        RunFolder(tmp_path / "gone").append_metrics({"step": 1})


def test_a_line_cut_short_is_left_out(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.read_metrics() == []
    folder.append_metrics({"step": 1, "epoch": 0, "seconds": float("nan")})
    with folder.metrics.open("a") as file:
        file.write('{"step": 2, "lo' + os.linesep)
    assert folder.read_metrics() == [{"step": 1, "epoch": 0, "seconds": None}]


def test_one_seed_of_a_run_that_had_several_is_where_it_was(tmp_path):
    config = settings(seeds=(0, 1))
    for seed, folder in run_folders(tmp_path, config.seeds).items():
        with folder.claim(config, seed):
            pass
    assert run_folders(tmp_path, (1,))[1].root == tmp_path / "seed-1"
    assert run_folders(tmp_path, (2,))[2].root == tmp_path
    assert run_folders(tmp_path / "new", (0,))[0].root == tmp_path / "new"


@pytest.mark.parametrize("content", [{"name": "first"}, {}])
def test_results_without_a_name_or_of_ones_own_may_be_written_over(tmp_path, content):
    refuse_results_of_another(Config(name="first"), tmp_path)
    write_json(tmp_path / "evaluation.json", kind="evaluation", schema=1, content=content)
    refuse_results_of_another(Config(name="first"), tmp_path)
    if content:
        with pytest.raises(TdumpraError, match=r"holds the results of 'first', which .* set name = 'first'"):
            refuse_results_of_another(Config(name="second"), tmp_path)
