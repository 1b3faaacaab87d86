from __future__ import annotations

from tdumpra.core import metrics
from tdumpra.evaluation.comparators import COMPARATORS, words_of
from tdumpra.evaluation.metrics_table import HEADINGS, METRICS
from tdumpra.tuning.goal import LOSSES, objective_name


def test_every_metric_of_a_results_table_has_a_heading_of_its_own():
    assert list(HEADINGS) == list(metrics.METRICS)
    assert len({metric.heading for metric in METRICS.values()}) == len(METRICS)
    assert all(metric.heading.endswith(" ↓") == metric.lower_is_better for metric in METRICS.values())


def test_tuning_turns_the_sign_of_the_same_metrics():
    objectives = [*metrics.OBJECTIVES, "cost"]
    assert {name for name in objectives if METRICS[name].lower_is_better} == LOSSES
    assert objective_name("balanced_accuracy") == METRICS["balanced_accuracy"].word


def test_every_comparator_has_words_of_its_own():
    assert len({words_of(name) for name in COMPARATORS}) == len(COMPARATORS)
    assert words_of("student") == "classifier alone"
    assert words_of("somebody's own") == ""
