from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tdumpra.cli.evaluation_screen import show_evaluation

from tdumpra.artifacts import jsonable
from tdumpra.evaluation.story import NO_GROUPS

METRICS = ("accuracy", "macro_f1", "balanced_accuracy", "macro_auroc", "ece", "nll", "brier")


def evaluation() -> dict[str, Any]:
    scores = dict.fromkeys(METRICS, 0.25)
    return {
        "rows": {"train": 30, "val": 20, "test": 10},
        "grouped": False,
        "tuning": "nothing was gained",
        "comparators": {"student": scores, "gate": {**scores, "macro_auroc": float("nan")}},
        "gate": {"opened": 0},
    }


@pytest.mark.parametrize("from_file", [False, True])
def test_what_is_undefined_is_shown_so_before_and_after_it_was_in_a_file(capsys, from_file):
    found = json.loads(json.dumps(jsonable(evaluation()))) if from_file else evaluation()
    show_evaluation(found, Path("there"))
    told = capsys.readouterr().out
    (row,) = (line for line in told.splitlines() if "gate" in line and "undefined" in line)
    assert row.split() == ["gate", "0.2500", "0.2500", "0.2500", "undefined", "0.2500", "0.2500", "0.2500"]
    assert "Tuning: nothing was gained.\nOn test the gate never opened.\n" + NO_GROUPS in told
