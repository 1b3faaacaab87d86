"""Figures stay as they were: commands and public names against values that were kept in ``tests/figures``.

Counts, labels and decisions must be equal; other numbers agree to a relative 1e-12, and what training gives to 1e-6.
New keys are allowed. ``python -m tests.figures.make`` writes the expected values again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.figures.cases import CASES, LOOSE, SLOW
from tests.figures.condense import differences, summary
from tests.figures.shared_outputs import CASES as REAL_CASES
from tests.figures.shared_outputs import OUTPUTS

EXPECTED = Path(__file__).parent / "figures"
RELATIVE = 1e-12

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # notes on small validation data and the like


def check(name: str, found: Any, relative: float) -> None:
    expected = json.loads((EXPECTED / f"{name}.json").read_text())
    departures = differences(expected, json.loads(json.dumps(found)), relative=relative)
    assert not departures, "\n".join([f"{len(departures)} figures of {name} changed", *departures[:40]])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]
)
def test_no_figure_changes(name, tmp_path):
    check(name, CASES[name](tmp_path), LOOSE.get(name, RELATIVE))


@pytest.mark.slow
@pytest.mark.skipif(not OUTPUTS.is_dir(), reason="real outputs lie beside the clone in ../shared/outputs, if at all")
@pytest.mark.parametrize("name", sorted(REAL_CASES))
def test_no_figure_of_real_outputs_changes(name, tmp_path):
    check(name, REAL_CASES[name](tmp_path), RELATIVE)


def test_every_kept_file_has_its_case():
    kept = {path.stem for path in EXPECTED.glob("*.json")}
    assert {name for name in kept if not name.startswith("real_")} == set(CASES)
    assert not REAL_CASES or {name for name in kept if name.startswith("real_")} == set(REAL_CASES)


@pytest.mark.parametrize(
    ("found", "place"),
    [
        ({"a": 1.0 + 1e-9, "b": [1, "x"]}, ".a"),
        ({"a": 1.0, "b": [2, "x"]}, ".b[0]"),
        ({"a": 1.0, "b": [1, "y"]}, ".b[1]"),
        ({"a": 1.0, "b": [1]}, ".b"),
        ({"a": None, "b": [1, "x"]}, ".a"),
        ({"b": [1, "x"]}, ".a"),
    ],
)
def test_a_changed_figure_is_named(found, place):
    expected = {"a": 1.0, "b": [1, "x"]}
    assert [line.partition(":")[0] for line in differences(expected, found, relative=RELATIVE)] == [place]
    assert not differences(expected, {"b": [1, "x"], "a": 1.0 + 1e-15, "new": 3}, relative=RELATIVE)


def test_a_summary_shows_exchanged_and_renamed_figures():
    given = {"x": [0.25, 0.5, None], "y": "kept"}
    assert summary(given) == summary(dict(reversed(given.items())))
    for other in ({"x": [0.5, 0.25, None], "y": "kept"}, {"x": [0.25, 0.5, 0.0], "y": "kept"}, {**given, "y": "left"}):
        assert summary(other) != summary(given)
