"""The metrics: what each is called, and which way it runs. Every screen, page and file takes them from here."""

from __future__ import annotations

from typing import NamedTuple

from tdumpra.core import metrics


class Metric(NamedTuple):
    """A metric for a reader."""

    word: str  # in a sentence and on a chart
    heading: str  # of a column
    lower_is_better: bool = False


METRICS = {
    "accuracy": Metric("accuracy", "accuracy"),
    "macro_f1": Metric("macro-F1", "macro-F1"),
    "balanced_accuracy": Metric("balanced accuracy", "bal. acc."),
    "macro_auroc": Metric("AUROC", "AUROC"),
    "ece": Metric("ECE", "ECE ↓", lower_is_better=True),
    "nll": Metric("NLL", "NLL ↓", lower_is_better=True),
    "brier": Metric("Brier score", "Brier ↓", lower_is_better=True),
    "cost": Metric("cost", "cost ↓", lower_is_better=True),
    "ambiguous_accuracy": Metric("accuracy where the classifier is unsure", "acc. unsure"),
    "aurc": Metric("AURC", "AURC ↓", lower_is_better=True),
}
HEADINGS = {key: METRICS[key].heading for key in metrics.METRICS}  # the columns of every results table, in order
