"""The page on the default preset's bounds shows the figures of the file beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.cost_of_floors import compared, table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"


def test_the_page_is_made_of_its_file():
    rows = json.loads((RESULTS / "default-gate.json").read_text(encoding="utf-8"))
    assert table(rows) in (RESULTS / "default-gate.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_example_gives_the_figures_of_its_network():
    """The example's outputs are those of one of the networks."""
    kept = json.loads((RESULTS / "default-gate.json").read_text(encoding="utf-8"))
    found = compared(ROOT / "examples" / "ham10000_outputs.npz")
    same = [row for row in kept if row["outputs"] == "two_networks_seed0"]
    assert [row["thresholds"] for row in found] == [row["thresholds"] for row in same]
    for new, old in zip(found, same, strict=True):
        assert new["test"] == pytest.approx(old["test"])
