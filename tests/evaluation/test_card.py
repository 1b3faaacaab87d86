"""The model card: figures as they were measured, and open where nobody has said anything."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from tdumpra.core.gate import GateThresholds
from tdumpra.evaluation.card import card
from tdumpra.evaluation.card_items import CLAIM, TRIPOD_AI
from tdumpra.evaluation.card_subject import Count, Subject, answers
from tdumpra.evaluation.in_brief import in_brief
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision

SCORES = {"accuracy": 0.8125, "balanced_accuracy": 0.7, "macro_auroc": None, "ece": 0.05}
DOCUMENT = {
    "made_from": "abc", "name": "study", "version": "0.1.0", "rows": {"train": 80, "val": 20, "test": 40},
    "grouped": True, "seeds": [3], "tuning": "a sentence", "certified": None, "notes": ["validation is small"],
    "bootstrap": {"replicates": 1000, "level": 0.95},
    "comparators": {"student": SCORES, "gate": SCORES, "knn": SCORES},
    "intervals": {"gate": {"accuracy": [0.75, 0.875]}},
    "per_class": {"gate": {"mel": {"support": 7, "recall": 0.5, "precision": None, "f1": 0.4, "auroc": 0.9}}},
    "operating_points": {"gate": {"mel": {"0.9": {"sensitivity": 0.625, "interval": [0.5, 0.75]}}}},
    "subgroups": {
        "site": {"here": {"n": 30, "comparators": {"gate": SCORES}}},
        "sex": {"female": {"n": 10, "comparators": {"gate": SCORES}}},
    },
    "gate": {"n": 40, "opened": 5, "flipped": 4, "fixed": 3, "broken": 1, "mcnemar_p": 0.6, "sign_flip_p": None,
             "harm_upper": 0.12, "more": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def subject() -> Subject:
    z = torch.nn.functional.normalize(torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    bank = PrototypeBank.fit(z, torch.arange(20) % 2, 2)
    thresholds = GateThresholds(theta=0.7, beta=0.5, margin=0.2, delta=0.05, alpha=0.3)
    decision = Decision(bank=bank, thresholds=thresholds, prior=torch.tensor([0.5, 0.5]))
    return Subject(
        name="study",
        class_names=("mel", "a|b <script>"),
        decision=decision,
        networks={"network": "a network"},
        preprocessing="framed",
        initial="Random weights",
        results=in_brief(DOCUMENT, {"source": "folder:images", "protocol": "grouped", "split_seed": 4}),
        parts={"train": Count(80, 50, {"mel": 30})},
        lineage=[{"command": "run", "time": "2026", "version": "0.1.0"}],
        thumbnails=2,
    )


def test_figures_stand_with_their_intervals(subject):
    text = card(subject)
    assert "| accuracy | 0.812 | 0.812 [0.750, 0.875] |" in text
    assert "| AUROC | undefined | undefined |" in text
    assert "0.625 [0.500, 0.750]" in text
    assert "| mel | 7 | 0.500 | undefined | 0.400 | 0.900 |" in text
    assert "3 fixed, 1 broken" in text


def test_sites_and_subgroups_have_tables_of_their_own(subject):
    text = card(subject)
    sites, subgroups = text[text.index("## Sites") : text.index("## Limits")], text[text.index("## Subgroups") :]
    assert "| here | 30 |" in sites
    assert "female" not in sites
    assert "| female | 10 |" in subgroups[: subgroups.index("## Sites")]


def test_what_a_brief_leaves_out(subject):
    assert "knn" not in subject.results["metrics"]
    assert "more" not in subject.results["gate"]


def test_names_cannot_break_the_page(subject):
    text = card(subject)
    assert "<script>" not in text
    rows = [line for line in text.splitlines() if "a\\|b" in line]
    assert rows
    assert all(re.sub(r"\\\|", "", line).startswith("|") for line in rows if line.startswith("|"))


def test_a_model_without_figures_says_so_and_guesses_nothing(subject):
    bare = replace(subject, results=None, parts={}, lineage=[], networks={}, preprocessing=None, initial=None)
    text = card(bare)
    for section in ("Results", "Operating points", "Subgroups", "Sites", "Data", "History"):
        body = text[text.index(f"## {section}") :].split("\n## ")[0]
        assert "**open**" in body, section
    assert "model-index" not in text
    assert "pipeline_tag" not in text


def test_figures_of_an_ancestor_are_told(subject):
    changed = replace(subject, lineage=[*subject.lineage, {"command": "bank remove", "time": "", "version": ""}])
    assert "before it was changed" in card(changed)
    assert "before it was changed" not in card(subject)
    # a hub would take the index for figures of this very model
    assert "model-index" not in card(changed)
    header = card(subject).split("---")[1]
    assert header.count("model-index:") == 1
    assert '- type: "accuracy"\n      value: 0.8125\n' in header
    assert "macro_auroc" not in header  # undefined


def test_each_guideline_has_all_its_items_once(subject):
    assert len(TRIPOD_AI) == 52
    assert [item.number for item in CLAIM] == [str(number) for number in range(1, 45)]
    assert len({item.number for item in TRIPOD_AI}) == 52
    assert {item.number.rstrip("abcdefg") for item in TRIPOD_AI} == {str(number) for number in range(1, 28)}
    asked = {item.answer for item in (*TRIPOD_AI, *CLAIM)} - {None}
    assert asked <= answers(subject).keys()
    for items in (TRIPOD_AI, CLAIM):
        filled = [item for item in items if item.answer and answers(subject)[item.answer]]
        title = "TRIPOD+AI" if items is TRIPOD_AI else "CLAIM"
        body = card(subject)[card(subject).index(f"## {title}") :].split("\n## ")[0]
        assert body.count("**open**") == len(items) - len(filled)
