"""Every figure of the HAM10000 page stands in a result file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tdumpra.artifacts import read_json

PAGE = Path(__file__).parents[1] / "docs" / "results" / "ham10000.md"
FILES = PAGE.with_suffix("")
METRICS = ("accuracy", "macro_f1", "balanced_accuracy", "macro_auroc", "ece", "nll")
LEADS = ("accuracy", "macro_f1", "balanced_accuracy", "ambiguous_accuracy", "aurc", "macro_auroc")


def evaluation(name: str) -> dict[str, Any]:
    return read_json(FILES / name / "evaluation.json", kind="evaluation", schema=1)


def rows_after(marker: str) -> Iterator[list[str]]:
    """The cells of the table that follows a marker, without its heading."""
    lines = PAGE.read_text(encoding="utf-8").split(f"<!-- {marker} -->\n")[1].splitlines()
    for line in lines[2:]:
        if not line.startswith("|"):
            return
        yield [cell.strip().strip("`") for cell in line.strip("|").split("|")]


def signed(points: dict[str, Any]) -> str:
    low, high = points["interval"]
    return f"{100 * points['difference']:+.2f} ({100 * low:+.2f} to {100 * high:+.2f})"


def test_comparators() -> None:
    found = evaluation("system")
    rows = list(rows_after("figures: system"))
    assert {row[0] for row in rows} == set(found["comparators"]) - {"baseline"}
    for name, *cells in rows:
        for metric, cell in zip(METRICS, cells, strict=True):
            mean, spread = found["comparators"][name][metric], found["comparators_std"][name][metric]
            assert cell in (f"{mean:.4f} ± {spread:.4f}", f"{mean:.4f}"), (name, metric)


def test_leads_over_rivals() -> None:
    paired = evaluation("system")["paired"]
    rows = list(rows_after("paired: system"))
    assert len(rows) == 5
    for name, *cells in rows:
        assert cells[:-2] == [signed(paired[name][metric]) for metric in LEADS]
        assert cells[-2] == f"{paired[name]['fixed']} : {paired[name]['broken']}"
        assert float(cells[-1]) == pytest.approx(paired[name]["sign_flip_p"], rel=0.06)


def test_gates_by_setting_and_space() -> None:
    rows = list(rows_after("gates"))
    assert len(rows) == 9
    for name, *cells in rows:
        found = evaluation(name)
        for who, cell in zip(("student", "gate"), cells[:2], strict=True):
            assert cell == " / ".join(f"{found['comparators'][who][metric]:.4f}" for metric in METRICS[:3])
        assert cells[2] == f"{found['gate']['fixed']} : {found['gate']['broken']}"
        assert float(cells[3]) == pytest.approx(found["gate"]["sign_flip_p"], rel=0.02)
        assert cells[4] == signed(found["paired"]["logit_adjusted"]["balanced_accuracy"])


def test_leak() -> None:
    grouped, by_image = (evaluation(name)["comparators"] for name in ("lite0-preset-default", "lite0-paper"))
    for name, *cells in rows_after("leak"):
        for metric, (before, after, points) in zip(METRICS[::2], (cells[:3], cells[3:]), strict=False):
            assert (before, after) == (f"{grouped[name][metric]:.4f}", f"{by_image[name][metric]:.4f}")
            assert points == f"{100 * (by_image[name][metric] - grouped[name][metric]):+.1f}"


def test_figures_in_the_text() -> None:
    text, found = PAGE.read_text(encoding="utf-8"), evaluation("system")
    gate = found["gate"]
    told = re.search(r"opened on (\d+) of ([\d,]+) .* moved (\d+) labels, fixed (\d+) and broke (\d+)", text)
    assert told is not None
    counts = [int(each.replace(",", "")) for each in told.groups()]
    assert counts == [gate[name] for name in ("opened", "n", "flipped", "fixed", "broken")]
    assert f"takes {found['headroom_taken']:.0%}".replace("%", " %") in text
    leads = found["paired"]["baseline"]
    words = [f"{100 * leads[metric]['difference']:.1f}" for metric in METRICS[:3]]
    assert f"by {words[0]} points of accuracy, {words[1]} of macro-F1 and {words[2]} of balanced accuracy" in " ".join(
        text.split()
    )
