"""Sections of a report as plain values for its template: tables, and charts with their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tdumpra.data.leakage import audit_leakage
from tdumpra.evaluation.comparators import words_of
from tdumpra.evaluation.metrics_table import HEADINGS, METRICS
from tdumpra.evaluation.over_seeds import Figure
from tdumpra.experiments import paper
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.output_files import SplitOutputs
from tdumpra.report import charts, kit
from tdumpra.report.drawing import Chart, csv_text
from tdumpra.report.kit import number, signed
from tdumpra.report.material import Material
from tdumpra.report.summary import p_text

if TYPE_CHECKING:
    from tdumpra.runs.config import Config

_PAIRED_METRICS = ("accuracy", "balanced_accuracy", "macro_f1", "ece", "nll")
_MOST_CLASSES = 40  # whose prototypes are shown
_MOST_PICTURES = 800  # some 3 KB each: the page must stay small enough to be sent around
_PICTURES, _NAMES = 4, 3  # of each prototype


def chart(drawn: Chart, name: str, caption: str) -> dict[str, Any]:
    """Return a chart for the template: its SVG, and its numbers as a file inside the page."""
    return {"svg": kit.raw(drawn.svg()), "caption": caption, "name": f"{name}.csv", "data": csv_link(drawn.rows)}


def csv_link(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a CSV file inside the page."""
    return kit.download(csv_text(rows))


def results(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return every comparator's metrics, each with its interval or its deviation over seeds."""
    scores = evaluation["comparators"]
    intervals, deviations = evaluation.get("intervals", {}), evaluation.get("comparators_std", {})
    metrics = [*HEADINGS, *(["cost"] if "cost" in scores["student"] else [])]

    def cell(name: str, metric: str) -> dict[str, str]:
        low, high = intervals.get(name, {}).get(metric, (None, None))
        std = deviations.get(name, {}).get(metric)
        spread = f"{low:.3f}–{high:.3f}" if low is not None else f"± {std:.4f}" if std is not None else ""
        return {"value": number(scores[name][metric]), "spread": spread}

    data = [
        {"comparator": name, **{metric: of[metric] for metric in metrics}}
        | {
            f"{m}_{end}": pair[i]
            for i, end in enumerate(("low", "high"))
            for m, pair in intervals.get(name, {}).items()
        }
        | {f"{m}_std": v for m, v in deviations.get(name, {}).items()}
        for name, of in scores.items()
    ]
    words = "No intervals were asked for."
    if boot := evaluation.get("bootstrap"):
        by = "lesions or patients" if evaluation["grouped"] else "rows"
        words = (
            f"Below each figure: its {boot['level']:.0%} interval, {boot['replicates']:,} bootstrap replicates over "
            f"{boot['groups']:,} {by}. Intervals of two rows overlap more than their difference does."
        )
    elif deviations:
        words = f"Mean ± standard deviation over the seeds {', '.join(map(str, evaluation.get('seeds', ())))}."
    caption = "{} of every comparator; dotted: the classifier as it came."
    return {
        "headings": [METRICS[metric].heading for metric in metrics],
        "rows": [
            {"name": name, "words": words_of(name), "cells": [cell(name, metric) for metric in metrics]}
            for name in scores
        ],
        "words": words,
        "data": csv_link(data),
        "charts": [
            chart(charts.comparators(evaluation, (metric,)), f"comparators_{metric}", caption.format(words))
            for metric, words in (("accuracy", "Accuracy"), ("balanced_accuracy", "Balanced accuracy"))
        ],
    }


def paired(evaluation: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the gate's lead over each rival on the same rows, where it was recorded."""
    if not evaluation.get("paired"):
        return None
    tuned = evaluation.get("paired_with_tuning") or {}

    def cell(rival: str, metric: str) -> dict[str, str]:
        found = evaluation["paired"][rival][metric]
        return {
            "value": signed(found["difference"]),
            "interval": _interval(found["interval"]),
            "with_choice": _interval(tuned.get(rival, {}).get(metric, {}).get("interval")),
        }

    return {
        "resampled": evaluation.get("resampled", "lesions"),
        "with_choice": bool(tuned),
        "metrics": [METRICS[metric].heading.removesuffix(" ↓") for metric in _PAIRED_METRICS],
        "rows": [
            {
                "name": rival,
                "words": words_of(rival),
                "cells": [cell(rival, metric) for metric in _PAIRED_METRICS],
                "counts": f"{found['fixed']:,} : {found['broken']:,}",
                "p": _p(found["sign_flip_p"]),
                "holm": _p(found["holm_p"]) if "holm_p" in found else "",
            }
            for rival, found in evaluation["paired"].items()
        ],
    }


def _interval(ends: Sequence[float | None] | None) -> str:
    low, high = ends or (None, None)
    return "" if low is None or high is None or low != low else f"{signed(low)} to {signed(high)}"


def _p(value: float) -> str:
    return p_text(value).removeprefix("p = ").removeprefix("p ")


def beside_paper(config: Config | None, evaluation: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return the paper's row for the same data set and backbone, or why there is none."""
    if config is None or config.outputs:
        return "the paper’s figures are not shown beside these: saved outputs do not name their data set and backbone"
    kind = config.data.source.split(":")[0]
    backbone = {each.architecture: each.name for each in paper.BACKBONES}.get(config.network.backbone.split(".")[0])
    if kind not in paper.DATASETS or backbone is None:
        return f"the paper has no figures for {kind} with {config.network.backbone}"
    theirs = [paper.reported(kind, backbone, with_method=with_method) for with_method in (False, True)]
    means, deviations = evaluation["comparators"], evaluation.get("comparators_std", {})
    seeds = len(evaluation.get("seeds", (0,)))
    return {
        "rows": [
            [METRICS[m].word, *(str(row[m]) for row in theirs)]
            + [str(Figure(means[who][m], deviations.get(who, {}).get(m))) for who in ("student", "gate")]
            for m in paper.TABLE_METRICS
        ],
        "words": f"The paper: {backbone} on {kind}, mean ± deviation of three seeds, split by image, so that images of "
        f"one lesion are on both sides. Here: {'one seed' if seeds == 1 else f'{seeds} seeds'}, protocol "
        f"“{config.data.protocol}”{_test_of(config)}. The two are not the same test.",
    }


def _test_of(config: Config) -> str:
    if config.data.hold_out is not None:
        return f", tested on {config.data.hold_out}"
    return "" if config.data.outer_folds is None else f", {config.data.outer_folds} outer folds"


def per_class(material: Material) -> dict[str, Any]:
    """Return each class before and after, under the data's own name of the class."""
    before, after = (list(material.evaluation["per_class"][who].values()) for who in ("student", "gate"))
    data = [
        {"class": name, "comparator": who, **{k: v for k, v in each.items() if not isinstance(v, dict)}}
        for name, *both in zip(material.class_names, before, after, strict=True)
        for who, each in zip(("student", "gate"), both, strict=True)
    ]
    rows = [
        {"name": name, "before": b, "after": a} for name, b, a in zip(material.class_names, before, after, strict=True)
    ]
    return {"rows": rows, "data": csv_link(data)}


def data_and_split(splits: SplitOutputs, class_names: Sequence[str], notes: Sequence[str]) -> dict[str, Any]:
    """Return how many cases of each class are in each split, and what the split leaks."""
    three = (splits.train, splits.validation, splits.test)
    counts = np.stack([np.bincount(rows.y.numpy(), minlength=splits.n_classes) for rows in three], 1)
    return {
        "rows": list(zip(class_names, counts.tolist(), strict=True)),
        "totals": [len(rows) for rows in three],
        "groups": [None if rows.groups is None else len(np.unique(rows.groups)) for rows in three],
        "leak": leak(splits),
        "notes": notes,
    }


def leak(splits: SplitOutputs) -> dict[str, Any] | None:
    """Audit the split for groups on both sides; ``None`` where no groups are known."""
    three = (splits.train, splits.validation, splits.test)
    groups = [rows.groups for rows in three if rows.groups is not None]
    if len(groups) < len(three):
        return None
    codes = np.repeat(np.arange(3), [len(rows) for rows in three])
    return audit_leakage(codes, np.concatenate(groups), np.concatenate([rows.y.numpy() for rows in three]))


def prototypes(material: Material, bank: PrototypeBank) -> dict[str, Any]:
    """Return health, notes and a gallery; with pictures where the model has any, else the names of the cases."""
    health, names = material.health, material.class_names
    notes = () if health is None else health.notes
    pictures = min(_PICTURES, _MOST_PICTURES // max(1, int(bank.mask.sum())))
    found = [
        _prototype(material, bank, c, k, pictures if c < _MOST_CLASSES else 0)
        for c in range(bank.n_classes)
        for k in range(int(bank.mask[c].sum()))
    ]
    shown = names[:_MOST_CLASSES]
    return {
        "words": f"The bank holds {len(found):,} prototypes of {bank.n_classes} classes, {bank.width} numbers each. "
        "Each stands for a group of training cases of one class; retrieval compares a new case with all of them.",
        "notes": notes if len(notes) <= 3 else [*notes[:2], f"and {len(notes) - 2} more of the kind: see the table"],
        "health": () if health is None else health.classes,
        "missing": material.missing.get("thumbnails"),
        "classes": {name: [each for each in found if each["class"] == name] for name in shown},
        "capped": f"The first {len(shown)} of {len(names)} classes are shown." if len(shown) < len(names) else None,
        "named": _NAMES,
        "data": csv_link(
            [
                {
                    "class": each["class"],
                    "prototype": each["number"],
                    "share_of_class": round(each["weight"], 6),
                    "cohesion": round(each["cohesion"], 6),
                    "nearest_training_cases": " ".join(each["nearest"]),
                }
                for each in found
            ]
        ),
    }


def _prototype(material: Material, bank: PrototypeBank, c: int, k: int, pictures: int) -> dict[str, Any]:
    name, thumbnails = material.class_names[c], material.thumbnails
    nearest = [each.id for each in bank.exemplars[c][k]]
    purity = () if material.health is None else material.health.purity.get(name, ())
    return {
        "class": name,
        "number": k + 1,
        "weight": float(bank.weight[c, k]),
        "cohesion": float(bank.cohesion[c, k]),
        "nearest": nearest,
        "images": [
            (kit.data_uri(thumbnails[each].numpy(), quality=78), each)
            for each in [each for each in nearest if each in thumbnails][:pictures]
        ],
        "purity": f"{purity[k][1]:.0%} from {purity[k][0]}" if k < len(purity) and purity[k][0] else "",
    }
