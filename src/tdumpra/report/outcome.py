"""The experiments: what each computes, and how its JSON, tables and figures are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tdumpra.errors import MissingExtraError
from tdumpra.evaluation.story import gate_story, without_groups
from tdumpra.experiments import ablate as ablation
from tdumpra.experiments import reproduce as reproduction
from tdumpra.experiments import sweep as sweeps
from tdumpra.experiments.pretraining import Weights
from tdumpra.experiments.results import ResultTable, comparator_table
from tdumpra.experiments.search import Study
from tdumpra.experiments.together import refuse_strangers
from tdumpra.report import charts
from tdumpra.report.drawing import Chart
from tdumpra.runs.attach import is_current as array_model_is_current
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder, refuse_results_of_another
from tdumpra.runs.outputs import Outputs, TrainedOutputs, all_outputs, folds_of_seeds, place_of
from tdumpra.runs.steps import Step
from tdumpra.runs.table_stages import evaluate_step, gate_of, over_models, refit_step, tune_step, write_overall
from tdumpra.tuning.goal import objective_name
from tdumpra.writing import make_folder

Results = Mapping[str, Any]


class Found(NamedTuple):
    """What a command shows: a document for machines, tables and sentences for people, and the names of the files."""

    document: Mapping[str, Any]
    tables: list[ResultTable]
    sentences: list[str]
    files: list[str]


class Experiment(NamedTuple):
    """Steps of work in a folder, and what is made of their results."""

    steps: Callable[[Config, Path], list[Step[Any]]]
    write: Callable[[Config, Results, Path], Found]
    refuse: Callable[[Config, Path], None] = lambda config, out: None  # what must not begin, or be lost


def _tune_steps(config: Config, out: Path) -> list[Step[Any]]:
    outputs = all_outputs(config, out)
    if config.tune.pool_seeds:
        refuse_strangers(outputs, test_rows=False)
    return [tune_step(each) for each in outputs]


def _write_tune(config: Config, results: Results, out: Path) -> Found:
    outputs = all_outputs(config, out)
    gates = {each.label: gate_of(each) for each in outputs}
    files = [str((each.place / "gate.json").relative_to(out)) for each in outputs]
    sentences = [f"{name}: {gate['sentence']}." for name, gate in gates.items()]
    sentences += [f"{name}: {note}." for name, gate in gates.items() for note in gate["notes"]]
    sentences += without_groups({name: gate["cases"]["groups"] is not None for name, gate in gates.items()})
    sentences += _stale_evaluations(outputs)
    _note_settings(config, out)
    return Found(gates if len(gates) > 1 else next(iter(gates.values())), [], sentences, files)


def _evaluate_steps(config: Config, out: Path) -> list[Step[Any]]:
    outputs = all_outputs(config, out)
    steps: list[Step[Any]] = [
        refit_step(each) for each in outputs if isinstance(each, TrainedOutputs) and each.config.train.refit
    ]
    for folds in folds_of_seeds(outputs):
        steps += [evaluate_step(each) for each in folds]
        steps += [evaluate_step(*folds)] if len(folds) > 1 else []
    refuse_strangers(outputs)
    return steps


def _write_evaluation(config: Config, results: Results, out: Path) -> Found:
    """Write the evaluation over seeds and models, and a table and figures of each model.

    Each seed's ``evaluation.json`` is there already. What was written for the same results is left alone.
    """
    outputs = all_outputs(config, out)
    models = over_models(outputs, results)
    document = write_overall(outputs, results, models, out)
    seeds = folds_of_seeds(outputs)
    where = place_of(seeds[0]) if len(seeds) == 1 else out
    tables, sentences, files = [], [], []
    for name, evaluation in models.items():
        folder = where if len(models) == 1 else out / name
        table = comparator_table(name, evaluation)
        written, complaints = _write_model(table, evaluation, folder)
        tables.append(table)
        files += [str((folder / file).relative_to(out)) for file in written]
        sentences += [*complaints, f"{name}: {gate_story(evaluation)}"]
    sentences += without_groups({name: evaluation["grouped"] for name, evaluation in models.items()})
    sentences += _stale_models(outputs)
    _note_settings(config, out)
    return Found(document, tables, sentences, [str((where / "evaluation.json").relative_to(out)), *files])


def _stale_models(outputs: Sequence[Outputs]) -> list[str]:
    """Name the models that decide by another gate than was scored."""
    stale = [each for each in outputs if RunFolder(each.place).model.exists() and not _is_current(each)]
    return [
        f"{RunFolder(each.place).model} decides by another gate than was scored here:  tdumpra run  makes it anew."
        for each in stale
    ]


def _is_current(outputs: Outputs) -> bool:
    if isinstance(outputs, TrainedOutputs):
        from tdumpra.runs.model import is_current  # networks are loaded only where there is a model

        return is_current(outputs)
    return array_model_is_current(outputs)


def _stale_evaluations(outputs: Sequence[Outputs]) -> list[str]:
    """Name the evaluations of another gate than was tuned."""
    there = [each for each in outputs if RunFolder(each.place).evaluation.exists()]
    return [
        f"{RunFolder(each.place).evaluation} is of another gate:  tdumpra evaluate  makes it anew."
        for each in there
        if evaluate_step(each).kept() is None
    ]


def _note_settings(config: Config, out: Path) -> None:
    """Say beside the results what they were made with; results apart from their run leave its folder alone."""
    if config.outputs:
        RunFolder(out).note_settings(config, 0)
    for each in all_outputs(config, out):
        if isinstance(each, TrainedOutputs) and each.place == each.folder.root:
            each.folder.note_settings(each.config, each.seed)


def _write_model(table: ResultTable, evaluation: Mapping[str, Any], folder: Path) -> tuple[list[str], list[str]]:
    """Write a model's table and figures, unless they are there for this very table; return files and sentences."""
    make_folder(folder)
    files = [f"comparators.{suffix}" for suffix in ("csv", "json", "md", "tex")]
    figures = {"reliability.png": charts.reliability, "risk_coverage.png": charts.risk_coverage,
               "comparators.png": charts.comparators}  # fmt: skip
    same = table.is_written(folder, "comparators")
    if same and all((folder / name).exists() for name in figures):
        return [*files, *figures], []
    of_one = next(iter(evaluation["by_seed"].values())) if "by_seed" in evaluation else evaluation
    drawn, sentences = _draw({name: partial(draw, of_one) for name, draw in figures.items()}, folder)
    if not same:
        table.write(folder, "comparators")  # last: it says what the figures were made from
    return [*files, *drawn], sentences


def _write_ablation(config: Config, results: Results, out: Path) -> Found:
    table = ablation.table(config, results)
    files = [path.name for path in table.write(out, "ablation")]
    return Found(table.to_json(), [table], [], files)


def _write_sweep(config: Config, results: Results, out: Path) -> Found:
    tables = sweeps.tables(config, results)
    out = out / "sweep"
    make_folder(out)
    files = [path.name for stem, table in tables.items() for path in table.write(out, stem)]
    drawings: dict[str, Callable[[], Chart]] = {}
    for run in sweeps.curve_outputs(config):
        of_run = {p: results[f"{run.name}: {p}"] for p in (*sweeps.PARAMETERS, "surface")}
        label = run.label
        surface = sweeps.surface_table(results, run)
        (out / f"surface_{label}.csv").write_text(surface.to_csv(), encoding="utf-8")
        files.append(f"surface_{label}.csv")
        for name in ("theta", "beta"):
            found = of_run[name]
            title = f"{label}: {found['gate']}"
            drawings[f"sweep_{name}_{label}.png"] = partial(
                charts.gating_curve, found["points"], sweeps.SYMBOLS[name], found["chosen"], title
            )
        others = {
            name: (sweeps.SYMBOLS[name], of_run[name]["points"], of_run[name]["chosen"])
            for name in ("alpha", "K", "kappa", "tau", "D")
        }
        drawings[f"sweep_others_{label}.png"] = partial(charts.small_multiples, others, label)
        points = of_run["surface"]["points"]
        base = min(points, key=lambda point: point["opened"])["accuracy"]
        drawings[f"surface_{label}.png"] = partial(charts.surface, points, base, label)
    for name in ("theta", "beta") if drawings else ():
        for model, points in sweeps.mean_points(tables[f"sweep_{name}"]).items():
            title = f"{model}: mean over seeds"
            drawings[f"sweep_{name}_{model}_mean.png"] = partial(
                charts.gating_curve, points, sweeps.SYMBOLS[name], None, title
            )
    drawn, sentences = _draw(drawings, out)
    document = {stem: table.to_json() for stem, table in tables.items()}
    shown = []
    if "sweep_summary" in tables:
        shown.append(tables["sweep_summary"])
    else:
        sentences.append("Of this run itself nothing was moved: it needs  tdumpra train  and  tdumpra embed  for that.")
    if config.sweep.contrastive_weights:
        shown.append(tables["sweep_lambda"])
    return Found(document, shown, sentences, [f"sweep/{name}" for name in (*files, *drawn)])


def _write_reproduction(dataset: str, weights: Weights, config: Config, results: Results, out: Path) -> Found:
    images = None if config.outputs else reproduction.open_images(config, metadata_only=True)
    table = reproduction.table(dataset, weights, config, results, images)
    files = [path.name for path in table.write(out, f"table_{dataset}")]
    return Found(table.to_json(), [table], [], files)


def search(study: Study, tried: Any) -> Found:
    """Write the history of a search, and the configuration that did best."""
    table = study.write(tried)
    files = [path.name for path in table.write(study.folder, "search")]
    draw = partial(charts.search_history, table.rows, objective_name(study.config.tune.objective))
    drawn, sentences = _draw({"search.png": draw}, study.folder)
    if study.best.exists():
        files.append(study.best.name)
        sentences.append(f"The best settings are in {study.best}:  tdumpra run {study.best}  trains them again.")
    else:
        sentences.append("No trial came to its end: there is no best configuration.")
    return Found(table.to_json(), [table], sentences, [*files, *drawn])


def _draw(drawings: Mapping[str, Callable[[], Chart]], folder: Path) -> tuple[list[str], list[str]]:
    """Draw, and return the names of the files; without matplotlib, a sentence that says so."""
    try:
        for name, draw in drawings.items():
            draw().write_png(folder / name)
    except MissingExtraError as error:
        return [], [f"No figures: {error}"]
    return list(drawings), []


tune = Experiment(_tune_steps, _write_tune, refuse_results_of_another)
evaluate = Experiment(_evaluate_steps, _write_evaluation, refuse_results_of_another)
ablate = Experiment(ablation.steps, _write_ablation)
sweep = Experiment(sweeps.steps, _write_sweep)


def reproduce(dataset: str, weights: Weights) -> Experiment:
    """Return the experiment behind Table 1 or 2; ``weights`` are what backbones start from, by the paper's names."""
    return Experiment(
        partial(reproduction.steps, dataset, weights),
        partial(_write_reproduction, dataset, weights),
        partial(reproduction.refuse, weights),
    )
