"""The supplement agrees with its files: tables are made of them, and the text's main figures are theirs."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sitegen.results_tables import FILES, PAGES, ROOT, TABLES, evaluation, fill, leads, melanoma_found, points

PAGE = PAGES[0]
TEXT = " ".join(PAGE.read_text(encoding="utf-8").split())
FIRST = ("accuracy", "macro_f1", "balanced_accuracy")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_tables_are_those_of_the_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert fill(text) == text, "run  python -m sitegen.results_tables"


def test_every_table_is_shown_once() -> None:
    named = [name for page in PAGES for name in re.findall(r"<!-- table: (\S+) -->", page.read_text(encoding="utf-8"))]
    assert sorted(named) == sorted(TABLES)


def test_a_wrong_cell_is_found() -> None:
    text = PAGE.read_text(encoding="utf-8")
    cell = leads("system")[1][1]
    assert fill(text.replace(cell, cell.replace("+", "-"), 1)) == text


def test_a_lead_is_the_difference_of_two_rows() -> None:
    found = evaluation("system")
    rows = found["comparators"]
    for metric in FIRST:
        difference = found["paired"]["baseline"][metric]["difference"]
        assert difference == pytest.approx(rows["gate"][metric] - rows["baseline"][metric])
    lead = {"difference": 0.01, "interval": [-0.002, 0.03]}
    assert points(lead) == "+1.00 (-0.20 to +3.00)"


@pytest.mark.parametrize(("name", "words"), [("system", FIRST[::2]), ("system-accuracy", FIRST[::2])])
def test_leads_in_the_text(name: str, words: tuple[str, ...]) -> None:
    paired = evaluation(name)["paired"]["baseline"]
    told = [f"{100 * paired[metric]['difference']:.1f}" for metric in words]
    spoken = {
        "system": "by {} and {} where it is tuned for macro-F1",
        "system-accuracy": "by {} points of accuracy and {} of balanced accuracy where the gate is tuned for accuracy",
    }
    assert spoken[name].format(*told) in TEXT


def test_counts_in_the_text() -> None:
    gate = evaluation("system")["gate"]
    told = re.search(r"opened on (\d+) of ([\d,]+) .*? moved (\d+) labels, fixed (\d+) and broke (\d+)", TEXT)
    assert told is not None
    counts = [int(each.replace(",", "")) for each in told.groups()]
    assert counts == [gate[name] for name in ("opened", "n", "flipped", "fixed", "broken")]
    other = evaluation("system-accuracy")["gate"]
    assert f"which opened on {other['opened']} and moved {other['flipped']} labels" in TEXT
    paper = evaluation("lite0-preset-paper")["gate"]
    assert f"opened on {paper['opened']} of {paper['n']:,} and moved {paper['flipped']} labels" in TEXT


@pytest.mark.parametrize(("name", "tuned_for"), [("system", "macro-F1"), ("system-accuracy", "accuracy")])
def test_what_tuning_chose(name: str, tuned_for: str) -> None:
    found = evaluation(name)
    (chosen,) = {json.dumps(each) for each in found["gate"]["thresholds"]}
    (power,) = {each["gate"]["fused_exponent"] for each in found["by_seed"].values()}
    gate = json.loads(chosen)
    decisive = f", retrieval above {gate['beta']:g}" if gate["beta"] else ""
    weights = f"p_cls^{gate['alpha']:g} · p_sim^{1 - gate['alpha']:g}"
    row = (
        f"| {tuned_for} | labels differ, classifier below {gate['theta']:g}{decisive} | {weights}, divided by the class"
    )
    assert f"{row} shares to the power {power:g} |" in TEXT


def test_what_validation_said() -> None:
    counts: list[str] = []
    for name in ("system", "system-accuracy", "system-default"):
        story = evaluation(name)["tuning"]
        assert story.startswith("for all seeds: ")
        told = re.search(r"chosen without the seed .* fixed (\d+) predictions and broke (\d+)", story)
        assert told is not None
        counts += told.groups()
    words = "tuned for macro-F1 fixed {} predictions and broke {}, the one tuned for accuracy {} and {}"
    assert words.format(*counts[:4]) in TEXT
    assert "validation spoke against it ({} fixed, {} broken)".format(*counts[4:]) in TEXT


def test_without_a_power_of_the_prior() -> None:
    found = evaluation("system-default")
    gate, lead = found["gate"], found["paired"]["baseline"]
    assert {each["gate"]["fused_exponent"] for each in found["by_seed"].values()} == {0.0}
    assert f"it fixed {gate['fixed']} and broke {gate['broken']}" in TEXT
    words = [f"{100 * lead[metric]['difference']:+.1f}" for metric in FIRST[::2]]
    assert "for {} points of accuracy and {} of balanced accuracy".format(*words) in TEXT
    chosen = gate["thresholds"][0]
    assert f"(above {chosen['beta']:g}, its lead above {chosen['margin']:g})" in TEXT


@pytest.mark.parametrize("name", ["lite0-ce", "lite2"])
def test_trained_again_to_the_last_digit(name: str) -> None:
    logs = [(FILES / "again" / f"{name}{again}.jsonl").read_text(encoding="utf-8") for again in ("", "-again")]
    first, second = ([json.loads(line) for line in log.splitlines()] for log in logs)
    speeds = [[line.pop("images_per_second", None) for line in log] for log in (first, second)]
    assert first == second
    assert sum("validation" in line for line in first) == 20
    assert speeds[0] != speeds[1], "the same file twice"


def test_several_views() -> None:
    accurate, balanced = (evaluation(name) for name in ("system-views-accuracy", "system-views"))
    gate, lead = accurate["gate"], accurate["paired"]["baseline"]
    told = [points(lead[metric]) for metric in FIRST]
    assert "by {} points of accuracy, {} of macro-F1 and {} of balanced accuracy".format(*told) in TEXT
    counts = f"({gate['fixed']} fixed, {gate['broken']} broken, p = {lead['sign_flip_p']:.2g}"
    assert f"{counts}; {100 * accurate['headroom_taken']:.1f} % of the oracle's room)" in TEXT
    told = [points(balanced["paired"]["baseline"][metric]) for metric in FIRST]
    assert "macro-F1 by {}, {} and {}.".format(*told) in TEXT
    beyond = balanced["paired"]["logit_adjusted"]
    assert f"ahead in accuracy by {points(beyond['accuracy'])}" in TEXT
    assert beyond["balanced_accuracy"]["interval"][0] < 0 < beyond["balanced_accuracy"]["interval"][1]
    mean = accurate["paired"]["ensemble"]
    assert f"({mean['fixed']} : {mean['broken']} where they differ)" in TEXT
    assert f"{100 * mean['balanced_accuracy']['difference']:.1f} points behind in balanced accuracy" in TEXT
    accuracy = accurate["comparators"]["baseline"]["accuracy"]
    assert f"bring the classifier alone as much accuracy as the gate does ({accuracy:.3f})" in TEXT
    assert f"the gate still adds {100 * lead['accuracy']['difference']:.1f} points" in TEXT
    behind = [each["paired"]["ensemble_adjusted"]["balanced_accuracy"]["difference"] for each in (balanced, accurate)]
    assert (
        "(by {:.1f} and {:.1f} points; tuned for macro-F1, validation chose none)".format(*(100 * b for b in behind))
        in TEXT
    )
    assert balanced["comparators"]["ensemble_adjusted"] == balanced["comparators"]["ensemble"]
    for rival in ("similarity", "average"):
        assert across_zero(accurate["paired"][rival], *FIRST)
    assert verdicts(accurate) == verdicts(balanced) == ["neither"] * 3


def across_zero(lead: dict[str, Any], *metrics: str) -> bool:
    return all(lead[metric]["interval"][0] < 0 < lead[metric]["interval"][1] for metric in metrics)


def verdicts(found: dict[str, Any]) -> list[str]:
    return [seed["retrieval_worth"]["winner"] for seed in found["by_seed"].values()]


def test_whose_doing_it_is() -> None:
    balanced, accurate = (evaluation(name) for name in ("system", "system-accuracy"))
    assert f"alone is as accurate as the gates ({balanced['comparators']['second']['accuracy']:.3f})" in TEXT
    for found, rival in itertools.product((balanced, accurate), ("second", "similarity")):
        assert across_zero(found["paired"][rival], "accuracy")
    for lead in (balanced["paired"]["second"], accurate["paired"]["second"], balanced["paired"]["similarity"]):
        assert lead["balanced_accuracy"]["interval"][0] > 0
    for rival in ("average", "ensemble_adjusted"):
        assert across_zero(accurate["paired"][rival], *FIRST)
    lead = balanced["paired"]["average"]
    told = [100 * lead[metric]["difference"] for metric in FIRST[::2]]
    assert f"{-told[0]:.1f} points more accurate than the one tuned for macro-F1, at {told[1]:.1f} less of" in TEXT
    assert verdicts(balanced).count("retrieval") == verdicts(accurate).count("retrieval") == 1
    assert verdicts(balanced).count("no retrieval") == 0
    assert verdicts(accurate).count("no retrieval") == 2
    card = " ".join((ROOT / "docs" / "model-card.md").read_text(encoding="utf-8").split())
    own = evaluation("lite0-preset-default")
    found = [100 * melanoma_found(own, who) for who in ("gate", "student", "logit_adjusted")]
    assert "finds {:.1f} % of the melanomas** at its own decision ({:.1f} % without the gate)".format(*found) in card
    assert f"(`logit_adjusted`) {found[2]:.1f} %" in card


def test_the_floor_of_calibration() -> None:
    floors = [each["calibration"]["gate"]["ece_if_calibrated"] for each in evaluation("system")["by_seed"].values()]
    mean, upper = (np.mean([floor[name] for floor in floors]) for name in ("mean", "upper"))
    assert f"would give {mean:.3f} on average, and more than {upper:.3f} in one draw of twenty" in TEXT
    for name in ("system", "system-accuracy"):
        seeds = evaluation(name)["by_seed"].values()
        bounds = [each["calibration"]["gate"]["ece_if_calibrated"]["upper"] for each in seeds]
        above = [each["comparators"]["gate"]["ece"] > bound for each, bound in zip(seeds, bounds, strict=True)]
        assert sum(above) == 2
    assert "two of the four seeds lie above that bound under either objective" in TEXT


def test_the_leak() -> None:
    audit = json.loads((FILES / "lite0-paper" / "audit.json").read_text(encoding="utf-8"))
    melanoma = audit["leak"]["by_class"]["mel"]["share"]
    assert f"{100 * audit['leak']['share']:.1f} % of the test images (melanoma: {100 * melanoma:.1f} %)" in TEXT
    assert f"{audit['groups']:,} groups after merging" in TEXT


def test_every_folder_of_results_is_spoken_of() -> None:
    """Folds and recipe are on the page itself (``test_study_pages.py``)."""
    on_the_page = {"folds", "folds-seed-0", "folds-seed-1", "recipe-paper", "recipe-paper-grouped"}
    names = {path.name for path in FILES.iterdir() if path.is_dir()} - on_the_page
    assert not [
        name for name in names if not re.search(rf"[`/ -]{re.escape(name)}[`/.]|`studies/ham10000/{name}", TEXT)
    ]
