"""Steps: each is done once, and again when its inputs change or its file is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tdumpra.runs import steps
from tdumpra.runs.steps import Step, cell, digest, in_one_thread, plan, read_kept, run, write_kept

NAMES = ("a", "b", "ccc")


def cells(out: Path, log: list[str], *, fail_at: str | None = None, **more: Any) -> list[Step[dict[str, Any]]]:
    def make(name: str) -> Step[dict[str, Any]]:
        def compute() -> dict[str, Any]:
            if name == fail_at:
                raise KeyboardInterrupt
            log.append(name)
            return {"value": float("nan") if name == "b" else len(name)}

        return cell(out, name, lambda: {"what": name, **more}, compute, 2.0)

    return [make(name) for name in NAMES]


def test_an_interrupted_grid_resumes(tmp_path):
    log: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run(cells(tmp_path, log, fail_at="ccc"))
    assert log == ["a", "b"]
    assert [each.finished for each in plan(cells(tmp_path, log))] == [True, True, False]
    results = run(cells(tmp_path, log))
    assert log == ["a", "b", "ccc"]  # nothing twice
    assert {name: result["value"] for name, result in results.items()} == {"a": 1, "b": None, "ccc": 3}
    assert run(cells(tmp_path, log)) == results


def test_a_plan_does_nothing(tmp_path):
    log: list[str] = []
    assert [(each.name, each.finished, each.seconds) for each in plan(cells(tmp_path, log))] == [
        (name, False, 2.0) for name in NAMES
    ]
    assert not log
    assert not list(tmp_path.iterdir())


def test_a_fresh_result_equals_a_resumed_one(tmp_path):
    fresh = run(cells(tmp_path, []))
    assert fresh == run(cells(tmp_path, []))


def test_other_inputs_are_another_cell(tmp_path):
    log: list[str] = []
    run(cells(tmp_path, log))
    run(cells(tmp_path, log, seed=1))
    assert log == [*NAMES, *NAMES]
    assert all(each.finished for each in plan(cells(tmp_path, log)))  # the first are kept beside them


def test_a_damaged_cell_is_computed_again(tmp_path):
    log: list[str] = []
    run(cells(tmp_path, log))
    for path in (tmp_path / "cells").iterdir():
        path.write_bytes(path.read_bytes()[:-3])
    run(cells(tmp_path, log))
    assert log == [*NAMES, *NAMES]


def test_a_result_is_kept_under_the_inputs_that_computing_made(tmp_path):
    """Outputs that are still to be trained have no contents to name before."""
    log, inputs = [], {"outputs": "to be made"}

    def compute() -> dict[str, Any]:
        log.append("computed")
        inputs["outputs"] = "contents"
        return {}

    step = cell(tmp_path, "variant", lambda: inputs, compute, None)
    assert step.result()["inputs"] == {"outputs": "contents"}
    assert step.result() == step.kept()
    inputs["outputs"] = "to be made"
    assert step.kept() is None
    assert log == ["computed"]


def test_progress_covers_the_whole_grid(tmp_path):
    seen: list[tuple[str, int, int]] = []
    run(cells(tmp_path, []), lambda step, done, total: seen.append((step.name, done, total)))
    assert seen == [("a", 0, 3), ("b", 1, 3), ("ccc", 2, 3)]


def test_another_computation_makes_everything_again(tmp_path, monkeypatch):
    before = digest({"x": 1})
    assert digest({"x": 1}) == before != digest({"x": 2})
    log: list[str] = []
    run(cells(tmp_path, log))
    monkeypatch.setattr(steps, "COMPUTATION", -1)
    assert digest({"x": 1}) != before
    assert not any(each.finished for each in plan(cells(tmp_path, log)))


def test_a_kept_document_is_of_its_kind_and_inputs(tmp_path):
    path = tmp_path / "deep" / "document.json"
    assert read_kept(path, "sweep", "inputs") is None
    written = write_kept(path, "sweep", "inputs", {"value": float("inf"), "pair": (1, 2)})
    found = read_kept(path, "sweep", "inputs")
    assert found is not None
    assert {name: found[name] for name in written} == written
    assert read_kept(path, "sweep", "other inputs") is None
    assert read_kept(path, "evaluation", "inputs") is None
    path.write_text("{}")
    assert read_kept(path, "sweep", "inputs") is None


def test_small_tables_are_worked_on_in_one_thread_and_large_ones_are_not():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with in_one_thread(1000):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with in_one_thread(2**30):
            assert torch.get_num_threads() == 2
        with pytest.raises(ValueError, match="no"), in_one_thread(1000):
            raise ValueError("no")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
