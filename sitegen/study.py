"""Tables of the study on HAM10000: outer folds, other sites, cost, mixtures of opinions, and the paper's recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cost import measured, times

from tdumpra.evaluation.over_seeds import mean_of_trees

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
RECIPES = {
    "by image, as in the paper": RESULTS / "ham10000" / "recipe-paper" / "evaluation.json",
    "by lesion": RESULTS / "ham10000" / "recipe-paper-grouped" / "evaluation.json",
}
Rows = list[list[str]]  # the first is the heading
BAR = ("accuracy", "balanced_accuracy", "melanoma_at_90")

SITE_ROWS = {
    "calibrated": "classifier", "second": "second network",
    "networks": "mean of both networks", "retrieval": "retrieval", "average": "mean of classifier and retrieval",
    "gate": "gate",
}  # fmt: skip
HEADLINE = {
    "temperature": "classifier (Lite0)", "eight": "classifier, eight views",
    "second_temperature": "second network (Lite2)",
    "ensemble": "mean of both networks", "ensemble_adjusted": "mean of both networks ÷ prior",
    "asked": "mean of both below θ, else classifier", "similarity": "bank alone",
    "average": "mean of classifier and bank", "average_adjusted": "mean of classifier and bank ÷ prior",
    "ungated": "the gate's dials on every image", "gate": "gate",
}  # fmt: skip


_UNTIMED = {"eight": "8 passes", "second_temperature": "not timed", "similarity": "not timed"}


def document(name: str) -> Any:
    """Return a file of figures."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def by_site() -> dict[str, dict[str, Any]]:
    """Return the figures of each site."""
    return {each["site"]: each for each in document("sites")}


def cost_over_seeds() -> dict[str, Any]:
    """Return the cost curves, mean over seeds; theta was chosen on the first."""
    seeds = document("cost")
    return {**seeds[0], "curves": mean_of_trees([each["curves"] for each in seeds])}


def evaluations() -> list[dict[str, Any]]:
    """Return the evaluation of each seed of the outer folds."""
    return [document(f"ham10000/folds-seed-{seed}/evaluation") for seed in (0, 1)]


def span(interval: Sequence[float], *, points: bool = False) -> str:
    """Return a figure with its interval; a difference in hundredths."""
    value, low, high = (f"{100 * each:+.1f}" if points else f"{each:.3f}" for each in interval)
    return f"{value} ({low} to {high})"


def sites() -> Rows:
    """Return what each row reaches at home and at a site that it never saw."""
    rows = [["site", "row", "accuracy, and its drop", "balanced accuracy", "melanoma at 90 %", "ECE"]]
    for name, found in by_site().items():
        for key, words in SITE_ROWS.items():
            if key not in found["rows"]:
                continue
            of_row = found["rows"][key]
            both = [
                " → ".join(f"{of_row[place][metric][0]:.3f}" for place in ("home", "there"))
                for metric in ("accuracy", "balanced_accuracy", "melanoma_at_90", "ece")
            ]
            drop = span(of_row["drop"]["accuracy"], points=True)
            rows.append([name, words, f"{both[0]}<br>{drop}", *both[1:]])
    return rows


def site_gates() -> Rows:
    """Return what the gate that was chosen at home does there."""
    heading = ["opened, of 1,000", "fixed", "broken", "melanomas gained", "lost", "falsely called melanoma"]
    rows = [["site", "where", *heading, "accuracy over the classifier, points"]]
    for name, found in by_site().items():
        for place, did in found["gate"].items():
            of_1000 = did["per_1000"]
            counts = [of_1000[key] for key in ("opened", "fixed", "broken")]
            counts += [of_1000["melanoma"][key] for key in ("gained", "lost", "falsely_called")]
            ahead = span(found["rows"]["gate"][place]["ahead"]["accuracy"], points=True)
            rows.append([name, place, *(f"{count:.1f}" for count in counts), ahead])
    return rows


def cost() -> Rows:
    """Return the figures over the share of images that the second network sees, and what that share costs."""
    found = cost_over_seeds()
    test, validation = (found["curves"][part] for part in ("test", "validation"))
    heading = ["asked", "accuracy", "balanced accuracy", "macro-F1", "validation accuracy", "time, GPU / CPU"]
    rows = [["asks below", *heading]]
    for place, theta in enumerate(found["theta"]):
        always = place == len(found["theta"]) - 1
        if not (place in (0, found["chosen"]) or always or (round(100 * theta) % 20 == 10 and theta >= 0.5)):
            continue
        figures = [f"{test[metric][place]:.4f}" for metric in ("accuracy", "balanced_accuracy", "macro_f1")]
        figures.append(f"{validation['accuracy'][place]:.4f}")
        time = _time(test["asked"][place])
        name = "never" if place == 0 else "always" if always else f"{theta:.2f}"
        name = f"**{name}, chosen**" if place == found["chosen"] else name
        rows.append([name, f"{100 * test['asked'][place]:.0f} %", *figures, time])
    return rows


def opinions() -> Rows:
    """Return mixtures of opinions with a bank and without one."""
    heading = ["accuracy", "balanced accuracy", "melanoma at 90 %"]
    rows = [["mixture", *heading, "balanced accuracy over the best without a bank, points"]]
    seeds = [each["rows"] for each in document("opinions")]
    for name in seeds[0]:
        mean = mean_of_trees([{key: of_seed[name][key] for key in BAR} for of_seed in seeds])
        leads = [
            "is the best"
            if of_seed[name]["rival"] == name
            else span(of_seed[name]["ahead_balanced_accuracy"], points=True)
            for of_seed in seeds
        ]
        rows.append([name, *(f"{value:.3f}" for value in mean.values()), "<br>".join(leads)])
    return rows


def tried() -> Rows:
    """Return other banks, views and stacks, each against the same stack without a bank, one seed below the other."""
    heading = ["accuracy, points", "balanced accuracy, points", "melanoma at 90 %, points"]
    rows = [["tried", "judged", *heading]]
    seeds = [each["tried"] for each in document("tried")]
    for key in dict.fromkeys(key for of_seed in reversed(seeds) for key in of_seed):
        there = [of_seed.get(key) for of_seed in seeds]
        (words,) = {each["words"] for each in there if each}
        for kind, judged in {"fitted": "as fitted", "over_prior": "÷ prior"}.items():
            leads = [_lines(each and span(each[kind][metric]["lead"], points=True) for each in there) for metric in BAR]
            rows.append([words if kind == "fitted" else "", judged, *leads])
    return rows


def _lines(by_seed: Iterable[str | None]) -> str:
    """Return a line for each seed; a dash where it was not trained for this."""
    return "<br>".join(each or "–" for each in by_seed)


def headline() -> Rows:
    """Return the rows of the outer folds, without a bank and with one, and what each costs."""
    heading = ["accuracy", "balanced accuracy", "melanoma at 90 %", "ECE", "time, GPU / CPU"]
    found, rows = document("ham10000/folds/headline"), [["row", *heading]]
    for key, words in HEADLINE.items():
        figures = [span(found["rows"][key][metric]).replace(" (", "<br>(") for metric in BAR]
        share = f" ({100 * found['asked'][key]:.0f} % asked)" if key in found["asked"] else ""
        time = _UNTIMED.get(key) or _time(found["asked"].get(key, 0.0 if key == "temperature" else 1.0))
        rows.append([_bold(words, key) + share, *figures, f"{found['rows'][key]['ece'][0]:.3f}", time])
    return rows


def _bold(words: str, key: str) -> str:
    return f"**{words}**" if key == "gate" else words


def _time(share: float) -> str:
    """Return the time over the classifier's alone; a star where it is continued beyond the measured shares."""
    known = " \\*" if round(share, 2) > measured("h200")[-1][0] else ""
    return " / ".join(f"{times(machine, share):.2f}" for machine in ("h200", "cpu")) + known


def per_thousand() -> Rows:
    """Return what the gate did to 1,000 images, validation and test side by side, mean over seeds."""
    rows = [["of 1,000 images", "validation", "test"]]
    found = mean_of_trees([each["per_1000"] for each in evaluations()])
    both = [found[part] for part in ("validation", "test")]
    rows += [[key, *(f"{part[key]:.1f}" for part in both)] for key in ("opened", "fixed", "broken")]
    names = {"gained": "melanomas gained", "lost": "melanomas lost", "falsely_called": "newly called melanoma, wrongly"}
    rows += [[words, *(f"{part['by_class']['mel'][key]:.1f}" for part in both)] for key, words in names.items()]
    return rows


def recipe() -> Rows:
    """Return the paper's recipe, split by image and by lesion."""
    rows = [["split", "row", "accuracy", "balanced accuracy", "macro-F1", "ECE", "fixed : broken"]]
    for words, path in RECIPES.items():
        found = json.loads(path.read_text(encoding="utf-8"))
        for key, row in {"student": "classifier", "similarity": "retrieval alone", "gate": "the paper's gate"}.items():
            scores, spread = (found[part][key] for part in ("comparators", "comparators_std"))
            metrics = ("accuracy", "balanced_accuracy", "macro_f1", "ece")
            figures = [f"{scores[metric]:.4f} ± {spread[metric]:.4f}" for metric in metrics]
            counts = f"{found['gate']['fixed']} : {found['gate']['broken']}" if key == "gate" else ""
            rows.append([words, row, *figures, counts])
    return rows


def in_short() -> Rows:
    """Return the README's four rows."""
    found = document("ham10000/folds/headline")["rows"]
    rows = [["every image tested once", "accuracy", "balanced accuracy", "melanoma found at 90 % specificity"]]
    for key, words in {
        "temperature": "classifier alone (EfficientNet-Lite0)",
        "gate": "with a bank in a second network's space (Lite2), gated",
        "average_adjusted": "mean of classifier and bank ÷ prior, no gate",
        "ensemble": "mean of both networks, no bank",
    }.items():
        rows.append([words, *(f"{found[key][metric][0]:.3f}" for metric in BAR)])
    return rows


TABLES: dict[str, Callable[[], Rows]] = {
    "sites": sites,
    "site-gates": site_gates,
    "cost": cost,
    "opinions": opinions,
    "tried": tried,
    "folds": headline,
    "folds-per-1000": per_thousand,
    "folds-in-short": in_short,
    "recipe": recipe,
}
