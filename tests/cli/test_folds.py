"""A run of outer folds on images, from the command line's own entry point."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_config import run_command, write_config

from tdumpra.artifacts import read_json
from tdumpra.checks import SPLITS
from tdumpra.runs.tables import OutputsTable

pytestmark = pytest.mark.filterwarnings("ignore:n_prototypes=5 is more than the distinct groups")
QUICK = "[tune]\npreset = 'paper'"


def in_folds(path: Path, cache: Path, folds: int = 2, *, extra: str = QUICK) -> Path:
    return write_config(path, cache, bootstrap=0, data=f"outer_folds = {folds}", extra=extra)


def test_each_fold_is_trained_tuned_and_scored_apart_and_all_rows_together(tdumpra, tmp_path):
    config, out = in_folds(tmp_path / "run.toml", tmp_path / "cache"), tmp_path / "run"
    ahead = json.loads(tdumpra("run", config, "--out", out, "--plan", "--json").out)["cells"]
    assert len(ahead) == 9  # four stages of two folds, and their evaluation
    assert not any(cell["finished"] for cell in ahead)
    assert not out.exists()
    together = run_command(config, out, quiet=True)[0]
    tested: list[str] = []
    for fold in (0, 1):
        place = out / f"fold-{fold}"
        tables = {part: OutputsTable.read(place / "outputs" / f"{part}.safetensors") for part in SPLITS}
        split = read_json(place / "split.json", kind="split", schema=1)
        assert (split["outer_folds"], split["fold"]) == (2, fold)
        assert not set(tables["train"].groups) & set(tables["test"].groups)
        assert (place / "model.safetensors").exists()
        tested += tables["test"].ids
    assert len(tested) == len(set(tested)) == 120 == together["rows"]["test"]
    ahead = json.loads(tdumpra("run", config, "--out", out, "--plan", "--json").out)["cells"]
    assert [cell["name"] for cell in ahead if not cell["finished"]] == []
    trained = json.loads(tdumpra("train", config, "--out", out, "--json").out)
    assert list(trained) == ["0, fold 0", "0, fold 1"]

    refused = tdumpra("ablate", config, "--out", out)
    assert (refused.code, refused.err.count("one split")) == (2, 1)
    second = in_folds(tmp_path / "second.toml", tmp_path / "cache", extra=f"{QUICK}\n[bank]\nspace = '{out}'")
    scored = run_command(second, tmp_path / "second", quiet=True)[0]
    assert "second" in scored["comparators"]  # each fold beside the same fold of the other run
    other = in_folds(tmp_path / "other.toml", tmp_path / "cache", extra=f"{QUICK}\n[bank]\nspace = '{out}'")
    other.write_text(other.read_text().replace("outer_folds = 2", "outer_folds = 2\n        split_seed = 1"))
    done = tdumpra("run", other, "--out", tmp_path / "other")
    assert done.code == 2
    assert "was trained on" in done.err


def test_what_cannot_be_split_leaves_nothing_behind(tdumpra, tmp_path):
    config = in_folds(tmp_path / "run.toml", tmp_path / "cache", 50)
    held = write_config(tmp_path / "held.toml", tmp_path / "cache", data="hold_out = 'ambiguous=perhaps'")
    for path, said in ((config, "outer_folds = 50 is more"), (held, "it has no (")):
        for more in ((), ("--plan",)):
            done = tdumpra("run", path, "--out", tmp_path / "run", *more)
            assert (done.code, said in done.err, len(done.err.strip().splitlines())) == (2, True, 1), done
    assert sorted(each.name for each in tmp_path.iterdir()) == ["held.toml", "run.toml"]


def test_a_run_on_tables_alone_is_planned(tdumpra, tmp_path, ham_folder):
    for path in ham_folder.rglob("*.jpg"):
        path.unlink()
    config = write_config(tmp_path / "run.toml", tmp_path / "cache", source=f"ham10000:{ham_folder}")
    done = tdumpra("run", config, "--out", tmp_path / "run", "--plan")
    assert done.code == 0, done.err
    assert "8 of 8 labelled images have no file" in done.out
    assert "embed 8 images" in done.out
    assert tdumpra("run", config, "--out", tmp_path / "run").code == 2
