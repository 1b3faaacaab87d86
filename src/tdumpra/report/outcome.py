"""What each experiment computes and what it leaves behind: sealed JSON, tables in four forms, and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tdumpra.artifacts import jsonable, make_folder, write_json
from tdumpra.errors import ArtifactError, MissingExtraError
from tdumpra.evaluation.story import gate_story, without_groups
from tdumpra.experiments import ablate as ablation
from tdumpra.experiments import evaluation as evaluations
from tdumpra.experiments import reproduce as reproduction
from tdumpra.experiments import sweep as sweeps
from tdumpra.experiments.grid import Cell
from tdumpra.experiments.results import ResultTable
from tdumpra.report import charts
from tdumpra.report.drawing import Chart
from tdumpra.runs import outputs as run_outputs
from tdumpra.runs.config import Config, write_config
from tdumpra.runs.folder import refuse_results_of_another, run_folders, run_root

SCHEMA = 1
Results = Mapping[str, Mapping[str, Any]]


_OF_A_GATE = ("rule", "kappa", "tau", "temperature", "prior_exponent", "fused_exponent")


class Found(NamedTuple):
    """What is shown: a document for machines, tables and sentences for people, and the names of the files."""

    document: Mapping[str, Any]
    tables: list[ResultTable]
    sentences: list[str]
    files: list[str]


class Experiment(NamedTuple):
    """A grid of cells, and what is made of their results."""

    cells: Callable[[Config], list[Cell]]
    write: Callable[[Config, Results, Path], Found]
    refuse: Callable[[Config, Path], None] = lambda config, out: None  # a folder that holds what must not be lost


def _write_tune(config: Config, results: Results, out: Path) -> Found:
    runs = run_outputs.saved_runs(config)
    gates = {f"{run.model}_seed{run.seed}": results[f"{run.model}, seed {run.seed}"]["gate"] for run in runs}
    files = []
    for name, gate in gates.items():
        folder = out if len(gates) == 1 else out / name
        make_folder(folder)
        write_json(folder / "gate.json", kind="gate", schema=SCHEMA, content=gate)
        files.append(str((folder / "gate.json").relative_to(out)))
    sentences = [f"{name}: {gate['sentence']}." for name, gate in gates.items()]
    sentences += [f"{name}: {note}." for name, gate in gates.items() for note in gate["notes"]]
    sentences += without_groups({name: gate["cases"]["groups"] is not None for name, gate in gates.items()})
    return Found(gates if len(gates) > 1 else next(iter(gates.values())), [], sentences, files)


def _write_evaluation(config: Config, results: Results, out: Path) -> Found:
    """Each model in a folder of its own; ``evaluation.json`` itself is the first model's, with the others beside it."""
    models = evaluations.models(config, results)
    first = next(iter(models.values()))
    document = {**first, "name": config.name} | ({"models": models} if len(models) > 1 else {})
    tables, sentences, files = [], [], []
    for name, evaluation in models.items():
        folder = out if len(models) == 1 else out / name
        make_folder(folder)
        if len(models) > 1:
            write_json(folder / "evaluation.json", kind="evaluation", schema=SCHEMA, content=evaluation)
        table = evaluations.comparator_table(name, evaluation)
        table.write(folder, "comparators")
        tables.append(table)
        of_one = next(iter(evaluation["by_seed"].values())) if "by_seed" in evaluation else evaluation
        drawn = _draw(
            {
                "reliability.png": partial(charts.reliability, of_one),
                "risk_coverage.png": partial(charts.risk_coverage, of_one),
                "comparators.png": partial(charts.comparators, of_one),
            },
            folder,
        )
        files += [str((folder / f"comparators.{suffix}").relative_to(out)) for suffix in ("csv", "json", "md", "tex")]
        files += [str((folder / name).relative_to(out)) for name in drawn.files]
        sentences += drawn.sentences
        sentences.append(f"{name}: {gate_story(evaluation)}")
    sentences += without_groups({name: evaluation["grouped"] for name, evaluation in models.items()})
    sentences += _other_gates(config, first, out)
    if config.outputs:  # the folder of a training has its own
        write_config(config, out / "config.toml")
    write_json(out / "evaluation.json", kind="evaluation", schema=SCHEMA, content=document)
    return Found(document, tables, sentences, ["evaluation.json", *files])


def _other_gates(config: Config, evaluation: Mapping[str, Any], out: Path) -> list[str]:
    """A sentence for each model of this run that decides by another gate than the one that was scored."""
    root = run_root(config)
    if config.outputs or out.resolve() != root.resolve():
        return []
    from tdumpra.networks.model_file import Model  # networks are loaded only where there may be one

    by_seed = evaluation.get("by_seed", {str(seed): evaluation for seed in evaluation["seeds"]})
    sentences = []
    for seed, folder in run_folders(root, config.seeds).items():
        try:
            decision = Model.read(folder.model).decision
        except (ArtifactError, OSError):
            continue  # none, or a damaged one: nobody predicts with it
        scored = by_seed[str(seed)]["gate"]
        used = {"thresholds": asdict(decision.thresholds)} | {name: getattr(decision, name) for name in _OF_A_GATE}
        if any(jsonable(value) != scored[name] for name, value in used.items()):
            sentences.append(
                f"{folder.model} decides by another gate than was scored here:  tdumpra run  makes it anew"
            )
    return sentences


def _write_ablation(config: Config, results: Results, out: Path) -> Found:
    table = ablation.table(config, results)
    files = [path.name for path in table.write(out, "ablation")]
    return Found(table.to_json(), [table], [], files)


def _write_sweep(config: Config, results: Results, out: Path) -> Found:
    tables = sweeps.tables(config, results)
    files = [path.name for stem, table in tables.items() for path in table.write(out, stem)]
    drawings: dict[str, Callable[[], Chart]] = {}
    for run in sweeps.curve_runs(config):
        of_run = {p: results[f"{run.model}, seed {run.seed}: {p}"] for p in (*sweeps.PARAMETERS, "surface")}
        label = f"{run.model}_seed{run.seed}"
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
    drawn = _draw(drawings, out)
    document = {stem: table.to_json() for stem, table in tables.items()}
    shown, sentences = [], list(drawn.sentences)
    if "sweep_summary" in tables:
        shown.append(tables["sweep_summary"])
    else:
        sentences.append("Of this run itself nothing was moved: it needs  tdumpra train  and  tdumpra embed  for that.")
    if config.sweep.contrastive_weights:
        shown.append(tables["sweep_lambda"])
    return Found(document, shown, sentences, [*files, *drawn.files])


def _write_reproduction(dataset: str, config: Config, results: Results, out: Path) -> Found:
    table = reproduction.table(dataset, config, results)
    files = [path.name for path in table.write(out, f"table_{dataset}")]
    return Found(table.to_json(), [table], [], files)


class _Drawn(NamedTuple):
    files: list[str]
    sentences: list[str]


def _draw(drawings: Mapping[str, Callable[[], Chart]], folder: Path) -> _Drawn:
    """Draw what can be drawn; without matplotlib, say so once."""
    try:
        for name, draw in drawings.items():
            draw().write_png(folder / name)
    except MissingExtraError as error:
        return _Drawn([], [f"No figures: {error}"])
    return _Drawn(list(drawings), [])


tune = Experiment(evaluations.gate_cells, _write_tune, refuse_results_of_another)
evaluate = Experiment(evaluations.cells, _write_evaluation, refuse_results_of_another)
ablate = Experiment(ablation.cells, _write_ablation)
sweep = Experiment(sweeps.cells, _write_sweep)


def reproduce(dataset: str) -> Experiment:
    """Table 1 or 2."""
    return Experiment(
        lambda config: reproduction.cells(dataset, config),
        lambda config, results, out: _write_reproduction(dataset, config, results, out),
    )
