"""Outer folds: each its own folder, gate and evaluation; their test rows are scored together, seed by seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import save_problem, seed_arrays

from tdumpra.artifacts import read_json, write_json
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.experiments.together import refuse_folds, refuse_strangers
from tdumpra.report import outcome
from tdumpra.report.runs import write_report
from tdumpra.runs.config import Config, DataConfig, EvaluateConfig, OutputFile, TuneConfig
from tdumpra.runs.folder import RunFolder, RunFolderError, members, run_folders
from tdumpra.runs.outputs import Outputs, all_outputs, folds_of_seeds
from tdumpra.runs.steps import plan, run
from tdumpra.runs.tables import run_with_tables

QUICK: dict[str, Any] = {"tune": TuneConfig(preset="paper"), "evaluate": EvaluateConfig(bootstrap=10)}


def save_fold(path: Path, fold: int, seed: int = 0) -> Path:
    """Outputs of a fold: its test rows are its own, and no other fold's."""
    arrays: dict[str, Any] = seed_arrays(seed)
    of_test = arrays["split"] == 2
    for name in ("group", "id"):
        arrays[name] = np.where(of_test, np.char.add(f"fold{fold}-", arrays[name]), arrays[name])
    return save_problem(path, **arrays)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Two folds of two seeds."""
    folder = tmp_path_factory.mktemp("saved")
    files = tuple(
        OutputFile(file=str(save_fold(folder / f"s{seed}f{fold}.npz", fold, seed)), seed=seed, fold=fold)
        for seed in (0, 1)
        for fold in (0, 1)
    )
    return Config(name="net", folder=str(folder / "out"), outputs=files, **QUICK)


def in_folds(root: Path, **data: Any) -> Config:
    return Config(name="tiny", folder=str(root), data=DataConfig(outer_folds=2, **data))


def begin(root: Path) -> None:
    """Leave what a training leaves."""
    for path in (RunFolder(root).config, RunFolder(root).outputs("train")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


class TestFolders:
    def test_folds_lie_below_their_seed(self, tmp_path):
        config = in_folds(tmp_path)
        assert [each.folder.root for each in members(config)] == [tmp_path / "fold-0", tmp_path / "fold-1"]
        assert [each.config.data.fold for each in members(config)] == [0, 1]
        both = [each.folder.root.relative_to(tmp_path) for each in members(replace(config, seeds=(0, 3)))]
        assert [str(each) for each in both] == ["seed-0/fold-0", "seed-0/fold-1", "seed-3/fold-0", "seed-3/fold-1"]
        (alone,) = members(in_folds(tmp_path, fold=1))
        assert alone.folder.root == tmp_path / "fold-1"

    def test_one_seed_of_several_is_where_it_was(self, tmp_path):
        begin(tmp_path / "seed-1" / "fold-0")
        assert run_folders(tmp_path, (1,))[1].root == tmp_path / "seed-1"

    def test_runs_with_folds_and_without_do_not_mix(self, tmp_path):
        begin(tmp_path / "plain")
        with pytest.raises(RunFolderError, match="a run without folds"):
            members(in_folds(tmp_path / "plain"))
        begin(tmp_path / "folds" / "fold-0")
        with pytest.raises(RunFolderError, match="a run of outer folds"):
            members(Config(folder=str(tmp_path / "folds")))
        with pytest.raises(RunFolderError, match="a run of one seed"):
            members(replace(in_folds(tmp_path / "folds"), seeds=(0, 1)))

    def test_another_run_stands_for_its_same_fold(self, tmp_path):
        for place in ("folds/fold-0", "folds/fold-1", "seeds/seed-2/fold-1", "plain"):
            begin(tmp_path / place)

        def found(run: str, seed: int, fold: int) -> str:
            return str(run_with_tables(str(tmp_path / run), seed, fold=fold).root.relative_to(tmp_path))

        assert found("folds", 0, 1) == "folds/fold-1"
        assert found("seeds", 2, 1) == "seeds/seed-2/fold-1"
        assert found("plain", 0, 1) == "plain"  # a frozen encoder; what was trained on test rows is refused later
        with pytest.raises(ArtifactError, match="of seed 0, fold 2: there are fold-0, fold-1"):
            found("folds", 0, 2)


class TestOutputs:
    def test_of_a_training(self, tmp_path):
        outputs = all_outputs(replace(in_folds(tmp_path), seeds=(0, 1)))
        assert [(each.seed, each.fold) for each in outputs] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert [len(folds) for folds in folds_of_seeds(outputs)] == [2, 2]
        elsewhere = all_outputs(in_folds(tmp_path), tmp_path / "out")
        assert [each.place for each in elsewhere] == [tmp_path / "out" / "fold-0", tmp_path / "out" / "fold-1"]

    def test_of_files(self, saved):
        found = all_outputs(saved)
        assert [each.label for each in found] == [f"net_seed{s}_fold{f}" for s in (0, 1) for f in (0, 1)]
        numbered = all_outputs(replace(saved, outputs=tuple(replace(each, seed=None) for each in saved.outputs)))
        assert [(each.seed, each.fold) for each in numbered] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert found[1].place == Path(str(saved.folder)) / "net_seed0" / "fold-1"

    def test_a_gate_for_all_seeds_is_chosen_fold_by_fold(self, saved):
        pooled = all_outputs(replace(saved, tune=TuneConfig(preset="paper", pool_seeds=True)))
        assert [[(o.seed, o.fold) for o in each.others] for each in pooled] == [[(1, 0)], [(1, 1)], [(0, 0)], [(0, 1)]]

    def test_files_that_do_not_make_folds(self, saved):
        first, second, *_ = saved.outputs
        with pytest.raises(TdumpraError, match="both of net, seed 0, fold 0"):
            all_outputs(replace(saved, outputs=(first, replace(second, fold=0))))
        with pytest.raises(TdumpraError, match="name their fold and others do not"):
            all_outputs(replace(saved, outputs=(first, replace(second, fold=None))))

    def test_experiments_work_on_one_split(self, saved, tmp_path):
        for config in (saved, in_folds(tmp_path)):
            with pytest.raises(TdumpraError, match="a sweep works on one split"):
                refuse_folds(config, "a sweep")
        refuse_folds(in_folds(tmp_path, fold=1), "a sweep")


class TestTogether:
    def outputs(self, saved: Config, *files: tuple[Path, int, int]) -> tuple[Outputs, ...]:
        named = tuple(OutputFile(file=str(file), seed=seed, fold=fold) for file, seed, fold in files)
        return all_outputs(replace(saved, outputs=named))

    def test_folds_share_no_test_row(self, saved, tmp_path):
        same = [(save_fold(tmp_path / f"{i}.npz", 0), 0, i) for i in (0, 1)]
        with pytest.raises(TdumpraError, match="is tested in two folds"):
            refuse_strangers(self.outputs(saved, *same))

    def test_seeds_share_the_rows_of_all_folds(self, saved, tmp_path):
        refuse_strangers(all_outputs(saved))
        files = [(save_fold(tmp_path / f"{number}.npz", number), number, number) for number in (0, 1)]
        with pytest.raises(TdumpraError, match="must share their test rows"):
            refuse_strangers(self.outputs(saved, *files))


def test_rows_of_all_folds_are_scored_together_then_averaged_over_seeds(saved):
    root = Path(str(saved.folder))
    steps = outcome.evaluate.steps(saved, root)
    assert [step.name for step in steps[:3]] == ["net, seed 0, fold 0", "net, seed 0, fold 1", "net, seed 0"]
    found = outcome.evaluate.write(saved, run(steps), root).document
    assert found["seeds"] == [0, 1]
    for seed in (0, 1):
        place = root / f"net_seed{seed}"
        folds = [read_json(place / f"fold-{f}" / "evaluation.json", kind="evaluation", schema=1) for f in (0, 1)]
        together = read_json(place / "evaluation.json", kind="evaluation", schema=1)
        assert (together["folds"], folds[1]["folds"]) == ([0, 1], [1])
        assert together["rows"]["test"] == sum(each["rows"]["test"] for each in folds)
        mean = np.mean([each["comparators"]["gate"]["accuracy"] for each in folds])  # folds of equal size
        assert together["comparators"]["gate"]["accuracy"] == pytest.approx(mean)
        groups = [each["bootstrap"]["groups"] for each in (*folds, together)]
        assert groups[2] == groups[0] + groups[1]
        assert found["by_seed"][str(seed)]["comparators"] == together["comparators"]
    before = {path: path.read_bytes() for path in root.rglob("*.json")}
    assert all(each.finished for each in plan(outcome.evaluate.steps(saved, root)))
    run(outcome.evaluate.steps(saved, root))
    assert {path: path.read_bytes() for path in root.rglob("*.json")} == before
    page = write_report(root, limit=0)
    for of_seed in (page.parent / "seed-0", page.parent / "seed-1"):
        assert "Fold by fold" in (of_seed / "index.html").read_text()
        assert (of_seed / "fold-1" / "index.html").exists()
    assert "Seed by seed" in page.read_text()
    path = root / "net_seed0" / "evaluation.json"
    content = read_json(path, kind="evaluation", schema=1)
    write_json(path, kind="evaluation", schema=1, content={**content, "inputs": {"folds": ["others", "of before"]}})
    with pytest.raises(ArtifactError, match="was evaluated with other folds"):
        write_report(root, limit=1)


def test_a_baseline_is_that_of_the_same_fold(saved, tmp_path):
    config = replace(saved, evaluate=EvaluateConfig(bootstrap=0, baseline=str(tmp_path)))
    with pytest.raises(ArtifactError, match="of seed 0, fold 0"):
        run(outcome.evaluate.steps(config, tmp_path / "out"))
