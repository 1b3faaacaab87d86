"""The demo's closing words: a short table and three sentences, the first of which is the report's headline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from tdumpra.core.calibration import adjust_prior, class_prior
from tdumpra.evaluation.story import moved
from tdumpra.method.arrays import classification_metrics, widen
from tdumpra.method.decision import Decided
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import ScoredOutputs
from tdumpra.report.subgroups import gate_within
from tdumpra.report.summary import VERDICTS, headline, p_text, verdict
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.tune import choose_prior_exponent

SHOWN = ("student", "temperature", "logit_adjusted", "similarity", "gate")
FOR_BALANCE, BEST_POSSIBLE = "… for balance", "best possible"
ORDER = ("student", "temperature", "logit_adjusted", FOR_BALANCE, "similarity", "gate", BEST_POSSIBLE)
_COUNTS = ("n", "opened", "flipped", "fixed", "broken", "mcnemar_p", "sign_flip_p")


def demo_results(
    evaluation: Mapping[str, Any], test: ScoredOutputs, decided: Decided, balanced: Tensor
) -> dict[str, Any]:
    """Figures for all test images and for the ambiguous ones, and what they say.

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
    within = gate_within(decided, test, ambiguous)
    results: dict[str, Any] = {
        "rows": dict(evaluation["rows"]),
        "table": table,
        "gate": {key: evaluation["gate"][key] for key in _COUNTS},
        "ambiguous": {key: within[key] for key in _COUNTS},
    }
    return {**results, "story": [headline(evaluation), on_the_ambiguous(results), against_a_changed_prior(results)]}


def prior_for_balance(splits: SplitOutputs) -> Tensor:
    """The classifier on test, divided by the power of the class prior that is best for balanced accuracy.

    ``logit_adjusted`` is tuned for what the gate is tuned for. Where that is likelihood it is timid, and ambiguous
    images are of rare classes more often than others: a fair demo shows the bolder rival too.
    """
    prior, validation = class_prior(splits.train.y, splits.n_classes), splits.validation
    exponent = choose_prior_exponent(widen(validation.p), validation.y, prior, Goal("balanced_accuracy"))
    return adjust_prior(widen(splits.test.p), prior, exponent)


def on_the_ambiguous(results: Mapping[str, Any]) -> str:
    """Tell what the gate did on the ambiguous images, judged by the test that judges it on all."""
    table, part = results["table"], results["ambiguous"]
    student, gate, best = (table[name]["ambiguous_accuracy"] for name in ("student", "gate", BEST_POSSIBLE))
    p = part["mcnemar_p"] if part["sign_flip_p"] is None else part["sign_flip_p"]
    found = verdict(part)
    judged = f"; that is {VERDICTS[found]} ({p_text(p)})" if found in ("better", "worse", "chance") else ""
    return (
        f"On the {part['n']} ambiguous images, which stand between two classes, it opened {part['opened']} times and "
        f"{moved(part)}{judged}. Accuracy there: {student:.1%} before, {gate:.1%} after, {best:.1%} at best."
    )


def against_a_changed_prior(results: Mapping[str, Any]) -> str:
    """Compare the gate on the ambiguous images with the rivals that need no bank."""
    table = results["table"]
    likely, bold, gate = (table[name]["ambiguous_accuracy"] for name in ("logit_adjusted", FOR_BALANCE, "gate"))
    beyond = "more than" if gate > max(likely, bold) else "no more than"
    return (
        f"That is {beyond} a changed class prior brings without a bank: {likely:.1%} there if tuned as the gate was, "
        f"{bold:.1%} if tuned for balanced accuracy."
    )
