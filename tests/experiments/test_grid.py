from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tdumpra.experiments import grid
from tdumpra.experiments.grid import FOLDER, Cell, plan, run


def cells(log: list[str], fail_at: str | None = None) -> list[Cell]:
    def make(name: str) -> Cell:
        def compute() -> dict[str, Any]:
            if name == fail_at:
                raise KeyboardInterrupt
            log.append(name)
            return {"value": float("nan") if name == "b" else len(name)}

        return Cell(name=name, settings={"name": name}, compute=compute, seconds=2.0)

    return [make(name) for name in ("a", "b", "ccc")]


def test_an_interrupted_grid_resumes(tmp_path: Path):
    log: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run(cells(log, fail_at="ccc"), tmp_path)
    assert log == ["a", "b"]
    assert [each.finished for each in plan(cells(log), tmp_path)] == [True, True, False]
    results = run(cells(log), tmp_path)
    assert log == ["a", "b", "ccc"]  # nothing twice
    assert [result["value"] for result in results] == [1, None, 3]
    assert run(cells(log), tmp_path) == results


def test_a_fresh_result_equals_a_resumed_one(tmp_path: Path):
    fresh = run(cells([]), tmp_path)
    assert fresh == run(cells([]), tmp_path)


def test_other_settings_are_another_cell(tmp_path: Path):
    log: list[str] = []
    run(cells(log), tmp_path)
    changed = [Cell(name="a", settings={"name": "a", "seed": 1}, compute=lambda: {"value": 9})]
    assert run(changed, tmp_path)[0]["value"] == 9


def test_a_damaged_cell_is_computed_again(tmp_path: Path):
    log: list[str] = []
    run(cells(log), tmp_path)
    for path in (tmp_path / FOLDER).iterdir():
        path.write_bytes(path.read_bytes()[:-3])
    run(cells(log), tmp_path)
    assert log == ["a", "b", "ccc"] * 2


def test_progress_covers_the_whole_grid(tmp_path: Path):
    seen: list[tuple[str, int, int]] = []
    run(cells([]), tmp_path, lambda cell, done, total: seen.append((cell.name, done, total)))
    assert seen == [("a", 0, 3), ("b", 1, 3), ("ccc", 2, 3)]


def test_another_computation_makes_another_cell(monkeypatch):
    cell = Cell(name="a", settings={"x": 1}, compute=dict)
    before = cell.digest
    monkeypatch.setattr(grid, "COMPUTATION", -1)
    assert cell.digest != before
