"""The study's pages say what its files say; its figures are made as their words tell."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from benchmarks import cost, recount, saved_outputs, sites, tried
from benchmarks import headline as headline_of
from benchmarks.common import add_to, seed_of
from benchmarks.headline import WITH_BANK, WITHOUT_BANK
from benchmarks.opinions import Rows, joined, stacked
from benchmarks.posteriors import halved
from benchmarks.train_study import KINDS

from sitegen import study, study_charts
from tdumpra.core.calibration import apply_temperature, fit_temperature
from tdumpra.core.metrics import classification_metrics, sensitivity_at_specificity

ROOT = Path(__file__).resolve().parents[1]
SITES = study.by_site()
FOLDER = study.RESULTS / "ham10000"
POSTERIORS = [FOLDER / f"folds-seed-{seed}" / "posteriors.npz" for seed in (0, 1)]
HEADLINE = FOLDER / "folds" / "headline.json"


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
    assert found["gate"]["there"]["counts"]["opened"] == 0
    counts = found["gate"]["home"]["counts"]
    assert f"At Rosendahl the gate stays shut: all validation images together chose none" in page
    assert f"broke more at home than they fixed ({counts['broken']} and {counts['fixed']})" in page
    ahead, both = (told(found["rows"][name]["there"]["ahead"]["accuracy"], 1) for name in ("retrieval", "networks"))
    value, rest = ahead.split(" ", 1)
    assert f"are no worse than the classifier: {value} points {rest} and {both}." in page
    assert "{home:,} validation images".format(**found["images"]) in page
    assert f"{found['images']['there']:,} images of {found['lesions']['there']:,} lesions" in page


def test_harm_at_a_site_is_said():
    page = text("results/sites.md")
    assert set(SITES) == {"rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias"}
    harmed = {name for name, found in SITES.items() if found["rows"]["gate"]["there"]["ahead"]["accuracy"][2] < 0}
    assert harmed == {"vienna_dias"}
    assert "does harm at one site of four" in page
    found = SITES["vienna_dias"]
    value, rest = told(found["rows"]["gate"]["there"]["ahead"]["accuracy"], 1).split(" ", 1)
    assert f"at `vienna_dias` it changes accuracy by {value} points {rest}" in page
    counts, did = found["gate"]["there"]["counts"], found["gate"]["there"]["per_1000"]["melanoma"]
    assert f"at `vienna_dias` {counts['fixed']} and {counts['broken']}" in page
    assert f"newly calls {did['falsely_called']:.1f} of 1,000 images melanoma wrongly" in page
    lost = [-100 * found["rows"][name]["there"]["ahead"]["accuracy"][0] for name in ("retrieval", "networks")]
    assert "retrieval loses {:.1f} points against the classifier, and the mean of both networks {:.1f}".format(*lost) in page
    counts = SITES["vidir_modern"]["gate"]["there"]["counts"]
    assert f"fixes {counts['fixed']} predictions and breaks {counts['broken']} at `vidir_modern`" in page
    counts = SITES["vidir_molemax"]["gate"]["there"]["counts"]
    assert f"{counts['fixed']} and {counts['broken']} at `vidir_molemax`" in page
    assert {each["seeds"] for each in SITES.values()} == {1}
    assert "one seed, trained without the site" in page
    assert {frozenset(each["rows"]) for each in SITES.values()} == {frozenset(SITES["rosendahl"]["rows"])}
    for name, found in SITES.items():
        home, there = (found["rows"]["calibrated"][place]["accuracy"][0] for place in ("home", "there"))
        assert name == "rosendahl" or f"from {home:.3f} to {there:.3f}" in page


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
    assert all(abs(always[name][0]) <= 0.002 for name in always)
    assert max(test["h200"][place], test["cpu"][place]) <= 1.4  # what was aimed at
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
    best = max(with_bank, key=lambda name: with_bank[name]["ahead_balanced_accuracy"][0])
    assert best == "pool: bank"
    assert f"the bank alone, by {told(rows[best]['ahead_balanced_accuracy'], 1)}." in page
    pool, pool_bank, stack, stack_bank = (
        100 * rows[f"{kind}: both classifiers{bank}"]["balanced_accuracy"]
        for kind in ("pool", "stack")
        for bank in ("", " and bank")
    )
    assert f"still brings {pool_bank - pool:.1f} points of balanced accuracy" in page
    assert f"has {stack - pool_bank:.1f} more without it, and loses {stack - stack_bank:.1f}" in page
    over_prior = rows["stack: both classifiers, ÷ prior"]["balanced_accuracy"]
    assert f"has {over_prior:.3f} of balanced accuracy without a bank" in page


def test_the_verdict_is_that_of_the_folds():
    page, found = text("results/ham10000.md"), study.document("ham10000/folds/headline")
    assert page.startswith("# HAM10000 **Nothing with a bank beats the best rival without one**")
    opinions = study.document("opinions")["rows"]
    without = [name for name in opinions if "bank" not in name]
    for metric in study.BAR:
        bar = max([opinions[name][metric] for name in without] + [found["rows"][n][metric][0] for n in WITHOUT_BANK])
        for name in WITH_BANK:
            lead = found["leads"][name][found["best_without_bank"][metric]][metric]
            assert lead[1] <= 0 or found["rows"][name][metric][0] < bar, (name, metric)


def test_what_was_tried_in_the_text():
    page, found = text("results/ham10000.md"), study.document("tried")["tried"]
    leads = [
        of_metric for rows in found.values() for kind in ("fitted", "over_prior") for of_metric in rows[kind].values()
    ]
    above, below = ([each for each in leads if sign * each["lead"][i] > 0] for sign, i in ((1, 1), (-1, 2)))
    assert f"{len(above)} of the {len(leads)} leads have an interval above zero and {len(below)} one below" in page
    least = min(each["p"] for each in above)
    assert f"smallest p among the former is {least:.2g}" in page
    assert least * len(leads) > 0.05, "the verdict at the top no longer holds"
    best = found["eight"]["over_prior"]["balanced_accuracy"]
    assert f"the bank leads by {told(best['lead'])} points of balanced accuracy" in page
    for key, words in {"stage3": "a bank on stage 3 leads by", "features": "one on its pooled features by"}.items():
        assert f"{words} {told(found[key]['over_prior']['balanced_accuracy']['lead'])}" in page
    cleared = {key for key, rows in found.items() if rows["over_prior"]["balanced_accuracy"]["lead"][1] > 0}
    assert cleared == {"eight", "stage3", "features", "grey"}
    more = found["eight_and_one"]["over_prior"]["balanced_accuracy"]
    assert f"added after that was seen, by {told(more['lead'])}." in page


def test_the_folds_in_the_text():
    page = text("results/ham10000.md")
    folds = json.loads(study.FOLDS.read_text(encoding="utf-8"))
    gate, own = folds["gate"], folds["paired"]["student"]
    assert f"fixes {gate['fixed']} predictions and breaks {gate['broken']} (p = {gate['sign_flip_p']:.2g})" in page
    points = {name: told([own[name]["difference"], *own[name]["interval"]]) for name in study.BAR[:2]}
    one, rest = points["accuracy"].split(" ", 1)
    assert f"accuracy {one} points {rest} over its classifier, balanced accuracy {points['balanced_accuracy']}" in page
    assert [each["theta"] for each in gate["thresholds"]].count(0.0) == 1  # shut in one fold
    leads = study.document("ham10000/folds/headline")["leads"]
    ahead = leads["average_adjusted"]["ensemble_adjusted"]
    one, rest = told(ahead["accuracy"]).split(" ", 1)
    assert f"by {one} points {rest}, and level in balanced accuracy, {told(ahead['balanced_accuracy'])}" in page
    ahead = leads["ungated"]["ensemble_adjusted"]
    assert f"by {told(ahead['balanced_accuracy'])} of balanced accuracy" in page
    assert f"for {-100 * ahead['accuracy'][0]:.2f} points less accuracy" in page
    behind = [-100 * each for each in leads["gate"]["ensemble"]["accuracy"]]
    assert f"is {behind[0]:.2f} points ({behind[2]:.2f} to {behind[1]:.2f}) more accurate than the gate" in page


def test_the_recipe_in_the_text():
    page = text("results/ham10000.md")
    by_image, by_lesion = (json.loads(path.read_text(encoding="utf-8")) for path in study.RECIPES.values())
    flattered = by_image["comparators"]["student"]["accuracy"] - by_lesion["comparators"]["student"]["accuracy"]
    assert f"flatters the classifier by {100 * flattered:.1f} points" in page
    assert f"by {100 * flattered:.1f} points of accuracy at the paper's own settings" in text("../README.md")
    gate, own = by_lesion["gate"], by_lesion["paired"]["student"]
    assert f"(fixed {gate['fixed']}, broke {gate['broken']}, p = {gate['sign_flip_p']:.2g})" in page
    points = [told([own[name]["difference"], *own[name]["interval"]]) for name in study.BAR[:2]]
    assert "gains {} points of accuracy and {} of balanced accuracy".format(*points) in page


def test_the_headline_is_counted_again_from_the_repository():
    assert recount.main(HEADLINE, *POSTERIORS) == 0


def test_the_headline_is_that_of_the_evaluation():
    found = study.document("ham10000/folds/headline")
    for seed, folds in enumerate(study.evaluations()):
        for name, of_row in found["by_seed"].items():
            scores = folds["comparators"].get(name, {})
            for metric in ("accuracy", "balanced_accuracy", "macro_f1"):
                assert name not in folds["comparators"] or of_row[metric][seed][0] == pytest.approx(scores[metric], abs=1e-9)
            if scores:  # the posteriors are in half precision
                assert of_row["ece"][seed][0] == pytest.approx(scores["ece"], abs=5e-4)
        for name in ("fixed", "broken"):
            assert found["gate"][name][seed] == folds["gate"][name]


def test_a_headline_is_the_mean_over_seeds_and_draws_them(tmp_path):
    rng = np.random.default_rng(5)
    n = 400
    y = rng.integers(0, 7, n)
    kept = {
        "image": np.arange(n), "lesion": np.arange(n) // 2, "y": y.astype(np.uint8), "fold": (np.arange(n) % 2),
        "classes": np.array(["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"]), "theta": np.float64(0.5),
        "gate_theta": np.array([0.4, 0.6]),
    }  # fmt: skip
    paths = []
    for seed, skill in enumerate((0.2, 0.9)):  # two seeds far apart
        rows = {}
        for name in (*WITHOUT_BANK, *WITH_BANK, "eight"):
            p = rng.dirichlet(np.ones(7), n) + skill * np.eye(7)[y]
            rows[name] = halved(p / p.sum(1, keepdims=True))
        paths.append(tmp_path / f"seed-{seed}.npz")
        saved_outputs.write(paths[-1], kept | rows)
    test, seeds, asked = headline_of.read(paths)
    found = headline_of.document(test, seeds)
    for name, of_row in found["rows"].items():
        by_hand = [np.mean(p[name].argmax(1) == y) for p in seeds]
        assert of_row["accuracy"][0] == pytest.approx(np.mean(by_hand))
        alone = found["by_seed"][name]["accuracy"]
        assert [each[0] for each in alone] == pytest.approx(by_hand)
        # a quarter of the draws has the worse seed twice, a quarter the better one: the interval holds both
        assert of_row["accuracy"][1] < alone[0][2] < alone[1][1] < of_row["accuracy"][2]
    lead = found["leads"]["gate"]["ensemble"]
    ahead = [np.mean(p["gate"].argmax(1) == y) - np.mean(p["ensemble"].argmax(1) == y) for p in seeds]
    assert lead["accuracy"][0] == pytest.approx(np.mean(ahead))
    assert [each[0] for each in lead["by_seed"]["accuracy"]] == pytest.approx(ahead)
    below = [p["temperature"].max(1) < kept["gate_theta"][kept["fold"]] for p in seeds]
    assert asked["gate"] == pytest.approx(np.mean(below))
    (tmp_path / "headline.json").write_text(json.dumps(found), encoding="utf-8")
    assert recount.main(tmp_path / "headline.json", *paths) == 0
    saved_outputs.write(paths[1], kept | rows | {"image": np.arange(n)[::-1]})
    with pytest.raises(SystemExit, match="differ in their test images"):
        headline_of.read(paths)


def test_half_precision_keeps_labels():
    p = np.array([[0.33333, 0.33334, 0.33333], [0.2, 0.5, 0.3]])
    assert halved(p).argmax(1).tolist() == p.argmax(1).tolist()
    p = np.array([[0.49999, 0.50001, 0.0]])  # both are a half in half precision
    assert p.astype(np.float16).argmax(1).tolist() == [0]
    assert halved(p).argmax(1).tolist() == [1]


def planted(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Outputs of a fold, as the study saves them: a classifier that is often right, a second one in a space."""
    y = np.tile(np.arange(7), n // 7)
    p = rng.dirichlet(np.ones(7), n) + 0.7 * np.eye(7)[y]
    p_second = rng.dirichlet(np.ones(7), n) + 0.7 * np.eye(7)[y]
    z = (np.eye(7)[y] + 0.3 * rng.normal(size=(n, 7))).astype(np.float16)
    names = np.array([f"image_{i}" for i in range(n)])
    return {
        "id": names, "group": names, "y": y.astype(np.int8), "split": np.repeat([0, 1, 2], n // 3).astype(np.int8),
        "p": p / p.sum(1, keepdims=True), "p_second": p_second / p_second.sum(1, keepdims=True),
        "z": z, "features": z, "features_second": z,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:n_prototypes")
def test_views_are_read_by_the_names_of_images(tmp_path):
    rng = np.random.default_rng(0)
    own = planted(420, rng)
    n_train = int((own["split"] == 0).sum())
    order = np.concatenate([np.arange(n_train), n_train + rng.permutation(420 - n_train)])  # another order
    views = {"id": own["id"][order], **dict.fromkeys(("stage3", "stage5"), own["z"][order])}
    for view, who in itertools.product(("eight", "grey", "zoom", "lesion"), ("classifier", "second")):
        whole = view in ("grey", "lesion")
        views[f"{view}_{who}_logits"] = np.log(own["p_second"])[order][n_train:]
        views[f"{view}_{who}_z"] = own["z"][order][0 if whole else n_train :]
    saved_outputs.write(tmp_path / "fold-0-seed-0.npz", own)
    saved_outputs.write(tmp_path / "views-fold-0-seed-0.npz", views)
    for rows in tried.read_views(tmp_path / "fold-0-seed-0.npz")[:2]:
        assert np.allclose(rows.opinions["eight_second"], rows.opinions["p_second"], atol=1e-6)
        for name in ("stage3", "features", "grey_bank", "zoom_bank", "unseen"):
            assert (rows.opinions[name].argmax(1) == rows.y).mean() > 0.9, name
    wanted = {name for each in tried.ATTEMPTS.values() for name in (*each.opinions, *each.rival)}
    assert wanted - rows.opinions.keys() == {"regular_second", "regular_bank"}
    saved_outputs.write(tmp_path / "regular-0-seed-0.npz", {**own, "p_second": own["p"]})
    saved_outputs.write(tmp_path / "views-fold-0-seed-0.npz", {k: v for k, v in views.items() if "lesion" not in k})
    both = tried.read_views(tmp_path / "fold-0-seed-0.npz")[:2]
    for each in both:  # a network that memorises less, and data without masks
        assert np.allclose(each.opinions["regular_second"], each.opinions["p"])
        assert np.allclose(each.opinions["regular_bank"], each.opinions["bank"])
        assert wanted - each.opinions.keys() == {"lesion_second", "lesion_bank"}
    assert joined([both[0], rows]).opinions.keys() == both[0].opinions.keys() & rows.opinions.keys()


def test_chance_of_a_difference():
    drawn = np.concatenate([[1.96], np.random.default_rng(0).normal(1.96, 1, 100_000)])
    assert tried.chance(drawn) == pytest.approx(0.05, abs=0.002)


def test_stacks_take_rows_of_choice_without_a_class():
    rng = np.random.default_rng(3)
    own = planted(420, rng)
    opinions = {"p": np.log(own["p"])}
    rows = Rows(opinions, own["y"].astype(int), own["group"])
    p = stacked(rows.take(rows.y != 3), ("p",), rows)
    assert p.shape == (420, 7)
    assert np.allclose(p.sum(1), 1)
    assert (p.argmax(1) != 3).all()


def test_a_wrong_headline_is_found(tmp_path):
    for wrong in ("row", "lead", "count"):
        document = json.loads(HEADLINE.read_text(encoding="utf-8"))
        if wrong == "row":
            document["by_seed"]["gate"]["accuracy"][1][0] += 0.0002
        elif wrong == "lead":
            document["leads"]["gate"]["ensemble"]["melanoma_at_90"][0] += 0.0002
        else:
            document["gate"]["fixed"][1] += 1
        (tmp_path / "headline.json").write_text(json.dumps(document), encoding="utf-8")
        assert recount.main(tmp_path / "headline.json", *POSTERIORS) == 1, wrong


def test_files_of_one_seed_are_taken_together():
    assert seed_of([Path("fold-0-seed-1.npz"), Path("x/fold-1-seed-1.npz")]) == 1
    assert seed_of([Path("site_rosendahl_seed0.npz")]) == 0
    for names in (("fold-0-seed-0.npz", "fold-0-seed-1.npz"), ("fold-0.npz",)):
        with pytest.raises(SystemExit, match="files of one seed"):
            seed_of([Path(name) for name in names])


def test_a_file_keeps_what_it_has_of_others(tmp_path):
    path = tmp_path / "sites.json"
    add_to(path, [{"site": "a", "x": 1}, {"site": "b", "x": 2}], ("site",))
    add_to(path, [{"site": "a", "x": 3}], ("site",))
    assert json.loads(path.read_text(encoding="utf-8")) == [{"site": "a", "x": 3}, {"site": "b", "x": 2}]


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
    chart = study_charts.sites(SITES)
    assert "rosendahl" in chart.alt
    assert {row["site"] for row in chart.rows} == set(SITES)
    chart = study_charts.cost(study.cost_over_seeds())
    assert len(chart.rows) == 3 * 2 * len(study.cost_over_seeds()["theta"])
    folds = study.document("ham10000/folds/headline")
    chart = study_charts.leads(folds)
    assert "dials, no gate in balanced accuracy" in chart.alt
    assert {row["rival"] for row in chart.rows} == set(folds["best_without_bank"].values())
    assert f"gate {folds['rows']['gate']['melanoma_at_90'][0]:.3f}" in study_charts.melanoma(folds).alt


def test_the_script_of_the_study_is_bash_and_names_jobs():
    path = ROOT / "studies" / "ham10000" / "study.sh"
    subprocess.run(["bash", "-n", path], check=True)
    script = path.read_text(encoding="utf-8")
    assert set(re.findall(r"(?:^| )(\w+)-\S*-seed-", script.split("tables)")[0])) == set(KINDS)
    for module in re.findall(r"-m ((?:benchmarks|sitegen)\.\w+)", script):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
    for each in re.findall(r"for each in (.*); do", script)[0].split():
        assert (ROOT / "studies" / "ham10000" / f"{each}-saved.toml").exists(), each
        assert (FOLDER / each / "evaluation.json").exists(), each
    assert "studies/ham10000/$each-saved.toml" in script
