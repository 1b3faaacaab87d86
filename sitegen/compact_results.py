"""Keep the part of a results folder that the results pages read.

``python -m sitegen.compact_results WHOLE COMPACT`` reads what ``tdumpra evaluate``, ``ablate`` and ``sweep`` wrote
below ``WHOLE`` and writes it below ``COMPACT`` under the same names: tables as CSV only, and the sections of
``evaluation.json`` that a page reads, one to a line, without a checksum. No number is rounded.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tdumpra.artifacts import read_json

TABLES = ("ablation.csv", "sweep_*.csv")
SECTIONS = {
    "name", "version", "seeds", "rows", "tuning", "comparators", "comparators_std", "gate", "paired", "headroom_taken",
    "per_1000", "cost_curve",
}  # fmt: skip
POINTS = ("mel",)  # classes whose operating points are kept
SECTIONS_OF_A_SEED = {"comparators", "gate", "retrieval_worth"}


def compact(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Return the sections of an evaluation that are read; that of a single seed has ``by_seed`` too."""
    by_seed = evaluation.get("by_seed", {str(seed): evaluation for seed in evaluation["seeds"]})
    kept = {name: section for name, section in evaluation.items() if name in SECTIONS}
    if "operating_points" in evaluation:
        kept["operating_points"] = {
            who: {label: of_class for label, of_class in classes.items() if label in POINTS}
            for who, classes in evaluation["operating_points"].items()
        }
    return kept | {"by_seed": {seed: _of_a_seed(of_seed) for seed, of_seed in by_seed.items()}}


def _of_a_seed(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Return the sections of one seed that are read: of calibration the gate's, of the classes their recall."""
    kept = {name: section for name, section in evaluation.items() if name in SECTIONS_OF_A_SEED}
    kept["calibration"] = {"gate": evaluation["calibration"]["gate"]}
    kept["recall"] = {
        who: {label: of_class["recall"] for label, of_class in classes.items()}
        for who, classes in evaluation["per_class"].items()
    }
    return kept


def write_compact(whole: Path, target: Path) -> list[Path]:
    """Write the compact form of every evaluation and table below ``whole``, and return the paths written."""
    written = []
    for path in sorted(found for name in ("evaluation.json", *TABLES) for found in whole.rglob(name)):
        to = target / path.relative_to(whole)
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            to.write_text(_lines(compact(read_json(path, kind="evaluation", schema=1))), encoding="utf-8")
        else:
            shutil.copyfile(path, to)
        written.append(to)
    return written


def _lines(content: dict[str, Any]) -> str:
    """Return JSON with one section a line, so that a change shows where it is."""
    sections = (
        f"{json.dumps(name)}:{json.dumps(section, ensure_ascii=False, separators=(',', ':'))}"
        for name, section in content.items()
    )
    return "{\n" + ",\n".join(sections) + "\n}\n"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m sitegen.compact_results WHOLE COMPACT")
    write_compact(Path(sys.argv[1]), Path(sys.argv[2]))
