from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support import THRESHOLDS

from tdumpra import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.method.evidence import Evidence, explain
from tdumpra.report.reading import hardly_apart, shares_out_of_order

NAMES = ("nevus", "melanoma", "keratosis")


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    """One prototype along each axis, and a case near the second."""
    bank = PrototypeBank.fit(torch.eye(3).numpy(), [0, 1, 2], 1)
    decision = Decision(bank=bank, thresholds=THRESHOLDS, kappa=4.0, prior=torch.ones(3) / 3)
    p, z = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.1, 1.0, 0.2]])
    return explain(decision, p, z, class_names=NAMES)


def with_matches(evidence: Evidence, *rows: tuple[int, float, float]) -> Evidence:
    """Prototypes of these labels, cosines and shares in place of the found ones, which are nearest first."""
    of_class = {match.label: match for match in evidence.matches}
    matches = tuple(
        replace(of_class[label], prototype=k, cosine=cosine, share=share)
        for k, (label, cosine, share) in enumerate(rows)
    )
    return replace(evidence, matches=matches, opposing=None)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (((1, 0.998, 0.5), (0, 0.9931, 0.3)), ["nevus", "melanoma"]),
        (((1, 0.998, 0.4), (0, 0.997, 0.3), (2, 0.996, 0.2)), list(NAMES)),
        (((1, 0.998, 0.5), (0, 0.9929, 0.3)), []),  # a little farther off
        (((1, 0.998, 0.5), (1, 0.997, 0.3), (0, 0.9, 0.2)), []),  # two of one class
    ],
)
def test_classes_that_the_bank_can_hardly_tell_apart(evidence, rows, named):
    said = hardly_apart(with_matches(evidence, *rows))
    assert (said is not None) == bool(named)
    assert [name for name in NAMES if said and name in said] == named


def test_a_nearer_prototype_that_counts_for_less_is_explained(evidence):
    found = with_matches(evidence, (1, 0.980, 0.09), (0, 0.979, 0.05), (2, 0.974, 0.16))
    found = replace(found, p_similarity=(0.2, 0.3, 0.5))
    said = shares_out_of_order(found)
    assert said is not None
    assert "melanoma (cosine 0.980, share 9 %)" in said
    assert "keratosis (cosine 0.974, share 16 %)" in said
    assert "melanoma 30 % and keratosis 50 %" in said


@pytest.mark.parametrize(
    "rows",
    [
        ((1, 0.98, 0.6), (0, 0.97, 0.3), (2, 0.96, 0.1)),
        ((1, 0.98, 0.301), (0, 0.97, 0.305)),  # the page shows both as 30 %
        ((1, 0.98, 1.0),),
    ],
)
def test_shares_in_the_order_of_closeness_need_no_words(evidence, rows):
    assert shares_out_of_order(with_matches(evidence, *rows)) is None
