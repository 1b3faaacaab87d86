"""The study's pages say what its files say; its figures are made as their words tell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from benchmarks import cost, recount, sites
from benchmarks.train_study import KINDS

from sitegen import study, study_charts
from tdumpra.core.calibration import apply_temperature, fit_temperature
from tdumpra.core.metrics import classification_metrics, sensitivity_at_specificity

ROOT = Path(__file__).resolve().parents[1]
SITES = study.document("sites")["sites"]


def text(name: str) -> str:
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


def told(interval: list[float], digits: int = 2) -> str:
    value, low, high = (f"{100 * each:+.{digits}f}" for each in interval)
    return f"{value} ({low} to {high})"


def test_the_drop_in_the_text():
    page, card, index = text("results/sites.md"), text("model-card.md"), text("results/index.md")
    found = SITES["rosendahl"]
    rows = found["rows"]
    home, there = (rows["classifier"][place]["accuracy"][0] for place in ("home", "there"))
    assert f"right on {home:.3f} of the images there, and on {there:.3f} in Queensland" in page
    assert f"{100 * (home - there):.0f} points less" in page
    melanoma = [rows["classifier"][place]["melanoma_at_90"][0] for place in ("home", "there")]
    assert "falls from {:.3f} to {:.3f}".format(*melanoma) in page
    errors = [rows["calibrated"][place]["ece"][0] for place in ("home", "there")]
    assert "rises from {:.3f} to {:.3f}".format(*errors) in page
    assert f"right on {home:.3f} of the images at home and on {there:.3f} there" in card
    assert "found {1:.3f} of the melanomas at 90 % specificity in place of {0:.3f}".format(*melanoma) in card
    assert f"{home:.3f} at home, {there:.3f} at Rosendahl" in index
    mix = found["home_at_their_shares"]
    assert f"would be right on {mix:.3f} of the images in place of {home:.3f}" in page
    assert f"{100 * (home - mix):.0f} of the {100 * (home - there):.0f} points go with the mix" in page


def test_the_gate_at_a_site_in_the_text():
    page, found = text("results/sites.md"), SITES["rosendahl"]
    counts, did = found["gate"]["there"]["counts"], found["gate"]["there"]["per_1000"]["melanoma"]
    assert f"fixes {counts['fixed']} predictions and breaks {counts['broken']} at Rosendahl" in page
    assert f"newly calls {did['falsely_called']:.1f} of 1,000 images melanoma wrongly" in page
    assert f"gains {did['gained']:.1f} melanomas for {did['lost']:.1f} that it loses" in page
    assert found["gate"]["home"]["counts"]["opened"] == 0
    low = found["rows"]["gate"]["there"]["ahead"]["accuracy"][1]
    assert low == pytest.approx(0, abs=1e-9)
    ahead = found["rows"]["retrieval"]["there"]["ahead"]["accuracy"]
    assert f"{told(ahead, 1)[:4]} points ({told(ahead, 1)[6:]}" in page
    assert "{home:,} validation images".format(**found["images"]) in page
    assert f"{found['images']['there']:,} images of {found['lesions']['there']:,} lesions" in page


def test_sites_that_are_missing_are_said_to_be():
    page = text("results/sites.md")
    for name in ("vidir_modern", "vidir_molemax", "vienna_dias"):
        assert name in SITES or re.search(rf"`{name}`[^.]* are not trained yet", page)


def test_the_chosen_theta_in_the_text():
    page, found = text("results/ham10000.md"), study.document("cost")
    test, place = found["curves"]["test"], found["chosen"]
    assert f"At θ = {found['theta'][place]:g} the second network sees {100 * test['asked'][place]:.0f} % of" in page
    always, never = found["to_always"], found["to_never"]
    words = "accuracy differs by {} points {}, balanced accuracy by {}, macro-F1 by {};"
    one, two, three = (told(always[name]) for name in ("accuracy", "balanced_accuracy", "macro_f1"))
    assert words.format(*one.split(" ", 1), two, three) in page
    assert (
        "it is {}, {} and {}.".format(*(told(never[n]) for n in ("accuracy", "balanced_accuracy", "macro_f1"))) in page
    )
    assert (
        f"takes {test['h200'][place]:.2f} times the classifier's time on an H200 and {test['cpu'][place]:.2f}" in page
    )
    assert f"at {test['h200'][place]:.2f} times the time" in text("results/index.md")
    card = text("model-card.md")
    assert f"{test['h200'][place]:.2f} times as long" in card
    assert f"{test['cpu'][place]:.2f} times on two CPU cores" in card
    assert all(always[name][1] < 0 < always[name][2] for name in always)
    assert all(never[name][1] > 0 for name in never)


def test_theta_is_the_smallest_that_validation_allows():
    found = study.document("cost")
    assert found["chosen"] == cost.chosen(found["curves"]["validation"])
    curve = {name: [0.5, 0.59, 0.6, 0.6] for name in cost.SHOWN}
    curve["macro_f1"] = [0.5, 0.6, 0.599, 0.6]
    assert cost.chosen(curve | {name: curve[name] + [curve[name][-1]] * 17 for name in cost.SHOWN}) == 2


def test_time_follows_the_measured_points():
    points = cost.measured("h200")
    for share, ratio in points:
        assert cost.times("h200", share) == pytest.approx(ratio)
    (x, y), (x2, y2) = points[-2:]
    assert cost.times("h200", 1.0) == pytest.approx(y2 + (1 - x2) * (y2 - y) / (x2 - x))


def test_asking_always_is_the_mean_and_never_the_first():
    rng = np.random.default_rng(0)
    p, second = rng.dirichlet(np.ones(3), 50), rng.dirichlet(np.ones(3), 50)
    rows = cost.Rows(p, second, np.zeros(50, int), np.arange(50))
    assert np.array_equal(rows.at(cost.THETA[0]), p)
    assert np.allclose(rows.at(cost.THETA[-1]), (p + second) / 2)
    assert (rows.asked(cost.THETA[0]), rows.asked(cost.THETA[-1])) == (0.0, 1.0)


def test_opinions_in_the_text():
    page, rows = text("results/ham10000.md"), study.document("opinions")["rows"]
    with_bank = {name: found for name, found in rows.items() if "bank" in name}
    assert all(found["ahead_balanced_accuracy"][1] <= 0 for found in with_bank.values())
    assert f"the bank alone, by {told(rows['pool: bank']['ahead_balanced_accuracy'], 1)}." in page
    as_fitted = [found["ahead_balanced_accuracy"] for name, found in with_bank.items() if "÷" not in name]
    assert (len(as_fitted), sum(each[2] < 0 for each in as_fitted)) == (5, 2)
    for name, end in (
        ("", "behind the same stack without it by {:.1f} points"),
        (", ÷ prior", "and by {:.1f} once both"),
    ):
        both = [rows[f"stack: both classifiers{with_it}{name}"]["balanced_accuracy"] for with_it in ("", " and bank")]
        assert end.format(100 * (both[0] - both[1])) in page


def test_accuracy_at_other_shares_is_weighted_recall():
    p = np.array([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.1, 0.9]])
    rows = sites.Rows(p, np.zeros((4, 2)), np.array([0, 0, 0, 1]), np.arange(4), None)
    each = sites.Judged(rows, {"classifier": p}, np.zeros(4, bool))
    assert sites.at_these_shares(each, np.array([0.5, 0.5])) == pytest.approx((2 / 3 + 1) / 2)


def test_a_recount_agrees_with_the_package():
    import torch

    rng = np.random.default_rng(1)
    y = rng.integers(0, 4, 300)
    p = rng.dirichlet(np.ones(4), 300) + 0.8 * np.eye(4)[y]
    p /= p.sum(1, keepdims=True)
    y[::4] = rng.integers(0, 4, 75)  # so that no posterior deserves to be sure
    mine, ours = recount.counted(p, y, 2), classification_metrics(p, y)
    assert {name: mine[name] for name in ours if name in mine} == pytest.approx(
        {name: value for name, value in ours.items() if name in mine}
    )
    assert mine["melanoma_at_90"] == pytest.approx(sensitivity_at_specificity(p[:, 2], y == 2, 0.9)[0])
    choice = np.arange(300) < 100
    temperature = fit_temperature(torch.from_numpy(p[choice]).log(), torch.from_numpy(y[choice]))
    expected = apply_temperature(torch.from_numpy(p), temperature).numpy()
    assert recount.calibrated(p, choice, y) == pytest.approx(expected, abs=1e-6)


def test_a_recount_shares_no_code():
    assert "tdumpra" not in (ROOT / "benchmarks" / "recount.py").read_text(encoding="utf-8")


def test_figures_have_words_and_numbers():
    chart = study_charts.sites(study.document("sites"))
    assert "rosendahl" in chart.alt
    assert len(chart.rows) == 2 * 2 * sum(len(found["rows"]) for found in SITES.values())
    chart = study_charts.cost(study.document("cost"))
    assert len(chart.rows) == 3 * 2 * len(study.document("cost")["theta"])


def test_the_script_of_the_study_is_bash_and_names_jobs():
    path = ROOT / "studies" / "ham10000" / "study.sh"
    subprocess.run(["bash", "-n", path], check=True)
    script = path.read_text(encoding="utf-8")
    assert set(re.findall(r"(?:^| )(\w+)-\S*-seed-", script.split("tables)")[0])) == set(KINDS)
    for module in re.findall(r"-m ((?:benchmarks|sitegen)\.\w+)", script):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
    for file in re.findall(r"studies/ham10000/\S+\.toml", script):
        assert (ROOT / file).exists(), file
