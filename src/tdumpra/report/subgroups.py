"""What the gate did within parts of the test cases: those the classifier is unsure of, and subgroups of the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tdumpra.evaluation.breakdown import banded_column
from tdumpra.evaluation.comparators import words_of
from tdumpra.evaluation.gate_report import gate_report
from tdumpra.method.decision import Decided
from tdumpra.method.outputs import ScoredOutputs
from tdumpra.report.material import Material
from tdumpra.report.summary import VERDICTS, p_text, verdict

_SHOWN = ("student", "logit_adjusted", "similarity", "gate", "oracle")


def gate_within(decided: Decided, rows: ScoredOutputs, keep: np.ndarray) -> dict[str, Any]:
    """Count what the gate did on some rows; tested as it is on all, by :func:`~tdumpra.report.summary.verdict`."""
    kept = torch.from_numpy(np.asarray(keep, dtype=bool))
    cls, sim, final = (p[kept] for p in (decided.p_cls, decided.p_sim, decided.p))
    groups = None if rows.groups is None else rows.groups[kept.numpy()]
    report = gate_report(cls, sim, final, rows.y[kept], groups, opened=decided.opened[kept])
    return {"mcnemar_p": report.pop("p_value"), **report}


def subgroups(material: Material) -> dict[str, Any]:
    """Return the cases of which the classifier is unsure, and each subgroup that was asked for."""
    evaluation = material.evaluation
    unsure = evaluation["ambiguous"]
    tables = {
        f"Where the classifier is unsure (top probability below {unsure['below']:.2g})": [
            _row("unsure", unsure, _unsure(material, unsure["below"]), material)
        ]
    }
    for column, values in evaluation.get("subgroups", {}).items():
        banded = _column(material, column)
        tables[f"By {column}"] = [
            _row(value, found, None if banded is None else banded == value, material) for value, found in values.items()
        ]
    return {"comparators": {name: words_of(name) for name in _present(evaluation)}, "tables": tables}


def _present(evaluation: Any) -> list[str]:
    return [name for name in _SHOWN if name in evaluation["comparators"]]


def _unsure(material: Material, below: float) -> np.ndarray | None:
    return None if material.decided is None else (material.decided.signals.gamma_cls < below).cpu().numpy()


def _column(material: Material, name: str) -> np.ndarray | None:
    if material.splits is None or name not in material.splits.test.metadata:
        return None
    return banded_column(np.asarray(material.splits.test.metadata[name]))


def _row(name: str, found: Any, keep: np.ndarray | None, material: Material) -> dict[str, Any]:
    row = {
        "name": name,
        "n": found["n"],
        "scores": [found["comparators"][who] for who in _present(material.evaluation)],
        "gate": None,
    }
    if keep is not None and keep.any() and material.decided is not None and material.splits is not None:
        gate = gate_within(material.decided, material.splits.test, keep)
        p = gate["mcnemar_p"] if gate["sign_flip_p"] is None else gate["sign_flip_p"]
        tested = verdict(gate) in ("better", "worse", "chance")
        row["gate"] = {
            "opened": gate["opened"],
            "moved": f"{gate['fixed']:,} : {gate['broken']:,}",
            "unhelped": gate["flipped"] - gate["fixed"] - gate["broken"],
            "verdict": VERDICTS[verdict(gate)] + (f", {p_text(p)}" if tested else ""),
        }
    return row
