"""What the demo says at its end follows from the figures, whichever way they fall."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tdumpra.cli.demo_story import FOR_BALANCE, SHOWN, demo_results, prior_for_balance, what_it_did, what_it_is_worth
from tdumpra.core.gate import GateThresholds
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import TestOutputs as ScoredRows  # pytest would take it for a test
from tdumpra.method.outputs import TrainOutputs, ValidationOutputs


def results(student: float, rival: float, gate: float, *, p: float = 0.5, opened: int = 9) -> dict[str, Any]:
    rows = {"student": student, "logit_adjusted": rival - 0.1, FOR_BALANCE: rival, "gate": gate, "best possible": 0.7}
    return {
        "table": {name: {"accuracy": 0.8, "ambiguous_accuracy": value} for name, value in rows.items()},
        "gate": {"n": 1000, "opened": opened, "flipped": 7, "fixed": 4, "broken": 2, "mcnemar_p": 0.7},
        "ambiguous": {"n": 200, "opened": 5, "fixed": 3, "broken": 1, "mcnemar_p": p},
    }


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        (results(0.4, 0.45, 0.5, p=0.01), "more than chance would explain, and over all"),
        (results(0.4, 0.45, 0.5, p=0.2), "a gain that may be chance, and over all"),
        (results(0.4, 0.5, 0.5, p=0.01), "more than chance would explain but no more than a changed prior brings"),
        (results(0.4, 0.5, 0.45, p=0.2), "a gain that may be chance but no more than a changed prior brings"),
        (results(0.4, 0.3, 0.4), "so retrieval changed nothing there"),
        (results(0.4, 0.3, 0.35, p=0.2), "a loss that may be chance"),
        (results(0.4, 0.3, 0.35, p=0.01), "so retrieval did harm there"),
    ],
)
def test_the_verdict_follows_the_figures(figures, verdict):
    assert verdict in what_it_is_worth(figures)


def test_the_sentences_name_their_figures():
    said = what_it_did(results(0.4, 0.45, 0.5, p=0.012))
    assert "opened on 9 of 1,000 test images and moved 7 labels: 4 fixed, 2 broken" in said
    assert "on the 200 truly ambiguous ones it fixed 3 and broke 1 (exact McNemar p = 0.012)" in said
    worth = what_it_is_worth(results(0.4, 0.45, 0.5))
    assert "from 40.0% to 50.0% (best possible: 70.0%)" in worth
    assert "reaches 35.0% on the ambiguous ones if tuned as the gate was, and 45.0% if tuned for balanced" in worth


def test_a_shut_gate_is_called_shut():
    assert "stayed shut on all 1,000 test images" in what_it_did(results(0.4, 0.4, 0.4, opened=0))


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
        "gate": {"n": 4, "opened": 4, "flipped": 3, "fixed": 2, "broken": 1, "mcnemar_p": 1.0},
        "subgroups": {"ambiguous": {"yes": {"n": 2, "comparators": scores}}},
    }
    found = demo_results(evaluation, test, decision.decide(test.p, test.z), test.p)
    assert found["ambiguous"] == {"n": 2, "opened": 2, "fixed": 1, "broken": 1, "mcnemar_p": 1.0}
    # the exact posterior is right on three rows of four, and on one of the two ambiguous ones
    assert found["table"]["best possible"] == {
        "accuracy": 0.75, "ambiguous_accuracy": 0.5, "balanced_accuracy": pytest.approx(0.75),
    }  # fmt: skip
    assert found["table"][FOR_BALANCE] == {
        "accuracy": 0.5, "ambiguous_accuracy": 0.5, "balanced_accuracy": pytest.approx(0.5),
    }  # fmt: skip
    assert list(found["table"])[-2:] == ["gate", "best possible"]
    assert len(found["story"]) == 2


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
