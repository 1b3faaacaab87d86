"""Cases to evaluate, from small problems."""

from __future__ import annotations

from typing import Any

from tests.support import Problem

from tdumpra import DualPathClassifier
from tdumpra.evaluation.comparators import Case
from tdumpra.method.outputs import TestOutputs, TrainOutputs, ValidationOutputs


def case_of(classifier: DualPathClassifier, problem: Problem, **changes: Any) -> Case:
    """Return a tuned classifier and the rows to score it on."""
    test = TestOutputs.check(*problem.test[:4], **changes)
    return Case(
        train=TrainOutputs.check(*problem.train[1:4]),
        validation=ValidationOutputs.check(*problem.val[:4]),
        test=test,
        decision=classifier.decision_,
        decided=classifier.decision_.decide(test.p, test.z),
    )
