from __future__ import annotations

from typing import Any

import pytest

from tdumpra.evaluation.undefined import in_words, undefined_figures


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("per_class.student.keratosis.precision", "precision of keratosis for student"),
        ("per_class.gate.n.o.s..auroc", "AUROC of n.o.s. for gate"),
        (
            "operating_points.gate.mel.0.95.sensitivity",
            "sensitivity at specificity 0.95 of mel for gate",
        ),
        ("intervals.logit_adjusted.macro_auroc", "the interval of AUROC for logit_adjusted"),
        ("ambiguous", "every figure of rows that the classifier is unsure of"),
        ("ambiguous.comparators.gate.macro_f1", "macro-F1 of rows that the classifier is unsure of for gate"),
        ("subgroups.sex.f", "every figure of rows with sex f"),
        ("subgroups.age.1.5 to 2.comparators.knn.ece", "ECE of rows with age 1.5 to 2 for knn"),
        ("retrieval_worth.interval", "interval of the worth of retrieval"),
        ("gate.mcnemar_p", "McNemar's p of the gate"),
        ("gate.risk_change_where_open", "risk change where open of the gate"),
        ("comparators.student.macro_auroc", "AUROC for student"),
        ("selective.gate.refer.risk_upper", "risk upper for gate"),
        ("something_new", "something new"),
    ],
)
def test_a_place_in_words(where, words):
    assert in_words(where) == words


def test_figures_and_reasons():
    nan = float("nan")
    figures = {"per_class": {"gate": {"mel": {"recall": nan, "f1": 0.5}}}, "ambiguous": {"n": 0, "comparators": {}}}
    assert undefined_figures(figures) == [("per_class.gate.mel.recall", "absent"), ("ambiguous", "no rows")]


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("intervals.gate.accuracy", "no interval"),
        ("retrieval_worth.interval", "no interval"),
        ("operating_points.gate.mel.0.95.sensitivity", "no rivals"),
        ("selective.gate.refer.threshold", "no threshold"),
        ("something_new", "other"),
    ],
)
def test_every_place_has_a_kind_of_reason(where, kind):
    figures: Any = float("inf")
    for name in reversed(where.split(".")):
        figures = {name: figures}
    (found,) = undefined_figures(figures)
    assert found.to_json()["reason"]
    assert found == (where, kind)


def test_empty_bins_and_defined_figures_are_no_news():
    assert undefined_figures({"bins": {"accuracy": [float("nan")]}, "interval": [0.1, 0.2], "gate": None}) == []
