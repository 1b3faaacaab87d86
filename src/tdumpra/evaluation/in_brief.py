"""An evaluation in brief: the figures that a model takes along when it leaves the folder of its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEPT = ("student", "logit_adjusted", "similarity", "gate")  # of the comparators: the two paths, a rival, the model
_TOLD = (
    "made_from",
    "name",
    "version",
    "seeds",
    "rows",
    "grouped",
    "refit",
    "tuning",
    "certified",
    "notes",
    "bootstrap",
    "test_set",
)
_GATE = ("n", "opened", "flipped", "fixed", "broken", "mcnemar_p", "sign_flip_p", "harm_upper")
_OF_PARTS = ("accuracy", "balanced_accuracy", "macro_auroc", "ece")


def in_brief(evaluation: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Shorten ``evaluation.json`` to some kilobytes; ``data`` says where the images came from and how they were split.

    Figures of classes, subgroups and operating points are those of the gate, which is what the model gives.
    """
    intervals = evaluation.get("intervals", {})
    return {
        **{key: evaluation[key] for key in _TOLD if key in evaluation},
        "data": dict(data),
        "metrics": {
            who: {
                metric: {"value": value, "interval": intervals.get(who, {}).get(metric)}
                for metric, value in evaluation["comparators"][who].items()
            }
            for who in KEPT
            if who in evaluation["comparators"]
        },
        "per_class": evaluation.get("per_class", {}).get("gate", {}),
        "operating_points": evaluation.get("operating_points", {}).get("gate", {}),
        "subgroups": {
            column: {
                value: {"n": part["n"], **{key: part["comparators"]["gate"].get(key) for key in _OF_PARTS}}
                for value, part in values.items()
            }
            for column, values in evaluation.get("subgroups", {}).items()
        },
        "refer": evaluation.get("selective", {}).get("gate", {}).get("refer"),
        "ece_if_calibrated": evaluation.get("calibration", {}).get("gate", {}).get("ece_if_calibrated"),
        "gate": {key: evaluation["gate"].get(key) for key in _GATE},
    }
