"""An evaluation over the seeds of a model: means, deviations, and the test across seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tdumpra.evaluation.evaluate import Evaluated
from tdumpra.evaluation.metrics_table import HEADINGS
from tdumpra.evaluation.over_seeds import SeedResult, mean_and_deviation, over_seeds
from tdumpra.evaluation.undefined import in_words
from tdumpra.experiments.grid import Cell, keep
from tdumpra.experiments.results import ResultTable, Value
from tdumpra.experiments.together import refuse_strangers
from tdumpra.method.output_files import SplitOutputs
from tdumpra.runs import outputs as run_outputs
from tdumpra.runs.config import Config
from tdumpra.runs.fitting import (
    Fitted,
    evaluate_outputs,
    fit,
    gate_document,
    metadata_fingerprint,
)
from tdumpra.runs.folder import run_root
from tdumpra.runs.outputs import SavedRun


def cells(config: Config) -> list[Cell]:
    """One cell for each saved run: its gate and its evaluation. Seeds that do not belong together are refused."""
    runs = run_outputs.saved_runs(config)
    found = [_evaluation_cell(config, run) for run in runs]
    refuse_strangers(config, runs)
    return found


def gate_cells(config: Config) -> list[Cell]:
    """One cell for each saved run: its gate alone. Seeds that are tuned together must be of one kind."""
    runs = run_outputs.saved_runs(config)
    found = [_gate_cell(config, run) for run in runs]
    if config.tune.pool_seeds:
        refuse_strangers(config, runs, test_rows=False)
    return found


def _evaluation_cell(config: Config, run: SavedRun) -> Cell:
    asked = {
        "evaluate": asdict(config.evaluate),
        **run_outputs.baseline_identity(config, run.seed),
        **metadata_fingerprint(config),
    }
    return _cell(config, run, evaluate_run, asked, 6.0)


def _gate_cell(config: Config, run: SavedRun) -> Cell:
    return _cell(config, run, tune_run, {"evaluate": None}, 2.0)


def _cell(
    config: Config,
    run: SavedRun,
    compute: Callable[[Config, SavedRun], dict[str, Any]],
    more: dict[str, Any],
    seconds: float,
) -> Cell:
    return Cell(
        name=f"{run.model}, seed {run.seed}",
        settings={
            **run_outputs.outputs_identity(run, config), "bank": asdict(config.bank), "tune": asdict(config.tune),
            **more,
            **run_outputs.space_identity(config, run.seed),
            **run_outputs.pooled_runs_identity(config),
        },
        compute=lambda: compute(config, run),
        seconds=seconds,
    )  # fmt: skip


def tune_run(config: Config, run: SavedRun) -> dict[str, Any]:
    """Fit and tune one run's outputs."""
    splits = run_outputs.read_saved(run, config)
    fitted = fit(splits, config.bank, config.tune, others=run_outputs.other_seeds(config, run), judge=True)
    return {"gate": gate_document(splits, fitted, config)}


def evaluate_run(config: Config, run: SavedRun) -> dict[str, Any]:
    """Fit, tune and score one run's outputs."""
    splits = run_outputs.read_saved(run, config)
    fitted = fit(splits, config.bank, config.tune, others=run_outputs.other_seeds(config, run), judge=True)
    return _documents(config, splits, fitted, evaluate_outputs(splits, fitted, config, run.seed))


def _documents(config: Config, splits: SplitOutputs, fitted: Fitted, found: Evaluated) -> dict[str, Any]:
    return {
        "gate": gate_document(splits, fitted, config),
        "evaluation": {key: value for key, value in found.document.items() if key != "inputs"},
        "gained": found.gained,
        "compared": found.compared,
    }


def keep_finished(config: Config, seed: int, fitted: Fitted, evaluated: Evaluated) -> None:
    """Note what a run tuned and scored, so that ``tune`` and ``evaluate`` need not do it again."""
    (run,) = (each for each in run_outputs.saved_runs(config) if each.seed == seed)
    found = _documents(config, run_outputs.read_saved(run, config), fitted, evaluated)
    for cell in (_evaluation_cell(config, run), _gate_cell(config, run)):
        keep(cell, run_root(config), {**found, "seconds": 0.0})


def models(config: Config, results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The evaluation of each model, its seeds taken together."""
    runs = run_outputs.saved_runs(config)
    names = list(dict.fromkeys(run.model for run in runs))
    return {
        name: over_seeds(
            {
                run.seed: SeedResult(found["evaluation"], found["gained"], found["compared"])
                for run, found in ((run, results[f"{run.model}, seed {run.seed}"]) for run in runs if run.model == name)
            }
        )
        for name in names
    }


def comparator_table(name: str, evaluation: Mapping[str, Any]) -> ResultTable:
    """All comparators, with intervals (one seed) or deviations (several)."""
    std, intervals = evaluation.get("comparators_std", {}), evaluation.get("intervals", {})
    rows: list[dict[str, Value]] = []
    for comparator, scores in evaluation["comparators"].items():
        row: dict[str, Value] = {"comparator": comparator}
        for metric in HEADINGS:
            spread = None if comparator not in std else std[comparator][metric]
            row[metric] = mean_and_deviation([scores[metric]])._replace(std=spread)
            low, high = intervals.get(comparator, {}).get(metric, (None, None))
            row[f"{metric}_interval"] = None if low is None else f"{low:.4f} to {high:.4f}"
        rows.append(row)
    shown = {key: heading for metric, heading in HEADINGS.items() for key, heading in
             ((metric, heading), *([(f"{metric}_interval", "95 %")] if intervals else []))}  # fmt: skip
    rows_of = evaluation["rows"]
    title = f"{name}: {rows_of['test']:,} test rows, seeds {', '.join(map(str, evaluation['seeds']))}"
    notes = [evaluation["tuning"], *evaluation.get("notes", [])]
    if "retrieval_worth" in evaluation:
        notes.append(evaluation["retrieval_worth"]["sentence"])
    notes += undefined_notes(evaluation["undefined"])
    columns = {"comparator": "Comparator", **shown}
    return ResultTable(title=title, columns=columns, rows=rows, notes=notes, screen=("comparator", *HEADINGS))


def undefined_notes(undefined: Sequence[Mapping[str, str]]) -> list[str]:
    """A sentence for each reason why something is undefined, with an example."""
    reasons = dict.fromkeys(each["reason"] for each in undefined)
    places = {reason: [each["where"] for each in undefined if each["reason"] == reason] for reason in reasons}
    return [
        f"Undefined: {in_words(where[0])}{f', and {len(where) - 1} more' if len(where) > 1 else ''} ({reason})."
        for reason, where in places.items()
    ]
