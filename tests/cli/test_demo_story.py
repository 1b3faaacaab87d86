"""What the demo says at its end follows from the figures, whichever way they fall."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tdumpra.cli.demo_story import (
    FOR_BALANCE,
    SHOWN,
    against_a_changed_prior,
    demo_results,
    on_the_ambiguous,
    prior_for_balance,
)
from tdumpra.core.gate import GateThresholds
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import TestOutputs as ScoredRows  # pytest would take it for a test
from tdumpra.method.outputs import TrainOutputs, ValidationOutputs
from tdumpra.report.summary import VERDICTS, headline, verdict


def results(student: float, rival: float, gate: float, **part: Any) -> dict[str, Any]:
    rows = {"student": student, "logit_adjusted": rival - 0.1, FOR_BALANCE: rival, "gate": gate, "best possible": 0.7}
    counts = {"n": 200, "opened": 5, "flipped": 5, "fixed": 3, "broken": 1, "mcnemar_p": 0.5, "sign_flip_p": 0.5}
    return {
        "table": {name: {"accuracy": 0.8, "ambiguous_accuracy": value} for name, value in rows.items()},
        "ambiguous": {**counts, **part},
    }


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"sign_flip_p": 0.01, "mcnemar_p": 0.9}, "better"),  # lesions have the say
        ({"sign_flip_p": 0.9, "mcnemar_p": 0.01}, "chance"),
        ({"sign_flip_p": None, "mcnemar_p": 0.01}, "better"),
        ({"fixed": 1, "broken": 3, "sign_flip_p": 0.01}, "worse"),
    ],
)
def test_the_ambiguous_images_are_judged_as_the_report_judges(part, kind):
    figures = results(0.4, 0.45, 0.5, **part)
    assert verdict(figures["ambiguous"]) == kind
    assert VERDICTS[verdict(figures["ambiguous"])] in on_the_ambiguous(figures)


@pytest.mark.parametrize("part", [{"opened": 0, "flipped": 0, "fixed": 0, "broken": 0}, {"fixed": 0, "broken": 0}])
def test_nothing_fixed_and_nothing_broken_is_not_judged(part):
    assert "chance" not in on_the_ambiguous(results(0.4, 0.3, 0.4, **part))


def test_every_moved_label_is_counted():
    said = on_the_ambiguous(results(0.4, 0.45, 0.5))
    assert "200 ambiguous" in said
    assert "5 labels: 3 fixed, 1 broken, 1 wrong before and after" in said
    assert all(figure in said for figure in ("40.0%", "50.0%", "70.0%"))


@pytest.mark.parametrize(("gate", "beyond"), [(0.5, "is more than"), (0.45, "no more than"), (0.41, "no more than")])
def test_the_better_of_both_rivals_counts(gate, beyond):
    said = against_a_changed_prior(results(0.4, 0.45, gate))
    assert beyond in said
    assert all(figure in said for figure in ("35.0%", "45.0%"))


def test_results_count_the_ambiguous_rows_apart():
    # Two classes and four rows, of which the middle two are ambiguous. The classifier says 0 throughout, the bank sees
    # the embedding, and the gate always opens with all the weight on the bank.
    bank = PrototypeBank.fit(torch.eye(2), torch.tensor([0, 1]), 1)
    gate = GateThresholds(theta=1.0, beta=0.0, margin=0.0, delta=0.0, alpha=0.0)
    decision = Decision(bank=bank, thresholds=gate, prior=torch.tensor([0.5, 0.5]))
    test = ScoredRows(
        p=torch.tensor([[0.6, 0.4]]).repeat(4, 1).double(),
        z=torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]),
        y=torch.tensor([0, 1, 0, 1]),
        metadata={
            "ambiguous": np.array(["no", "yes", "yes", "no"]),
            "posterior": np.array(["1.0 0.0", "0.4 0.6", "0.4 0.6", "0.0 1.0"]),
        },
    )
    scores = {name: {"accuracy": 0.5, "balanced_accuracy": 0.5} for name in SHOWN}
    evaluation = {
        "rows": {"train": 2, "val": 2, "test": 4},
        "comparators": scores,
        "gate": {"n": 4, "opened": 4, "flipped": 3, "fixed": 2, "broken": 1, "mcnemar_p": 1.0, "sign_flip_p": None},
        "subgroups": {"ambiguous": {"yes": {"n": 2, "comparators": scores}}},
    }
    found = demo_results(evaluation, test, decision.decide(test.p, test.z), test.p)
    assert found["ambiguous"] == {
        "n": 2, "opened": 2, "flipped": 2, "fixed": 1, "broken": 1, "mcnemar_p": 1.0, "sign_flip_p": None,
    }  # fmt: skip
    # the exact posterior is right on three rows of four, and on one of the two ambiguous ones
    assert found["table"]["best possible"] == {
        "accuracy": 0.75, "ambiguous_accuracy": 0.5, "balanced_accuracy": pytest.approx(0.75),
    }  # fmt: skip
    assert found["table"][FOR_BALANCE] == {
        "accuracy": 0.5, "ambiguous_accuracy": 0.5, "balanced_accuracy": pytest.approx(0.5),
    }  # fmt: skip
    assert list(found["table"])[-2:] == ["gate", "best possible"]
    assert found["story"][0] == headline(evaluation)  # the report's own


def test_the_bolder_rival_takes_the_power_that_balances():
    # Three of four training rows are of class 0. The classifier has 0.55 for class 0 throughout; divided by the prior,
    # 0.75 and 0.25, class 1 wins wherever it is at all likely, which validation rewards and the constraint allows.
    y, p = torch.tensor([0, 1]), torch.tensor([[0.9, 0.1], [0.55, 0.45]]).double()
    splits = SplitOutputs(
        train=TrainOutputs(z=torch.eye(4), y=torch.tensor([0, 0, 0, 1])),
        validation=ValidationOutputs(p=p, z=torch.eye(2), y=y),
        test=ScoredRows(p=p, z=torch.eye(2), y=y),
        n_classes=2,
        fingerprint="",
    )
    assert prior_for_balance(splits).argmax(1).tolist() == [0, 1]
