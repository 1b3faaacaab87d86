"""Write the tables of the results pages from the files beside them: ``python -m sitegen.results_tables``.

A table follows a comment that names it, ``<!-- table: NAME -->``, on one of the pages.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from sitegen import study
from sitegen.archive_costs import archive_costs
from sitegen.reliability import reliability
from sitegen.scale import clustering, large_arrays, neighbours, scaling

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "docs" / "results" / "ham10000"
ON_A_GPU = ROOT / "docs" / "results" / "h200"
PAGES = (
    ROOT / "docs" / "results" / "ham10000-supplement.md",
    ROOT / "docs" / "results" / "ham10000.md",
    ON_A_GPU / "README.md",
    ROOT / "README.md",
    ROOT / "docs" / "reliability.md",
    ROOT / "docs" / "scoring.md",
    ROOT / "docs" / "own-model.md",
    ROOT / "docs" / "results" / "scaling.md",
    ROOT / "docs" / "results" / "sites.md",
)
METRICS = ("accuracy", "macro_f1", "balanced_accuracy", "macro_auroc", "ece", "nll")
LEADS = ("accuracy", "macro_f1", "balanced_accuracy", "ambiguous_accuracy", "aurc", "macro_auroc")
RIVALS = (
    "baseline", "temperature", "logit_adjusted", "teacher_adjusted", "second", "second_adjusted", "ensemble",
    "ensemble_adjusted", "similarity", "average",
)  # fmt: skip
BACKBONES = {
    "resnet101": "ResNet-101", "convnext_tiny": "ConvNeXt-Tiny", "efficientnet_b0": "EfficientNet-B0",
    "vit_base_patch16_224": "ViT-B/16", "swin_base_patch4_window7_224": "Swin-B",
}  # fmt: skip
GATES = (
    "lite0-preset-paper", "lite0-preset-paper-swapped", "lite0-preset-default", "lite0-rebalancing",
    "lite0-ce-rebalancing", "lite2-preset-paper", "lite2-preset-paper-swapped", "lite2-preset-default",
    "system-frozen", "system-lite0", "system-turned", "system-lite2-ce", "system-lesion", "joint-system",
    "system-default", "system", "system-accuracy", "system-views", "system-views-accuracy",
)  # fmt: skip

NAMES = {"default": "free"}  # of presets that were renamed since the files were made

Rows = list[list[str]]  # the first is the heading


def evaluation(name: str) -> dict[str, Any]:
    """Return the figures of one configuration, as :mod:`sitegen.compact_results` keeps them."""
    return json.loads((FILES / name / "evaluation.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def table_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV table."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def comparators(name: str) -> Rows:
    """All comparators of one configuration; ``baseline`` is its ``student`` and left out."""
    found = evaluation(name)
    rows = [["row", "accuracy", "macro-F1", "bal. accuracy", "melanoma found", "AUROC", "ECE", "NLL"]]
    for who, of_row in found["comparators"].items():
        if who != "baseline":
            means = [f"{of_row[metric]:.4f}" for metric in METRICS[3:]]
            spread = _with_spread(found, who, METRICS[:3])
            rows.append([f"`{who}`", *spread, f"{melanoma_found(found, who):.3f}", *means])
    return rows


def melanoma_found(found: dict[str, Any], who: str) -> float:
    """Return the share of melanomas that are called so, mean over seeds."""
    return fmean(seed["recall"][who]["mel"] for seed in found["by_seed"].values())


def leads(name: str) -> Rows:
    """What a gate is ahead of its rivals by."""
    paired = evaluation(name)["paired"]
    heading = ["accuracy", "macro-F1", "bal. accuracy", "accuracy where unsure", "AURC", "AUROC", "fixed : broken", "p"]
    rows = [["against", *heading]]
    for rival in RIVALS:
        of_rival = paired[rival]
        figures = [points(of_rival[metric]).replace(" (", "<br>(") for metric in LEADS]
        rows.append([f"`{rival}`", *figures, _counts(of_rival), f"{of_rival['sign_flip_p']:.2g}"])
    return rows


def goals() -> Rows:
    """What was aimed at, under both objectives."""
    rows = [["goal", "aimed at", "tuned for macro-F1", "tuned for accuracy"]]
    both = [evaluation(name) for name in ("system", "system-accuracy")]
    over = [found["paired"]["baseline"] for found in both]
    for title, aim, metric in (
        ("accuracy over the baseline, points", 1.0, "accuracy"),
        ("macro-F1", 4.0, "macro_f1"),
        ("balanced accuracy", 6.0, "balanced_accuracy"),
    ):
        reached = [_told(points(each[metric]), 100 * each[metric]["difference"] >= aim) for each in over]
        rows.append([title, f"≥ +{aim:g}", *reached])
    error = [found["comparators"]["gate"]["ece"] for found in both]
    rows.append(["expected calibration error", "≤ 0.02", *(_told(f"{each:.4f}", each <= 0.02) for each in error)])
    area = [each["macro_auroc"] for each in over]
    rows.append(["AUROC, points", "≥ 0", *(_told(points(each), each["difference"] >= 0) for each in area)])
    p = [each["sign_flip_p"] for each in over]
    rows.append(["sign-flip test over lesions", "p < 0.05", *(_told(f"{each:.2g}", each < 0.05) for each in p)])
    taken = [(100 * found["headroom_taken"], found["headroom_taken"] >= 0.25) for found in both]
    rows.append(["share of the oracle's room", "≥ 25 %", *(_told(f"{share:.1f} %", enough) for share, enough in taken)])
    for title, metric in (
        ("beyond `logit_adjusted`: accuracy, which must not fall", "accuracy"),
        ("balanced accuracy", "balanced_accuracy"),
        ("accuracy where unsure", "ambiguous_accuracy"),
        ("AURC", "aurc"),
    ):
        beyond = [found["paired"]["logit_adjusted"][metric] for found in both]
        rows.append([title, "≥ 0" if metric == "accuracy" else "one of three above 0", *map(points, beyond)])
    return rows


def validation() -> Rows:
    """What each gate did on validation rows of seeds that had no say in its choice, and on test."""
    told = re.compile(r"without the seed .* fixed (\d+) predictions and broke (\d+) .*: accuracy ([\d.]+) to ([\d.]+)")
    heading = ["validation: fixed : broken", "accuracy, points", "test: fixed : broken", "accuracy, points"]
    rows = [["gate", *heading]]
    for name in ("system-accuracy", "system", "system-default"):
        found = evaluation(name)
        said = told.search(found["tuning"])
        if said is None:
            raise ValueError(f"the tuning of {name} does not say what it earned on other seeds")
        fixed, broken, before, after = said.groups()
        lead = found["paired"]["baseline"]["accuracy"]["difference"]
        gained = f"{100 * (float(after) - float(before)):+.2f}"
        rows.append([f"`{name}`", f"{fixed} : {broken}", gained, _counts(found["gate"]), f"{100 * lead:+.2f}"])
    return rows


def _told(value: str, reached: bool) -> str:
    return value if reached else f"**{value}: missed**"


def paths() -> Rows:
    """The paper's Table 1: a single path against the full method, by backbone and preset."""
    rows = [["backbone", "method", "accuracy", "macro-F1", "bal. accuracy", "AUROC", "ECE", "accuracy lead", "p"]]
    for key, title in (("lite0", "Lite0"), ("lite2", "Lite2")):
        for preset in ("paper", "paper-swapped", "default"):
            found = evaluation(f"{key}-preset-{preset}")
            if preset == "paper":
                rows.append([title, "single path", *_with_spread(found, "baseline"), "", ""])
            lead = found["paired"]["baseline"]
            full = [*_with_spread(found, "gate"), points(lead["accuracy"]), f"{lead['sign_flip_p']:.2g}"]
            rows.append([title, f"full, `{NAMES.get(preset, preset)}`", *full])
    return rows


def _counts(gate: Mapping[str, Any]) -> str:
    return f"{gate['fixed']} : {gate['broken']}"


def _with_spread(found: dict[str, Any], who: str, names: tuple[str, ...] = METRICS[:5]) -> list[str]:
    mean, spread = found["comparators"][who], found["comparators_std"][who]
    return [f"{mean[metric]:.4f} ± {spread[metric]:.4f}" for metric in names]


def gates() -> Rows:
    """Student and gate of every configuration."""
    heading = ["student: acc / F1 / bal.", "gate: acc / F1 / bal.", "fixed : broken", "p", "beyond prior (points)"]
    rows = [["configuration", *heading]]
    for name in GATES:
        found = evaluation(name)
        means = [found["comparators"][who] for who in ("student", "gate")]
        both = [" / ".join(f"{mean[metric]:.3f}" for metric in METRICS[:3]) for mean in means]
        beyond = points(found["paired"]["logit_adjusted"]["balanced_accuracy"])
        rows.append([f"`{name}`", *both, _counts(found["gate"]), f"{found['gate']['sign_flip_p']:.2g}", beyond])
    return rows


def views() -> Rows:
    """One view of each image at test time against eight, the same seeds."""
    rows = [["row", "one view: acc / F1 / bal.", "ECE", "eight views: acc / F1 / bal.", "ECE"]]
    of_system = (
        "baseline", "temperature", "logit_adjusted", "second", "ensemble", "ensemble_adjusted", "similarity", "average",
        "gate",
    )  # fmt: skip
    told = {"baseline": "`student`", "gate": "`gate`, tuned for macro-F1"}
    named = [(who, told.get(who, f"`{who}`"), "") for who in of_system]
    for who, title, objective in (*named, ("gate", "`gate`, tuned for accuracy", "-accuracy")):
        cells: list[str] = []
        eight = evaluation(f"system-views{objective}")
        for found in (evaluation(f"system{objective}"), eight):
            means = over_these_seeds(found, who, eight["seeds"])
            cells += [" / ".join(f"{means[metric]:.3f}" for metric in METRICS[:3]), f"{means['ece']:.3f}"]
        rows.append([title, *cells])
    return rows


def over_these_seeds(found: dict[str, Any], who: str, seeds: list[int]) -> dict[str, float]:
    """The means of some of an evaluation's seeds."""
    of_seeds = [found["by_seed"][str(seed)]["comparators"][who] for seed in seeds]
    return {metric: fmean(of_seed[metric] for of_seed in of_seeds) for metric in METRICS}


def ablation(folder: str) -> Rows:
    """Return the paper's six rows."""
    rows = [["#", "variant", "accuracy", "macro-F1", "bal. accuracy", "fixed : broken"]]
    for row in table_rows(FILES / folder / "ablation.csv"):
        figures = [f"{float(row[metric]):.4f} ± {float(row[metric + '_std']):.4f}" for metric in METRICS[:3]]
        counts = _counts(row) if int(row["fixed"]) + int(row["broken"]) else ""
        rows.append([row["number"], row["variant"], *figures, counts])
    return rows


def leak() -> Rows:
    """The same training split by lesion and by image."""
    grouped, by_image = (evaluation(name)["comparators"] for name in ("lite0-preset-default", "lite0-paper"))
    heading = ["accuracy, grouped", "by image", "points", "bal. accuracy, grouped", "by image", "points"]
    rows = [["row", *heading]]
    for who in ("student", "teacher", "knn", "similarity", "gate"):
        cells = []
        for metric in ("accuracy", "balanced_accuracy"):
            before, after = grouped[who][metric], by_image[who][metric]
            cells += [f"{before:.4f}", f"{after:.4f}", f"{100 * (after - before):+.1f}"]
        rows.append([f"`{who}`", *cells])
    return rows


def weights() -> Rows:
    """Return λ moved, on test; the last row is the paper's sum, which is a larger weight on the mean."""
    rows = [["λ", "classifier: acc / bal.", "retrieval alone: acc / bal.", "gate: acc / bal.", "fixed : broken"]]
    moved = table_rows(FILES / "lambda" / "sweep_lambda.csv")
    on_test = [row for row in moved if row["split"] == "test" and row["seed"] != "mean"]
    for value in sorted({float(row["value"]) for row in on_test}):
        seeds = [row for row in on_test if float(row["value"]) == value]
        cells = [
            " / ".join(f"{fmean(float(row[prefix + metric]) for row in seeds):.4f}" for metric in METRICS[:3:2])
            for prefix in ("classifier_", "similarity_", "")
        ]
        fixed, broken = (sum(int(row[name]) for row in seeds) for name in ("fixed", "broken"))
        rows.append([f"{value:g}", *cells, f"{fixed} : {broken}"])
    summed = evaluation("lite0-sum")
    means = [summed["comparators"][who] for who in ("student", "similarity", "gate")]
    cells = [f"{mean['accuracy']:.4f} / {mean['balanced_accuracy']:.4f}" for mean in means]
    rows.append(["0.03, summed", *cells, _counts(summed["gate"])])
    return rows


def backbones() -> Rows:
    """The paper's backbones from random weights: losses of training, and validation by epoch."""
    heading = ["cross-entropy, first steps", "last steps", "validation NLL by epoch", "validation AUROC by epoch"]
    rows = [["backbone", *heading]]
    for key, title in BACKBONES.items():
        lines = [json.loads(line) for line in (FILES / "backbones" / f"{key}.jsonl").read_text().splitlines()]
        losses = [line["cross_entropy"] for line in lines if "cross_entropy" in line]
        scores = [line["validation"]["student"] for line in lines if "validation" in line]
        ends = [f"{sum(part) / 5:.2f}" for part in (losses[:5], losses[-5:])]
        by_epoch = [" → ".join(f"{score[metric]:.3f}" for score in scores) for metric in ("nll", "macro_auroc")]
        rows.append([title, *ends, *by_epoch])
    return rows


def steps() -> Rows:
    """The full training step against the bare one, eager and compiled, as measured together."""
    kinds = ("eager", "compiled")
    head = [column for kind in kinds for column in (f"{kind}: views/s", "of bare", "memory, of bare")]
    rows = [["backbone", *head, "compiled, of eager"]]
    document = json.loads((ON_A_GPU / "compiled-step.json").read_text(encoding="utf-8"))
    measured = {row["name"]: row for row in document["rows"]}
    for key, title in BACKBONES.items():
        cells: list[str] = []
        for kind in kinds:
            speed, memory = (measured[f"{key}, {kind}, {what}"] for what in ("full step", "memory"))
            cells += [f"{speed['ours']:,.0f}", f"{speed['ratio']:.2f}", f"{memory['ratio']:.2f}"]
        rows.append([title, *cells, f"{measured[f'{key}, compiled against eager, full step']['ratio']:.2f}"])
    return rows


def captured_steps() -> Rows:
    """The captured step against the bare one in the same mode, and against the eager bare step."""
    rows = [
        [
            "backbone",
            "full step, captured: views/s",
            "of the bare step, captured",
            "of the bare step, eager",
            "memory, of bare",
        ]
    ]
    document = json.loads((ON_A_GPU / "captured-step.json").read_text(encoding="utf-8"))
    measured = {row["name"]: row for row in document["rows"]}
    for key, title in BACKBONES.items():
        if f"{key}, captured, memory" not in measured:
            continue
        kinds = ("full step of bare", "full step of plain", "memory")
        bare, plain, memory = (measured[f"{key}, captured, {kind}"] for kind in kinds)
        cells = [f"{bare['ours']:,.0f}", f"{bare['ratio']:.3f}", f"{plain['ratio']:.2f}", f"{memory['ratio']:.2f}"]
        rows.append([title, *cells])
    return rows


def points(lead: dict[str, Any], digits: int = 2) -> str:
    """A difference with its interval, in hundredths."""
    low, high = lead["interval"]
    return f"{100 * lead['difference']:+.{digits}f} ({100 * low:+.{digits}f} to {100 * high:+.{digits}f})"


TABLES: dict[str, Callable[[], Rows]] = {
    "comparators": lambda: comparators("system"),
    "leads": lambda: leads("system"),
    "leads-accuracy": lambda: leads("system-accuracy"),
    "validation": validation,
    "goals": goals,
    "paths": paths,
    "gates": gates,
    "views": views,
    "ablation": lambda: ablation("ablation"),
    "ablation-lite2": lambda: ablation("ablation-lite2"),
    "leak": leak,
    "lambda": weights,
    "backbones": backbones,
    "steps": steps,
    "captured": captured_steps,
    "reliability": reliability,
    "archive-costs": archive_costs,
    "large-arrays": large_arrays,
    "clustering": clustering,
    "neighbours": neighbours,
    "scaling": scaling,
    **study.TABLES,
}
_TABLE = re.compile(r"(<!-- table: (\S+) -->\n)(?:\|.*\n)*")


def fill(text: str) -> str:
    """A page with its tables as the files have them."""

    def table(found: re.Match[str]) -> str:
        heading, *rows = TABLES[found[2]]()
        lines = ["| " + " | ".join(row) + " |" for row in (heading, *rows)]
        kinds = ["---:" if _numbers(column) else "---" for column in zip(*rows, strict=True)]
        lines.insert(1, "|" + "|".join(kinds) + "|")
        return found[1] + "\n".join(lines) + "\n"

    return _TABLE.sub(table, text)


def _numbers(column: tuple[str, ...]) -> bool:
    return all(re.match(r"[-+*\d]|$", cell) for cell in column)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")
