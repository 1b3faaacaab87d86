"""The parts of a report as plain values for its template: tables, and charts with their numbers."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tdumpra.data.leakage import audit_leakage
from tdumpra.evaluation.comparators import words_of
from tdumpra.evaluation.metrics_table import HEADINGS, METRICS
from tdumpra.evaluation.over_seeds import Figure
from tdumpra.experiments import paper
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import ScoredOutputs, TrainOutputs
from tdumpra.report import charts, kit
from tdumpra.report.drawing import Chart, csv_text
from tdumpra.report.material import Material
from tdumpra.report.summary import p_text, signed

if TYPE_CHECKING:
    from tdumpra.runs.config import Config


def chart(drawn: Chart, name: str, caption: str) -> dict[str, Any]:
    """A chart for the template: its SVG, and its numbers as a file inside the page."""
    return {"svg": kit.raw(drawn.svg()), "caption": caption, "name": f"{name}.csv", "data": download(drawn.csv())}


def download(text: str, kind: str = "text/csv") -> str:
    """A file as an address that needs no network."""
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"


def number(value: float | None, digits: int = 4) -> str:
    """A figure, or the word for one that the data do not define."""
    return "undefined" if value is None or value != value else f"{value:.{digits}f}"


def results(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Every comparator's metrics, each with its interval or its deviation over seeds."""
    intervals, deviations = evaluation.get("intervals", {}), evaluation.get("comparators_std", {})
    metrics = [*HEADINGS, *(["cost"] if "cost" in evaluation["comparators"]["student"] else [])]

    def cell(name: str, metric: str) -> dict[str, str]:
        low, high = intervals.get(name, {}).get(metric, (None, None))
        std = deviations.get(name, {}).get(metric)
        spread = f"{low:.3f}–{high:.3f}" if low is not None else f"± {std:.4f}" if std is not None else ""
        return {"value": number(evaluation["comparators"][name][metric]), "spread": spread}

    rows = [
        {"name": name, "words": words_of(name), "cells": [cell(name, metric) for metric in metrics]}
        for name in evaluation["comparators"]
    ]
    data = [
        {"comparator": name, **{metric: scores[metric] for metric in metrics}}
        | {f"{m}_low": pair[0] for m, pair in intervals.get(name, {}).items()}
        | {f"{m}_high": pair[1] for m, pair in intervals.get(name, {}).items()}
        | {f"{m}_std": v for m, v in deviations.get(name, {}).items()}
        for name, scores in evaluation["comparators"].items()
    ]
    boot = evaluation.get("bootstrap")
    by = "lesions or patients" if evaluation["grouped"] else "rows"
    words = {
        "intervals": boot
        and f"Below each figure: its {boot['level']:.0%} interval, {boot['replicates']:,} bootstrap "
        f"replicates over {boot['groups']:,} {by}. Intervals of two rows overlap more than their difference does.",
        "deviations": f"Mean ± standard deviation over the seeds {', '.join(map(str, evaluation.get('seeds', ())))}.",
    }
    return {
        "headings": [METRICS[metric].heading for metric in metrics],
        "rows": rows,
        "words": words["intervals"] if boot else words["deviations"] if deviations else "No intervals were asked for.",
        "data": download(csv_text(data)),
        "charts": [
            chart(
                charts.comparators(evaluation, (metric,)),
                f"comparators_{metric}",
                f"{METRICS[metric].word.capitalize()} of every comparator; dotted: the classifier as it came.",
            )
            for metric in ("accuracy", "balanced_accuracy")
        ],
    }


def paired(evaluation: Mapping[str, Any]) -> dict[str, Any] | None:
    """The gate's lead over each rival on the same rows, over the seeds, where it was noted."""
    if not evaluation.get("paired"):
        return None
    metrics = ("accuracy", "macro_f1", "balanced_accuracy", "ece", "nll")

    def cell(found: Mapping[str, Any]) -> tuple[str, str]:
        low, high = found["interval"]
        interval = "" if low is None or low != low else f"{signed(low)} to {signed(high)}"
        difference = found["difference"]
        return "undefined" if difference is None or difference != difference else signed(difference), interval

    return {
        "metrics": [METRICS[metric].heading.removesuffix(" ↓") for metric in metrics],
        "rows": [
            {
                "name": rival,
                "words": words_of(rival),
                "cells": [cell(found[metric]) for metric in metrics],
                "counts": f"{found['fixed']:,} : {found['broken']:,}",
                "p": p_text(found["sign_flip_p"]).removeprefix("p = ").removeprefix("p "),
            }
            for rival, found in evaluation["paired"].items()
        ],
    }


def beside_paper(config: Config | None, evaluation: Mapping[str, Any]) -> dict[str, Any] | str:
    """The paper's row for the same data set and backbone, or why there is none."""
    if config is None or config.outputs:
        return "the paper’s figures are not shown beside these: saved outputs do not say their data set and backbone"
    kind = config.data.source.split(":")[0]
    backbone = {each.timm: each.name for each in paper.BACKBONES}.get(config.network.backbone)
    if kind not in paper.DATASETS or backbone is None:
        return f"the paper has no figures for {kind} with {config.network.backbone}"
    theirs = [paper.reported(kind, backbone, with_method=with_method) for with_method in (False, True)]
    deviations = evaluation.get("comparators_std", {})
    ours: list[dict[str, str]] = [
        {metric: str(Figure(value, deviations.get(who, {}).get(metric))) for metric, value in scores.items()}
        for who, scores in ((who, evaluation["comparators"][who]) for who in ("student", "gate"))
    ]
    seeds = len(evaluation.get("seeds", (0,)))
    return {
        "rows": [
            [METRICS[metric].word, *(str(row[metric]) for row in theirs), *(row[metric] for row in ours)]
            for metric in paper.TABLE_METRICS
        ],
        "words": f"The paper: {backbone} on {kind}, mean ± deviation of three seeds, split by image, so that images of "
        f"one lesion stand on both sides. Here: {'one seed' if seeds == 1 else f'{seeds} seeds'}, protocol "
        f"“{config.data.protocol}”. The two are not the same test.",
    }


def per_class(material: Material) -> dict[str, Any]:
    """Each class before and after; its name is the data's own where the evaluation only knows numbers."""
    before, after = (material.evaluation["per_class"][name] for name in ("student", "gate"))
    # asked for some classes only, where `sensitivity_classes` names them
    specificities = list(
        dict.fromkeys(s for each in after.values() for s in each.get("sensitivity_at_specificity", {}))
    )
    rows, data = [], []
    for name, key in zip(material.class_names, after, strict=True):
        b, a = before[key], after[key]
        at = a.get("sensitivity_at_specificity", {})
        pairs = [
            (number(b[metric], 3), number(a[metric], 3), _tone(b[metric], a[metric]))
            for metric in ("recall", "precision", "f1")
        ]
        rows.append(
            {
                "name": name,
                "support": a["support"],
                "pairs": pairs,
                "auroc": number(a["auroc"], 3),
                "at": [number(at[s], 3) if s in at else "–" for s in specificities],
            }
        )
        data += [
            {"class": name, "comparator": who, **{k: v for k, v in each.items() if not isinstance(v, dict)}}
            for who, each in (("student", b), ("gate", a))
        ]
    return {"rows": rows, "specificities": specificities, "data": download(csv_text(data))}


def _tone(before: float | None, after: float | None) -> str:
    if before is None or after is None or abs(after - before) < 5e-4:
        return ""
    return "good" if after > before else "bad"


def parts(material: Material) -> list[dict[str, Any]]:
    """Cases on which the classifier is unsure, and each subgroup that was asked for."""
    evaluation = material.evaluation
    unsure = evaluation["ambiguous"]
    found: list[dict[str, Any]] = [
        {
            "title": f"Where the classifier is unsure (top probability below {unsure['below']:.2g})",
            "values": {"unsure": unsure},
        }
    ]
    found += [{"title": f"By {column}", "values": values} for column, values in evaluation.get("subgroups", {}).items()]
    shown = [
        name
        for name in ("student", "logit_adjusted", "similarity", "gate", "oracle")
        if name in evaluation["comparators"]
    ]
    return [
        {
            "title": each["title"],
            "comparators": shown,
            "rows": [
                {
                    "name": name,
                    "n": part["n"],
                    "cells": [number(part["comparators"][who]["accuracy"], 3) for who in shown],
                    "balanced": [number(part["comparators"][who]["balanced_accuracy"], 3) for who in shown],
                }
                for name, part in each["values"].items()
            ],
        }
        for each in found
    ]


def data_and_split(material: Material) -> dict[str, Any] | str:
    """How many cases of each class stand where, the fingerprints, and what the split leaks."""
    splits = material.splits
    if splits is None:
        return material.missing["cases"]
    three: dict[str, TrainOutputs | ScoredOutputs] = {
        "train": splits.train,
        "val": splits.validation,
        "test": splits.test,
    }
    counts = {part: np.bincount(rows.y.numpy(), minlength=splits.n_classes).tolist() for part, rows in three.items()}
    groups = {part: None if rows.groups is None else len(np.unique(rows.groups)) for part, rows in three.items()}
    return {
        "rows": [
            {"name": name, "counts": [counts[part][c] for part in three]} for c, name in enumerate(material.class_names)
        ],
        "totals": [len(rows) for rows in three.values()],
        "groups": list(groups.values()),
        "leak": leak(splits),
        "identity": material.identity,
        "notes": material.split_notes,
    }


def leak(splits: SplitOutputs) -> dict[str, Any] | None:
    """The audit of the split; nothing where no groups are known."""
    three = (splits.train, splits.validation, splits.test)
    groups = [rows.groups for rows in three if rows.groups is not None]
    if len(groups) < len(three):
        return None
    codes = np.repeat(np.arange(3), [len(rows) for rows in three])
    return audit_leakage(codes, np.concatenate(groups), np.concatenate([rows.y.numpy() for rows in three]))
