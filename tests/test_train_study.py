"""The driver of a study's trainings: what a job is, what it writes, what is skipped, and what a failure does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.train_study import KINDS, Job, missing, train_one
from PIL import Image
from tiny_config import write_config

from tdumpra.method.output_files import read_outputs

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the study's files, all of them small; the working folder is beside it."""
    monkeypatch.chdir(tmp_path)
    for name in ("folds-lite0-ce", "folds-lite2"):
        data = "outer_folds = 2"
        write_config(
            tmp_path / f"{name}.toml", tmp_path / "cache", name=name, source="synthetic:n=240,size=32",
            epochs=1, seeds="[0, 1]", data=data,
        )  # fmt: skip
    write_config(tmp_path / "recipe-paper.toml", tmp_path / "cache", name="recipe-paper", epochs=1)
    return tmp_path


def test_a_job_is_called_after_what_it_trains():
    job = Job.parse("site-vidir_modern-seed-1", ROOT / "studies" / "ham10000", ())
    first, second = job.members()
    assert {first.config.data.hold_out, second.config.data.hold_out} == {"site=vidir_modern"}
    assert (first.seed, second.seed) == (1, 1)
    assert first.config.train.contrastive_weight == 0
    assert second.config.network.backbone == "tf_efficientnet_lite2"
    assert len({first.folder.root, second.folder.root}) == 2
    with pytest.raises(SystemExit, match="KIND-PART-seed-NUMBER"):
        Job.parse("fold-0", ROOT, ())


def test_every_kind_has_its_configurations():
    parts = {"site": "rosendahl", "recipe": "paper-grouped"}
    for kind in KINDS:
        job = Job.parse(f"{kind}-{parts.get(kind, '4')}-seed-0", ROOT / "studies" / "ham10000", ["train.epochs=3"])
        assert [each.config.train.epochs for each in job.members()] == [3] * len(job.studies)


def test_the_last_network_of_a_job_writes_its_files(studies: Path):
    out = studies / "outputs"
    job = Job.parse("fold-1-seed-0", studies, ())
    assert [each.number for each in missing([job], out, views=True)] == [0, 1]
    train_one(job, 0, out, views=True)
    assert not out.exists()
    assert [each.number for each in missing([job], out, views=True)] == [1]
    train_one(job, 1, out, views=True)
    assert not list(missing([job], out, views=True))
    splits = read_outputs(out / "fold-1-seed-0.npz")
    assert splits.test.p_second is not None
    with np.load(out / "views-fold-1-seed-0.npz") as views, np.load(out / "fold-1-seed-0.npz") as file:
        assert len(views["id"]) == len(file["y"]) == 240
        scored = (file["split"] > 0).sum()
        assert len(views["eight_second_logits"]) == len(views["zoom_classifier_z"]) == scored
        assert np.isfinite(views["grey_classifier_logits"]).all()
        assert not [name for name in views.files if name.startswith("lesion")], "there are no masks"


def test_a_view_of_the_lesion_is_taken_where_there_are_masks(studies: Path):
    rng = np.random.default_rng(0)
    mask = np.zeros((32, 32), np.uint8)
    mask[4:12, 20:28] = 255
    Image.fromarray(mask).save(studies / "mask.png")
    lines = ["image,label,mask"]
    for number in range(60):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(studies / f"{number}.png")
        lines.append(f"{number}.png,{'abc'[number % 3]},mask.png")
    (studies / "images.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    job = Job.parse("fold-0-seed-0", studies, [f"data.source=csv:{studies / 'images.csv'}"])
    for number in (0, 1):
        train_one(job, number, studies / "outputs", views=True)
    with np.load(studies / "outputs" / "views-fold-0-seed-0.npz") as views:
        plain, lesion = (views[f"{view}_second_z"][-30:].astype(float) for view in ("grey", "lesion"))
        assert len(views["lesion_second_z"]) == 60
    assert np.isfinite(lesion).all()
    assert np.abs(plain - lesion).max() > 1e-3


@pytest.mark.slow
def test_folds_test_every_image_once(studies: Path):
    tested: list[str] = []
    for fold in (0, 1):
        job = Job.parse(f"fold-{fold}-seed-1", studies, ())
        for number in (0, 1):
            train_one(job, number, studies / "outputs", views=False)
        with np.load(studies / "outputs" / f"{job.name}.npz") as file:
            tested += file["id"][file["split"] == 2].tolist()
    assert len(tested) == len(set(tested)) == 240


def test_one_network_keeps_both_spaces(studies: Path):
    job = Job.parse("recipe-paper-seed-0", studies, ())
    train_one(job, 0, studies / "outputs", views=True)
    with np.load(studies / "outputs" / "recipe-paper-seed-0.npz") as file:
        assert "p_second" not in file.files
        assert not np.array_equal(file["z"], file["zt"])
    assert [path.name for path in (studies / "outputs").iterdir()] == ["recipe-paper-seed-0.npz"]


@pytest.mark.slow
def test_processes_side_by_side(studies: Path):
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "src", ROOT / "tests" / "helpers")))
    jobs = ["fold-0-seed-0", "recipe-absent-seed-0", "fold-1-seed-0"]
    (studies / "recipe-absent.toml").write_text(
        (studies / "recipe-paper.toml").read_text(encoding="utf-8").replace("tiny_networks:plain", "tiny_networks:no"),
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "benchmarks.train_study", "outputs", *jobs, "--studies", ".", "--processes", "2"]
    environment = {**os.environ, "PYTHONPATH": paths}
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert first.returncode == 1, first.stderr
    assert "recipe-absent-seed-0 recipe-absent: FAILED" in first.stdout
    assert sorted(path.stem for path in (studies / "outputs").iterdir()) == ["fold-0-seed-0", "fold-1-seed-0"]
    again = subprocess.run(
        [*command[:4], "fold-0-seed-0", *command[7:]], env=environment, capture_output=True, text=True, check=False
    )
    assert (again.returncode, again.stdout) == (0, "fold-0-seed-0: there\n")
