"""λ, the weight of the contrastive loss: each value needs a network of its own.

Networks come from trainings that share everything else, or, where saved outputs are given, from what their names say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from tdumpra.core import metrics
from tdumpra.evaluation.evaluate import gate_report
from tdumpra.evaluation.metrics_table import HEADINGS
from tdumpra.experiments.grid import Cell
from tdumpra.experiments.results import ResultTable, Value
from tdumpra.method.decision import Decision
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import ScoredOutputs
from tdumpra.runs import outputs as run_outputs
from tdumpra.runs.config import Config
from tdumpra.runs.fitting import Fitted, fit

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

    model: str
    seed: int
    weight: float | None  # None where the name of a file does not say
    config: Config
    settings: Callable[[], Mapping[str, Any]]  # what its outputs depend on
    fit: Callable[[], tuple[SplitOutputs, Fitted]]
    seconds: float | None

    @property
    def name(self) -> str:
        """For a person, and to find the result again."""
        return f"{self.model}, seed {self.seed}: lambda {'?' if self.weight is None else self.weight}"


def cells(config: Config) -> list[Cell]:
    """One cell for each λ and seed; what was not trained is trained by it."""
    return [_cell(trained) for trained in trainings(config)]


def trainings(config: Config) -> list[Trained]:
    """The networks behind the table."""
    weights = config.sweep.contrastive_weights
    if not weights:
        return [_saved(config, run) for run in run_outputs.saved_runs(config)]
    if config.outputs:
        raise ValueError("sweep.contrastive_weights trains networks, and outputs are saved ones: choose one")
    if config.network.as_it_is:
        raise ValueError("sweep.contrastive_weights trains networks, and this one is taken as it is: leave one out")
    return [
        _to_train(replace(config, train=replace(config.train, contrastive_weight=weight)), seed)
        for weight in weights
        for seed in config.seeds
    ]


def _saved(config: Config, run: run_outputs.SavedRun) -> Trained:
    def fitted() -> tuple[SplitOutputs, Fitted]:
        splits = run_outputs.read_saved(run, config)
        return splits, fit(splits, config.bank, config.tune, others=run_outputs.other_seeds(config, run))

    weight = {"ce": 0.0, "joint": config.train.contrastive_weight, None: None}[run.training]

    def known() -> Mapping[str, Any]:
        return {
            **run_outputs.outputs_identity(run, config),
            **run_outputs.space_identity(config, run.seed),
            **run_outputs.pooled_runs_identity(config),
        }

    return Trained(run.model, run.seed, weight, config, known, fitted, 1.5)


def _to_train(config: Config, seed: int) -> Trained:
    def fitted() -> tuple[SplitOutputs, Fitted]:
        splits = run_outputs.outputs_for(config, seed)
        return splits, fit(splits, config.bank, config.tune, others=run_outputs.other_seeds_for(config, seed))

    def known() -> Mapping[str, Any]:
        return {
            "outputs": run_outputs.identity(config, seed),
            **run_outputs.space_identity(config, seed),
            **run_outputs.pool_identity(config),
        }

    training = run_outputs.training_seconds(config, seed)
    seconds = None if training is None else training + 1.5
    return Trained(config.name, seed, config.train.contrastive_weight, config, known, fitted, seconds)


def _cell(trained: Trained) -> Cell:
    def compute() -> Mapping[str, Any]:
        splits, fitted = trained.fit()
        return {
            "points": [
                {"split": "validation", **figures(fitted.unseen, splits.validation)},
                {"split": "test", **figures(fitted.tuning.decision, splits.test)},
            ]
        }

    return Cell(
        name=trained.name,
        settings=lambda: {
            "sweep": "lambda", "weight": trained.weight, "seed": trained.seed, **trained.settings(),
            "bank": asdict(trained.config.bank), "tune": asdict(trained.config.tune),
        },
        compute=compute,
        seconds=trained.seconds,
    )  # fmt: skip


def figures(decision: Decision, rows: ScoredOutputs) -> dict[str, Any]:
    """Both paths and the gate on some rows."""
    decided, y = decision.decide(rows.p, rows.z), rows.y.numpy()
    found: dict[str, Any] = {}
    for prefix, p in (("classifier_", decided.p_cls), ("similarity_", decided.p_sim), ("", decided.p)):
        counts = metrics.class_counts(p.argmax(1).numpy(), y, p.shape[1])
        found[f"{prefix}accuracy"] = float(metrics.accuracy(counts))
        found[f"{prefix}balanced_accuracy"] = float(metrics.balanced_accuracy(counts))
    report = gate_report(decided.p_cls, decided.p_sim, decided.p, rows.y, opened=decided.opened)
    return {"n": report["n"], **found, **{name: report[name] for name in ("opened", "fixed", "broken")}}


def table(config: Config, results: Mapping[str, Mapping[str, Any]]) -> ResultTable:
    """A row for each λ, seed and split."""
    rows: list[dict[str, Value]] = [
        {"run": trained.model, "seed": trained.seed, "value": trained.weight, **point}
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
    return ResultTable(title="Sweep of λ", columns=columns, rows=rows, notes=notes, screen=screen)
