"""λ, the weight of the contrastive loss: each value needs a network of its own.

Networks come from trainings that share everything else, or from saved outputs that say how they were trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tdumpra.core import metrics
from tdumpra.evaluation.evaluate import gate_report
from tdumpra.evaluation.metrics_table import HEADINGS
from tdumpra.experiments.grid import variant_step
from tdumpra.experiments.results import ResultTable, Value, with_means
from tdumpra.method.arrays import widen
from tdumpra.method.decision import Decision
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import ScoredOutputs
from tdumpra.runs.config import Config
from tdumpra.runs.outputs import Outputs, all_outputs, variant_outputs
from tdumpra.runs.steps import Step
from tdumpra.tuning.fit import Fitted

COLUMNS = {
    **{
        f"{prefix}{metric}": f"{who} {HEADINGS[metric]}"
        for prefix, who in (("classifier_", "Classifier"), ("similarity_", "Retrieval"), ("", "Gate"))
        for metric in ("accuracy", "balanced_accuracy")
    },
    "opened": "Opened",
    "fixed": "Fixed",
    "broken": "Broken",
}
_ON_SCREEN = ("seed", "value", "split", "classifier_accuracy", "similarity_accuracy", "accuracy", "fixed", "broken")


class Trained(NamedTuple):
    """A network at one λ."""

    weight: float | None  # None where nobody said how a file was trained
    outputs: Outputs

    @property
    def name(self) -> str:
        """Return a name for a person, by which the result is found again."""
        return f"{self.outputs.name}: lambda {'?' if self.weight is None else self.weight}"


def steps(config: Config, out: Path) -> list[Step[dict[str, Any]]]:
    """Make a step for each λ and seed; what was not trained is trained by it."""
    return [
        variant_step(out, trained.name, {"sweep": "lambda", "weight": trained.weight}, trained.outputs, _points)
        for trained in trainings(config)
    ]


def trainings(config: Config) -> list[Trained]:
    """List the networks behind the table."""
    weights, own = config.sweep.contrastive_weights, config.train.contrastive_weight
    if not weights:
        known = {"ce": 0.0, "joint": own, None: None}
        return [Trained(known[outputs.training] if config.outputs else own, outputs) for outputs in all_outputs(config)]
    if config.outputs:
        raise ValueError("sweep.contrastive_weights trains networks, and outputs are saved ones: choose one")
    if config.network.as_it_is:
        raise ValueError("sweep.contrastive_weights trains networks, and this one is taken as it is: leave one out")
    return [
        Trained(weight, outputs)
        for weight in weights
        for outputs in variant_outputs(replace(config, train=replace(config.train, contrastive_weight=weight)))
    ]


def _points(splits: SplitOutputs, fitted: Fitted) -> dict[str, Any]:
    return {
        "points": [
            {"split": "validation", **figures(fitted.unseen, splits.validation)},
            {"split": "test", **figures(fitted.tuning.decision, splits.test)},
        ]
    }


def figures(decision: Decision, rows: ScoredOutputs) -> dict[str, Any]:
    """Both paths and the gate on some rows; the classifier is taken as it is, uncalibrated."""
    decided, y, raw = decision.decide(rows.p, rows.z), rows.y.numpy(), widen(rows.p)
    found: dict[str, Any] = {}
    for prefix, p in (("classifier_", raw), ("similarity_", decided.p_sim), ("", decided.p)):
        counts = metrics.class_counts(p.argmax(1).numpy(), y, p.shape[1])
        found[f"{prefix}accuracy"] = float(metrics.accuracy(counts))
        found[f"{prefix}balanced_accuracy"] = float(metrics.balanced_accuracy(counts))
    report = gate_report(raw, decided.p_sim, decided.p, rows.y, opened=decided.opened)
    return {"n": report["n"], **found, **{name: report[name] for name in ("opened", "fixed", "broken")}}


def table(config: Config, results: Mapping[str, Mapping[str, Any]]) -> ResultTable:
    """A row for each λ, seed and split."""
    rows: list[dict[str, Value]] = [
        {"run": trained.outputs.model, "seed": trained.outputs.seed, "value": trained.weight, **point}
        for trained in trainings(config)
        for point in results[trained.name]["points"]
    ]
    notes = [
        "Each λ is a network of its own, with a bank and a gate of its own; the test rows are for reading, not for "
        "choosing.",
        f"The loss is the {config.train.contrastive_reduction} over its anchors.",
    ]
    if not config.outputs and not config.sweep.contrastive_weights:
        notes.append("Only the run's own λ: name others in sweep.contrastive_weights, and they are trained.")
    screen = ("run", *_ON_SCREEN) if config.outputs else _ON_SCREEN
    columns = {"run": "Model", "seed": "Seed", "value": "λ", "split": "Split", **COLUMNS}
    means = with_means(rows, own=("value",))
    return ResultTable(title="Sweep of λ", columns=columns, rows=means, notes=notes, screen=screen)
