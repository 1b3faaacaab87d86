"""``report/index.html``: everything about a run on one page that needs no network, with a page for each shown case."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tdumpra.report import cases, charts, gate_sections, kit, operating, sections
from tdumpra.report.material import Material
from tdumpra.report.qualitative import qualitative
from tdumpra.report.subgroups import subgroups
from tdumpra.report.summary import summarise
from tdumpra.writing import make_folder, write_bytes

FOLDER, INDEX = "report", "index.html"
_CARDS_PER_PAGE = 24
_CONTENTS = {
    "summary": "Summary", "results": "Results", "per_1000": "Per 1,000 images",
    "operating_points": "Operating points", "cost_curve": "Cost", "gate": "The gate’s story", "cases": "Cases",
    "classes": "By class", "confusion": "Confusion", "calibration": "Calibration", "coverage": "Answering where sure",
    "sweeps": "θ and β", "parts": "Subgroups", "prototypes": "Prototypes", "training": "Training",
    "data": "Data and split", "environment": "Environment",
}  # fmt: skip
_OPTIONAL = ("per_1000", "operating_points", "cost_curve")  # parts of an evaluation that not every one has


def write_page(
    material: Material, out: Path, *, limit: int = cases.SHOWN, back_link: tuple[str, str] | None = None
) -> Path:
    """Write the report of one seed or one file of outputs into ``out``; the index comes last, after all it names."""
    make_folder(out)
    evaluation, splits, decision, decided = material.evaluation, material.splits, material.decision, material.decided
    no_cases = material.missing.get("cases", "")
    leak = None if splits is None else sections.leak(splits)
    page = kit.render(
        "report.html",
        scripts=("report.js",),
        name=material.name,
        lead=_lead(material, leak),
        back_link=back_link,
        contents=[(key, title) for key, title in _CONTENTS.items() if key not in _OPTIONAL or evaluation.get(key)],
        summary=summarise(evaluation, leak, [material.tuning]),
        results=sections.results(evaluation),
        rivals=operating.rivals(evaluation),
        paired=sections.paired(evaluation),
        per_1000=operating.per_1000(evaluation),
        points=operating.operating_points(evaluation),
        cost=operating.cost_curve(evaluation),
        paper=sections.beside_paper(material.config, evaluation),
        gate=gate_sections.gate_story(material),
        gallery=no_cases if splits is None else _gallery(material, out, limit),
        pictures_missing=material.missing.get("pictures"),
        qualitative=qualitative(material, out),
        per_class=sections.per_class(material),
        confusion=gate_sections.confusion(splits, decided, material.class_names) if splits and decided else no_cases,
        calibration=calibration(evaluation),
        coverage=coverage(evaluation),
        sweeps=gate_sections.curves(splits, decision, material.tuned) if splits and decision else no_cases,
        parts=subgroups(material),
        bank=sections.prototypes(material, decision.bank) if decision else no_cases,
        training=_training(material),
        data=sections.data_and_split(splits, material.class_names, material.split_notes) if splits else no_cases,
        identity=material.identity,
        environment=_environment(material),
        settings=material.settings,
        undefined=evaluation["undefined"],
    )
    write_bytes(out / INDEX, page.encode("utf-8", "replace"))
    return out / INDEX


def _lead(material: Material, leak: Mapping[str, Any] | None) -> str:
    rows = material.evaluation["rows"]
    grouped = "" if leak is None or leak["crossing_groups"] else ", no lesion on two sides"
    stored, first = "training cases", ""
    if material.evaluation.get("refit"):
        stored, first = "training and validation cases by a second network", " by the first"
    return (
        f"{rows['test']:,} test cases of {len(material.class_names)} classes; the bank was made of {rows['train']:,} "
        f"{stored}, and everything was tuned on {rows['val']:,} validation cases{first}{grouped}."
    )


def _gallery(material: Material, out: Path, limit: int) -> dict[str, Any]:
    found = cases.write_cases(material, out, limit=limit)
    make_folder(out / "data")
    write_bytes(out / "data" / "cases.csv", cases.cases_csv(material).encode("utf-8", "replace"))
    intro = (
        "Every case on which the gate opened or the two paths disagree belongs here."
        if material.evaluation["gate"]["opened"]
        else "The gate never opened. These are the cases on which it might have: the two paths disagree."
    )
    return {**found, "intro": intro, "page_size": _CARDS_PER_PAGE, "table": "data/cases.csv"}


def calibration(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return how far confidence can be taken at its word, before and after the gate."""
    scores = evaluation["comparators"]
    fitted = f" A temperature alone brings it to {scores['temperature']['ece']:.3f}." if "temperature" in scores else ""
    noise = evaluation["calibration"]["gate"]["ece_if_calibrated"]
    caption = "Bars that end below the diagonal: too sure of itself."
    return {
        "words": "How far confidence can be taken at its word: the expected calibration error is "
        f"{scores['student']['ece']:.3f} for the classifier as it came and {scores['gate']['ece']:.3f} for the gate."
        f"{fitted} On as many cases chance alone leaves {noise['mean']:.3f}, and seldom more than {noise['upper']:.3f} "
        "(95 %), where probabilities mean exactly what they say.",
        "charts": [
            sections.chart(charts.reliability(evaluation, (name,)), f"reliability_{name}", f"{title} {caption}")
            for name, title in (("student", "Before: the classifier as it came."), ("gate", "After: the gate."))
        ],
    }


def coverage(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return what comes of answering only the surest cases."""
    refer = evaluation["selective"]["gate"].get("refer")
    words = "If only the surest cases are answered and the rest go to a human, fewer answers are wrong."
    if refer and refer["risk"] is not None:
        words += (
            f" At the threshold that validation chose for at most {refer['target_risk']:.0%} errors, the gate answers "
            f"{refer['answered']:,} cases ({refer['coverage']:.0%}) and refers {refer['referred']:,}; "
            f"{refer['risk']:.1%} of its answers on test are wrong (95 % bound {refer['risk_upper']:.1%})."
        )
    elif refer:
        words += (
            f" No threshold kept the errors at {refer['target_risk']:.0%} on validation: every case would be referred."
        )
    caption = "Dots: where cases go to a human. The lower the curve, the better confidence ranks the cases."
    return {"words": words, "chart": sections.chart(charts.risk_coverage(evaluation), "risk_coverage", caption)}


def _training(material: Material) -> dict[str, Any] | str:
    if "training" in material.missing:
        return material.missing["training"]
    drawn, no_loss = [], material.missing.get("training_loss")
    if no_loss is None:
        curve = charts.training_loss(material.metrics)
        drawn.append(sections.chart(curve, "training_loss", "The joint loss and its parts, step by step."))
    if any("validation" in row for row in material.metrics):
        curve = charts.training_validation(material.metrics)
        drawn.append(sections.chart(curve, "training_validation", "Student and teacher on validation, epoch by epoch."))
    return {"charts": drawn, "no_loss": no_loss}


def _environment(material: Material) -> list[tuple[str, str]] | str:
    found = material.environment
    if found is None:
        return "no environment was recorded with these results"
    flat = {**{key: value for key, value in found.items() if key != "packages"}, **found.get("packages", {})}
    words = {key: " ".join(map(str, value)) if isinstance(value, list) else str(value) for key, value in flat.items()}
    return [("tdumpra", material.evaluation["version"]), *words.items()]
