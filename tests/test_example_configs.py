"""The TOML files of ``configs`` and ``studies`` can be read, and those of a study name each other's runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tdumpra.experiments import paper
from tdumpra.runs.config import read_config

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "configs").glob("*.toml"))
STUDY = {path.stem: path for path in sorted((ROOT / "studies" / "ham10000").glob("*.toml")) if path.stem != "base"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_called_after_its_file(path: Path) -> None:
    assert read_config(path).name == path.stem


@pytest.mark.parametrize("name", STUDY)
def test_a_run_of_the_study_uses_runs_of_the_study(name: str) -> None:
    config = read_config(STUDY[name])
    assert config.name == f"ham10000-{name}"
    named = {config.folder, config.bank.space, config.evaluate.baseline} - {None, "teacher"}
    assert named <= {f"runs/ham10000-{other}" for other in STUDY}


def test_the_first_example_is_a_run_of_the_study() -> None:
    assert read_config(ROOT / "configs" / "ham10000-lite0.toml") == read_config(STUDY["lite0"])


@pytest.mark.parametrize("dataset", paper.DATASETS)
def test_the_papers_setting_can_be_planned(dataset, tdumpra, tmp_path, monkeypatch):
    """From the tables alone, without an image."""
    monkeypatch.chdir(tmp_path)
    path = ROOT / "configs" / f"{dataset}-paper.toml"
    config = read_config(path)
    assert (config.recipe, config.data.source.split(":")[0]) == ("paper", dataset)
    assert config.network.backbone in [each.timm for each in paper.BACKBONES]
    tables = ROOT.parent / "shared" / dataset
    if not tables.is_dir():
        pytest.skip(f"needs the tables of {dataset} in ../shared")
    ran = tdumpra("run", path, "--set", f"data.source={dataset}:{tables}", "--plan", "--json")
    assert ran.code == 0, ran.err
    assert len(json.loads(ran.out)["cells"]) == 3 * 4  # of three seeds: train, embed, tune, evaluate
    ran = tdumpra("reproduce", dataset, "--data", tables, "--plan", "--json")
    assert ran.code == 0, ran.err
    assert len(json.loads(ran.out)["cells"]) == 5 * 2 * 3
    assert not any(tmp_path.iterdir())
