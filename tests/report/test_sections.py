from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tdumpra.report.sections import beside_paper, paired
from tdumpra.runs.config import Config, DataConfig, NetworkConfig, OutputFile

SCORES = {"accuracy": 0.81, "macro_f1": 0.6, "balanced_accuracy": 0.5, "ece": 0.07, "macro_auroc": None}
EVALUATION: dict[str, Any] = {"comparators": {"student": SCORES, "gate": {**SCORES, "accuracy": 0.82}}}
PAPERS = Config(data=DataConfig(source="ham10000:x"), network=NetworkConfig(backbone="convnext_tiny"))


def test_the_papers_figures_stand_beside_ours():
    found = beside_paper(PAPERS, EVALUATION)
    assert not isinstance(found, str)
    assert found["rows"][0] == ["accuracy", "0.8800 ± 0.0032", "0.8951 ± 0.0028", "0.8100", "0.8200"]
    assert found["rows"][-1][-1] == "undefined"
    assert "one seed, protocol “grouped”" in found["words"]


def test_over_seeds_with_deviations():
    std = {"student": {"accuracy": 0.01}, "gate": {"accuracy": 0.02}}
    found = beside_paper(PAPERS, {**EVALUATION, "comparators_std": std, "seeds": [0, 1, 2]})
    assert not isinstance(found, str)
    assert found["rows"][0][-2:] == ["0.8100 ± 0.0100", "0.8200 ± 0.0200"]
    assert "3 seeds" in found["words"]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "saved outputs"),
        (replace(PAPERS, outputs=(OutputFile(file="a.npz"),)), "saved outputs"),
        (replace(PAPERS, data=DataConfig(source="folder:x")), "no figures for folder with convnext_tiny"),
        (replace(PAPERS, network=NetworkConfig(backbone="resnet18")), "no figures for ham10000 with resnet18"),
    ],
)
def test_or_it_says_why_not(config, reason):
    assert reason in str(beside_paper(config, EVALUATION))


def test_a_lead_that_is_undefined_is_said_to_be():
    lead = {"difference": 0.01, "interval": [-0.01, 0.02]}
    found = dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1", "ece"), lead)
    nothing = {"difference": None, "interval": [None, None]}
    against = {**found, "nll": nothing, "fixed": 3, "broken": 1, "sign_flip_p": 0.5}
    shown = paired({"paired": {"student": against}})
    assert shown is not None
    cells = shown["rows"][0]["cells"]
    assert cells[-1] == {"value": "undefined", "interval": "", "with_choice": ""}
    assert cells[0] == {"value": "+0.0100", "interval": "−0.0100 to +0.0200", "with_choice": ""}


def test_an_interval_that_includes_the_choice_and_a_corrected_p_stand_beside_the_lead():
    lead = {"difference": 0.01, "interval": [-0.01, 0.02]}
    metrics = dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1", "ece", "nll"), lead)
    counts = {"fixed": 3, "broken": 1, "sign_flip_p": 0.02, "holm_p": 0.04}
    tuned = {"student": {name: {**lead, "interval": [-0.03, 0.04]} for name in metrics}}
    shown = paired({"paired": {"student": {**metrics, **counts}}, "paired_with_tuning": tuned})
    assert shown is not None
    assert shown["with_choice"]
    assert shown["rows"][0]["cells"][0]["with_choice"] == "−0.0300 to +0.0400"
    assert (shown["rows"][0]["p"], shown["rows"][0]["holm"]) == ("0.02", "0.04")
