"""The page of an adaptation: whatever came out, it says so, and a class's name cannot smuggle markup in."""

from __future__ import annotations

from typing import Any

import pytest

from tdumpra.models.ways import WAYS
from tdumpra.report.adaptation_page import adaptation_page, dose_chart, rivals_chart

FIGURES = ("accuracy", "balanced_accuracy", "macro_f1", "nll", "ece")


def figures(value: float) -> dict[str, Any]:
    return {name: {"value": value, "low": value - 0.05, "high": value + 0.05} for name in FIGURES}


def document(**changes: Any) -> dict[str, Any]:
    ways = {
        way: {
            "name": name,
            "words": "dials",
            "figures": figures(0.5 + i / 50),
            "chosen_minus_this": figures(0.1 - i / 50),
        }
        for i, (way, name) in enumerate(WAYS.items())
    }
    gains = {way: figures(0.01 * i) for i, way in enumerate(WAYS) if way != "keep"}
    made = {
        "model": "home.safetensors", "source": "there.npz", "rows": 160, "lesions": 80,
        "objective": "balanced_accuracy",
        "classes": {"<b>amber</b>": 160, "blue": 0}, "missing": ["blue"], "verdict": "linear head with replay wins",
        "wins": True, "way": "head", "shown": "head", "chosen_by_fold": ["head"] * 5, "estimate": figures(0.6),
        "ways": ways,
        "home": {"rows": 200, "before": figures(0.9), "after": figures(0.85), "change": figures(-0.05)},
        "dose": [{"lesions": size, "figures": {}, "gains": gains} for size in (50, 100)], "notes": ["no blue there"],
    }  # fmt: skip
    return {**made, **changes}


@pytest.mark.parametrize(("objective", "columns"), [("accuracy", 1), ("balanced_accuracy", 2)])
def test_a_figure_of_each_way_is_shown_once(objective, columns):
    page = adaptation_page(document(objective=objective))
    row = page.split("the model as it is</th>")[1].split("</tr>")[0]
    assert row.count("0.500 (") == columns


def test_it_shows_figures_charts_and_notes():
    page = adaptation_page(document())
    assert page.count("<svg") == 2
    assert "0.600 (0.550 to 0.650)" in page
    assert "−0.050 (−0.100 to 0.000)" in page.replace("+0.000", "0.000")
    assert "No blue there." in page
    assert "&lt;b&gt;amber" in page
    assert "<b>amber" not in page


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"wins": False, "way": "keep"}, "Nothing wins: the model stays as it is"),
        ({"home": None}, "this cannot be told"),
        ({"dose": []}, "Too few lesions"),
    ],
)
def test_what_is_missing_is_said(changes, said):
    assert said in adaptation_page(document(**changes))


def test_charts_carry_their_numbers():
    rivals, dose = rivals_chart(document()), dose_chart(document())
    assert len(rivals.rows) == 2 * (len(WAYS) + 1)
    assert {row["metric"] for row in rivals.rows} == {"balanced_accuracy", "accuracy"}
    assert [row["lesions"] for row in dose.rows if row["way"] == "head"] == [50, 100]
    assert len(rivals_chart(document(objective="accuracy")).rows) == len(WAYS) + 1
