"""The demo's closing words: a short table and two sentences, all computed from the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from tdumpra.core.calibration import adjust_prior, class_prior
from tdumpra.core.significance import mcnemar_exact
from tdumpra.method.arrays import classification_metrics, widen
from tdumpra.method.decision import Decided
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import ScoredOutputs
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.tune import choose_prior_exponent

SHOWN = ("student", "temperature", "logit_adjusted", "similarity", "gate")
FOR_BALANCE, BEST_POSSIBLE = "… for balance", "best possible"
ORDER = ("student", "temperature", "logit_adjusted", FOR_BALANCE, "similarity", "gate", BEST_POSSIBLE)
_LEVEL = 0.05


def demo_results(
    evaluation: Mapping[str, Any], test: ScoredOutputs, decided: Decided, balanced: Tensor
) -> dict[str, Any]:
    """Figures for all test images and for the truly ambiguous ones, and what they say.

    Args:
        evaluation: the run's ``evaluation.json``, with the subgroup ``ambiguous``.
        test: the test outputs, whose metadata say which images are ambiguous and what their exact posterior is.
        decided: what the run's gate made of them.
        balanced: the posterior of a second rival without a bank, :func:`prior_for_balance`.
    """
    y = test.y.numpy()
    ambiguous = np.array(test.metadata["ambiguous"]) == "yes"
    posterior = np.array([[float(p) for p in row.split()] for row in test.metadata["posterior"]])
    on_ambiguous = evaluation["subgroups"]["ambiguous"]["yes"]["comparators"]
    table = {
        name: {
            "accuracy": evaluation["comparators"][name]["accuracy"],
            "ambiguous_accuracy": on_ambiguous[name]["accuracy"],
            "balanced_accuracy": evaluation["comparators"][name]["balanced_accuracy"],
        }
        for name in SHOWN
    }
    for name, p in ((FOR_BALANCE, balanced.numpy()), (BEST_POSSIBLE, posterior)):
        scores = classification_metrics(p, y)
        table[name] = {
            "accuracy": scores["accuracy"],
            "ambiguous_accuracy": float((p.argmax(1) == y)[ambiguous].mean()),
            "balanced_accuracy": scores["balanced_accuracy"],
        }
    table = {name: table[name] for name in ORDER}
    before, after = (p.argmax(1).numpy() == y for p in (decided.p_cls, decided.p))
    fixed, broken = int((after & ~before & ambiguous).sum()), int((before & ~after & ambiguous).sum())
    results: dict[str, Any] = {
        "rows": dict(evaluation["rows"]),
        "table": table,
        "gate": {key: evaluation["gate"][key] for key in ("n", "opened", "flipped", "fixed", "broken", "mcnemar_p")},
        "ambiguous": {
            "n": int(ambiguous.sum()),
            "opened": int((decided.opened.numpy() & ambiguous).sum()),
            "fixed": fixed,
            "broken": broken,
            "mcnemar_p": mcnemar_exact(fixed, broken),
        },
    }
    return {**results, "story": [what_it_did(results), what_it_is_worth(results)]}


def prior_for_balance(splits: SplitOutputs) -> Tensor:
    """The classifier on test, divided by the power of the class prior that is best for balanced accuracy.

    ``logit_adjusted`` is tuned for what the gate is tuned for. Where that is likelihood it is timid, and ambiguous
    images are of rare classes more often than others: a fair demo shows the bolder rival too.
    """
    prior, validation = class_prior(splits.train.y, splits.n_classes), splits.validation
    exponent = choose_prior_exponent(widen(validation.p), validation.y, prior, Goal("balanced_accuracy"))
    return adjust_prior(widen(splits.test.p), prior, exponent)


def what_it_did(results: Mapping[str, Any]) -> str:
    """Say how often the gate opened, and how the labels that it moved came out."""
    gate, part = results["gate"], results["ambiguous"]
    if not gate["opened"]:
        return f"The gate stayed shut on all {gate['n']:,} test images: tuning found nothing that it could win."
    return (
        f"The gate opened on {gate['opened']:,} of {gate['n']:,} test images and moved {gate['flipped']:,} labels: "
        f"{gate['fixed']} fixed, {gate['broken']} broken; on the {part['n']} truly ambiguous ones it fixed "
        f"{part['fixed']} and broke {part['broken']} (exact McNemar p = {part['mcnemar_p']:.2g})."
    )


def what_it_is_worth(results: Mapping[str, Any]) -> str:
    """Say what the gate gained on ambiguous images, against the rival without a bank, and what that cost elsewhere."""
    table = results["table"]
    student, rival, gate = (table[name] for name in ("student", "logit_adjusted", "gate"))
    key = "ambiguous_accuracy"
    from_to = (
        f"{_percent(student[key])} to {_percent(gate[key])} (best possible: {_percent(table[BEST_POSSIBLE][key])})"
    )
    overall = f"over all images from {_percent(student['accuracy'])} to {_percent(gate['accuracy'])}"
    rivals = (
        f"without a bank, a changed class prior reaches {_percent(rival[key])} on the ambiguous ones if tuned as the "
        f"gate was, and {_percent(table[FOR_BALANCE][key])} if tuned for balanced accuracy"
    )
    return f"Accuracy on ambiguous images went from {from_to}, {_verdict(results)}, and {overall}; {rivals}."


def _verdict(results: Mapping[str, Any]) -> str:
    table, p = results["table"], results["ambiguous"]["mcnemar_p"]
    student, gate = (table[name]["ambiguous_accuracy"] for name in ("student", "gate"))
    rival = max(table[name]["ambiguous_accuracy"] for name in ("logit_adjusted", FOR_BALANCE))
    if gate == student:
        return "so retrieval changed nothing there"
    if gate < student:
        return "so retrieval did harm there" if p < _LEVEL else "a loss that may be chance"
    by_chance = "more than chance would explain" if p < _LEVEL else "a gain that may be chance"
    return by_chance if gate > rival else f"{by_chance} but no more than a changed prior brings"


def _percent(share: float) -> str:
    return f"{share:.1%}"
