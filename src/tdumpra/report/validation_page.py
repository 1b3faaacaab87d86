"""The page of a validation: a finished model's figures elsewhere, and how the data there differ from its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tdumpra.artifacts import jsonable
from tdumpra.evaluation.comparators import words_of
from tdumpra.evaluation.metrics_table import METRICS
from tdumpra.evaluation.undefined import in_words
from tdumpra.report import kit, operating, sections
from tdumpra.report.kit import number, percent, sentence, signed
from tdumpra.report.report import INDEX, calibration, coverage
from tdumpra.report.summary import Tile
from tdumpra.writing import make_folder, write_bytes

_CONTENTS = {
    "summary": "Summary", "shift": "Shift", "results": "Results", "classes": "By class",
    "operating_points": "Operating points", "per_1000": "Per 1,000 images", "calibration": "Calibration",
    "coverage": "Answering where sure", "parts": "Subgroups", "about": "Model and data",
}  # fmt: skip
_UNLABELLED = ("summary", "shift", "about")  # parts that need no labels
_TILES = ("accuracy", "balanced_accuracy", "macro_auroc")


def write_validation_page(document: Mapping[str, Any], out: Path) -> Path:
    """Write ``index.html`` from the contents of ``validation.json``."""
    make_folder(out)
    found = jsonable(document)  # what is undefined is None from here on
    evaluation = found["evaluation"]
    page = kit.render(
        "validation.html",
        model=found["model"]["file"],
        source=found["source"],
        headline=sentence(found["sentences"][0]),
        sentences=[sentence(each) for each in found["sentences"][1:]],
        notes=[sentence(each) for each in found["notes"]],
        contents=[(key, title) for key, title in _CONTENTS.items() if evaluation or key in _UNLABELLED],
        tiles=_tiles(found),
        floors=[_floor(each) for each in found["fail_under"]],
        shift=_shift(found["shift"]),
        about=_about(found),
        labelled=None if evaluation is None else _labelled(evaluation),
    )
    write_bytes(out / INDEX, page.encode("utf-8", "replace"))
    return out / INDEX


def _labelled(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that needs labels."""
    after, before = evaluation["per_class"]["gate"], evaluation["per_class"]["student"]
    return {
        "results": sections.results(evaluation),
        "classes": [{"name": name, "before": before[name], "after": each} for name, each in after.items()],
        "points": operating.operating_points(evaluation),
        "per_1000": operating.per_1000(evaluation),
        "calibration": calibration(evaluation),
        "coverage": coverage(evaluation),
        "parts": {name: _part(values) for name, values in evaluation.get("subgroups", {}).items()},
        "shown": [words_of(name) for name in evaluation["comparators"]],
        "undefined": [(in_words(each["where"]), each["reason"]) for each in evaluation["undefined"]],
    }


def _part(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": value,
            "n": found["n"],
            "cells": [
                number(found["comparators"]["gate"][metric], 3) for metric in ("accuracy", "balanced_accuracy", "ece")
            ],
        }
        for value, found in values.items()
    ]


def _tiles(found: Mapping[str, Any]) -> list[Tile]:
    tiles = []
    if (evaluation := found["evaluation"]) is not None:
        intervals = evaluation.get("intervals", {}).get("gate", {})
        for metric in _TILES:
            low, high = intervals.get(metric) or (None, None)
            spread = "" if low is None else f"95 % interval {low:.3f} to {high:.3f}"
            home = "" if not found["at_home"] else f"on its own validation: {number(found['at_home'][metric], 3)}"
            value = number(evaluation["comparators"]["gate"][metric], 3)
            tiles.append(Tile(value, METRICS[metric].word, spread, expected=home))
    gap = found["shift"]["overconfidence"]
    for kind, words in (("measured", "confidence above accuracy, measured"), ("expected", "the same, by estimate")):
        if (each := gap[kind]) is not None:
            low, high = each["interval"]
            spread = "" if low is None else f"95 % interval {signed(low, 3)} to {signed(high, 3)}"
            tiles.append(Tile(signed(each["gap"], 3), words, spread))
    return tiles


def _floor(each: Mapping[str, Any]) -> dict[str, Any]:
    word = METRICS[each["metric"]].word
    return {"met": each["met"], "words": f"{word} {number(each['value'])}, at least {each['least']:g} was asked for"}


def _shift(found: Mapping[str, Any]) -> dict[str, Any]:
    classes = found["classes"]
    rows = [
        {"name": name, "new": share, "before": classes["before"][name], "new_words": percent(share),
         "before_words": percent(classes["before"][name])}
        for name, share in classes["new"].items()
    ]  # fmt: skip
    numbers = {"confidence": ("confidence", found["confidence"]), "familiarity": ("familiarity", found["familiarity"])}
    if found["colours"] is not None:
        numbers |= {name: (name, each) for name, each in found["colours"]["channels"].items()}
    return {
        "of": "labels" if classes["of"] == "labels" else "predictions",
        "reference": "training" if classes["reference"] == "train" else "validation",
        "classes": rows,
        "largest": max([each["new"] for each in rows] + [each["before"] for each in rows]) or 1,
        "distance": classes["distance"],
        "p": _p(classes["p_adjusted"]),
        "numbers": [
            {"name": name, "new": number(each["mean"], 3), "before": number(each["reference"], 3),
             "chance": "undefined" if each["chance_below"] is None else percent(each["chance_below"]),
             "p": _p(each["p_adjusted"])}
            for name, each in numbers.values()
        ],
        "outside": None if found["colours"] is None else percent(found["colours"]["outside"]),
        "groups": found["groups"],
    }  # fmt: skip


def _p(value: float | None) -> str:
    return "undefined" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _about(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    source = found["source"]
    return [
        ("model", found["model"]["file"]),
        ("SHA-256 of the model", found["model"]["sha256"]),
        ("data", source["name"]),
        ("fingerprint of the data", source["fingerprint"]),
        ("rows", f"{source['rows']:,}, of which {source['labelled']:,} with a label"),
        ("groups", f"{source['groups']:,}" if source["grouped"] else "none were given: each row counts for itself"),
        ("validated by", f"tdumpra {found['version']}"),
    ]
