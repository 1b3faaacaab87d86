"""Tables of the study on HAM10000: outer folds, other sites, cost, mixtures of opinions, and the paper's recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cost import times

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
FOLDS = RESULTS / "ham10000" / "folds" / "evaluation.json"
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


def document(name: str) -> dict[str, Any]:
    """Return a file of figures."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def span(interval: Sequence[float], *, points: bool = False) -> str:
    """Return a figure with its interval; a difference in hundredths."""
    value, low, high = (f"{100 * each:+.1f}" if points else f"{each:.3f}" for each in interval)
    return f"{value} ({low} to {high})"


def sites() -> Rows:
    """Return what each row reaches at home and at a site that it never saw."""
    rows = [["site", "row", "accuracy", "drop", "balanced accuracy", "melanoma at 90 %", "ECE"]]
    for name, found in document("sites")["sites"].items():
        for key, words in SITE_ROWS.items():
            if key not in found["rows"]:
                continue
            of_row = found["rows"][key]
            both = [
                " → ".join(f"{of_row[place][metric][0]:.3f}" for place in ("home", "there"))
                for metric in ("accuracy", "balanced_accuracy", "melanoma_at_90", "ece")
            ]
            rows.append(
                [name, words, both[0], span(of_row["drop"]["accuracy"], points=True).replace(" (", "<br>("), *both[1:]]
            )
    return rows


def site_gates() -> Rows:
    """Return what the gate that was chosen at home does there."""
    heading = ["opened, of 1,000", "fixed", "broken", "melanomas gained", "lost", "falsely called melanoma"]
    rows = [["site", "where", *heading, "accuracy over the classifier, points"]]
    for name, found in document("sites")["sites"].items():
        for place, did in found["gate"].items():
            of_1000 = did["per_1000"]
            counts = [of_1000[key] for key in ("opened", "fixed", "broken")]
            counts += [of_1000["melanoma"][key] for key in ("gained", "lost", "falsely_called")]
            ahead = span(found["rows"]["gate"][place]["ahead"]["accuracy"], points=True)
            rows.append([name, place, *(f"{count:.1f}" for count in counts), ahead])
    return rows


def cost() -> Rows:
    """Return the figures over the share of images that the second network sees, and what that share costs."""
    found = document("cost")
    test, validation = (found["curves"][part] for part in ("test", "validation"))
    heading = ["asked", "accuracy", "balanced accuracy", "macro-F1", "validation accuracy", "time, GPU", "time, CPU"]
    rows = [["asks below", *heading]]
    for place, theta in enumerate(found["theta"]):
        always = place == len(found["theta"]) - 1
        if not (place in (0, found["chosen"]) or always or (round(100 * theta) % 20 == 10 and theta >= 0.5)):
            continue
        figures = [f"{test[metric][place]:.4f}" for metric in ("accuracy", "balanced_accuracy", "macro_f1")]
        figures.append(f"{validation['accuracy'][place]:.4f}")
        beyond = test["asked"][place] > found["measured"]["h200"][-1][0]
        times = [f"{test[machine][place]:.2f}{' (continued)' if beyond else ''}" for machine in ("h200", "cpu")]
        name = "never" if place == 0 else "always" if always else f"{theta:.2f}"
        name = f"**{name}, chosen**" if place == found["chosen"] else name
        rows.append([name, f"{100 * test['asked'][place]:.0f} %", *figures, *times])
    return rows


def opinions() -> Rows:
    """Return mixtures of opinions with a bank and without one."""
    heading = ["accuracy", "balanced accuracy", "macro-F1", "melanoma found at 90 % specificity", "NLL"]
    rows = [["mixture", *heading, "balanced accuracy over the best without a bank, points"]]
    keys = ("accuracy", "balanced_accuracy", "macro_f1", "melanoma_at_90", "nll")
    for name, found in document("opinions")["rows"].items():
        ahead = found["ahead_balanced_accuracy"]
        lead = "is the best" if found["rival"] == name else span(ahead, points=True)
        rows.append([name, *(f"{found[key]:.4f}" for key in keys), lead])
    return rows


def tried() -> Rows:
    """Return other banks, views and stacks, each against the same stack without a bank."""
    heading = ["accuracy, points", "balanced accuracy, points", "melanoma at 90 %, points"]
    rows = [["tried", "judged", *heading, "balanced accuracy: with bank / without"]]
    for found in document("tried")["tried"].values():
        for kind, words in {"fitted": "as fitted", "over_prior": "÷ prior"}.items():
            leads = [span(found[kind][metric]["lead"], points=True) for metric in BAR]
            level = found[kind]["balanced_accuracy"]
            rows.append([found["words"], words, *leads, f"{level['with_bank']:.3f} / {level['without']:.3f}"])
    return rows


def headline() -> Rows:
    """Return the rows of the outer folds, without a bank and with one, and what each costs."""
    heading = ["accuracy", "balanced accuracy", "melanoma at 90 %", "ECE", "time, GPU / CPU"]
    found, rows = document("ham10000/folds/headline"), [["row", *heading]]
    for key, words in HEADLINE.items():
        figures = [span(found["rows"][key][metric]).replace(" (", "<br>(") for metric in BAR]
        share = f" ({100 * found['asked'][key]:.0f} % asked)" if key in found["asked"] else ""
        time = _time(key, found["asked"])
        rows.append([_bold(words, key) + share, *figures, f"{found['rows'][key]['ece'][0]:.3f}", time])
    return rows


def _bold(words: str, key: str) -> str:
    return f"**{words}**" if key == "gate" else words


def _time(key: str, asked: Mapping[str, float]) -> str:
    """Return the time over the classifier's alone."""
    if key == "eight":
        return "8 passes"
    if key in ("second_temperature", "similarity"):
        return "not timed"
    share = asked.get(key, 0.0 if key == "temperature" else 1.0)
    known = " \\*" if share > 0.45 else ""
    return " / ".join(f"{times(machine, share):.2f}" for machine in ("h200", "cpu")) + known


def per_thousand(found: Mapping[str, Any]) -> Rows:
    """Return what the gate did to 1,000 images, validation and test side by side."""
    rows = [["of 1,000 images", "validation", "test"]]
    both = [found["per_1000"][part] for part in ("validation", "test")]
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


def _folds() -> dict[str, Any]:
    return json.loads(FOLDS.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


TABLES: dict[str, Callable[[], Rows]] = {
    "sites": sites,
    "site-gates": site_gates,
    "cost": cost,
    "opinions": opinions,
    "tried": tried,
    "folds": headline,
    "folds-per-1000": lambda: per_thousand(_folds()),
    "folds-in-short": in_short,
    "recipe": recipe,
}
