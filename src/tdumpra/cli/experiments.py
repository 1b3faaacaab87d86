"""The commands that tune, evaluate and run experiments on outputs, and how their results are shown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tdumpra.cli.report import finish_with_report
from tdumpra.experiments import reproduce as reproduction
from tdumpra.experiments.pretraining import parse_weights
from tdumpra.experiments.results import ResultTable
from tdumpra.report import outcome
from tdumpra.report.outcome import Experiment, Found
from tdumpra.runs.attach import array_model_step
from tdumpra.runs.config import Config
from tdumpra.runs.folder import members, run_root
from tdumpra.runs.outputs import all_outputs
from tdumpra.runs.steps import Planned, run
from tdumpra.runs.steps import plan as steps_ahead
from tdumpra.screen import plain, print_json, progress, say, show_notes

_SHORT_NAME = 24


def experiment_command(
    name: str, config: Config, out: Path | None = None, *, as_json: bool = False, plan: bool = False
) -> None:
    """Run ``tune``, ``evaluate``, ``ablate`` or ``sweep``."""
    _run(getattr(outcome, name), config, out, as_json=as_json, only_plan=plan)


def reproduce_command(
    dataset: str,
    config: Config,
    out: Path | None = None,
    *,
    weights: Sequence[str] = (),
    as_json: bool = False,
    plan: bool = False,
) -> None:
    """Reproduce the table of a data set, which ``dataset`` or the configuration's source names."""
    dataset = reproduction.which_table(dataset, config)
    if config.outputs and weights:
        raise ValueError("outputs are saved ones: --weights is for backbones that are trained")
    chosen = parse_weights(weights)
    notes = () if config.outputs else reproduction.plan_notes(config)
    _run(outcome.reproduce(dataset, chosen), config, out, as_json=as_json, only_plan=plan, notes=notes)


def saved_run(config: Config, *, as_json: bool = False, report: bool = True, force: bool = False) -> None:
    """Run every stage on saved outputs: nothing to train or to embed, and a model without networks.

    ``force`` writes over the results of another configuration.
    """
    root = run_root(config)
    if not force:
        outcome.evaluate.refuse(config, root)
    outcome.evaluate.steps(config, root)  # refuses outputs that do not belong together, before anything is written
    for outputs in all_outputs(config):
        array_model_step(outputs).result()
    found = write(outcome.evaluate, config, root, quiet=as_json, force=True)
    show(found._replace(files=[*found.files, "model.safetensors"]), root, as_json=as_json)
    if report:
        finish_with_report(root, quiet=as_json)


def _run(
    experiment: Experiment,
    config: Config,
    out: Path | None,
    *,
    as_json: bool,
    only_plan: bool,
    notes: Sequence[str] = (),
) -> None:
    if out is not None and not _elsewhere(config, out):
        config = replace(config, folder=str(out))
    folder = run_root(config) if out is None else out
    if only_plan:
        show_plan(steps_ahead(experiment.steps(config, folder)), as_json, notes)
        return
    show(write(experiment, config, folder, quiet=as_json), folder, as_json=as_json)


def write(experiment: Experiment, config: Config, folder: Path, *, quiet: bool = False, force: bool = False) -> Found:
    """Run the steps of an experiment that are not finished, and write what comes of them."""
    if not force:
        experiment.refuse(config, folder)
    steps = experiment.steps(config, folder)
    with progress("starting", show=not quiet) as bar:
        results = run(steps, lambda step, done, total: bar(done, total, step.name))
    return experiment.write(config, results, folder)


def show(found: Found, folder: Path, *, as_json: bool = False) -> None:
    """Print what an experiment found: tables and sentences, or its document as JSON."""
    if as_json:
        print_json(found.document)
        return
    console = Console()
    for table in found.tables:
        shown, notes = _on_screen(table, console.width)
        console.print(shown)
        for note in (*table.notes, *notes):
            say(f"• {note}", console)
    for sentence in found.sentences:
        say(sentence, console)
    say(f"Results in {folder}: {', '.join(found.files)}", console)


def _elsewhere(config: Config, out: Path) -> bool:
    """Return whether ``out`` is for results alone: the run's own folder holds tables, and ``out`` does not."""

    def embedded(root: Path) -> bool:
        return all(member.folder.has_tables for member in members(config, root))

    return not embedded(out) and embedded(run_root(config))


def show_plan(planned: Sequence[Planned], as_json: bool, notes: Sequence[str] = ()) -> None:
    """Print what would run, and how long it may take, after ``notes`` on what it would run on."""
    open_cells = [each for each in planned if not each.finished]
    known = [each.seconds for each in open_cells if each.seconds is not None]
    total = sum(known) if len(known) == len(open_cells) else None
    if as_json:
        print_json({"cells": [each._asdict() for each in planned], "seconds": total, "notes": list(notes)})
        return
    show_notes(notes, Console())
    table = Table("cell", "state", "estimate")
    for each in planned:
        estimate = "" if each.finished else "unknown" if each.seconds is None else f"{each.seconds:.0f} s"
        table.add_row(plain(each.name), "finished" if each.finished else "to run", estimate)
    Console().print(table)
    length = "for how long is not known: something must be trained first" if total is None else f"about {total:.0f} s"
    finished = len(planned) - len(open_cells)
    say(f"{finished} of {len(planned)} cells are finished; {len(open_cells)} would run, {length}.")


def _on_screen(table: ResultTable, width: int) -> tuple[Table, list[str]]:
    """A table for the screen, and what a reader must know of it; what does not fit stays in the files."""
    shown = table.screen or tuple(table.columns)
    whole, means = (
        {key: [_short(row.get(key), spread=spread) for row in table.rows] for key in shown} for spread in (True, False)
    )
    headings = {key: table.columns[key] for key in shown}
    fits = whole == means or sum(_width(headings[key], whole[key]) + 1 for key in shown) < width
    cells = whole if fits else means
    rich = Table(title=plain(table.title), title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for key in shown:
        is_text = any(isinstance(row.get(key), str) for row in table.rows)
        short = max(map(len, cells[key]), default=0) <= _SHORT_NAME  # must not be cut; what is longer may wrap
        heading = textwrap.fill(headings[key], _width(headings[key], cells[key]))
        rich.add_column(plain(heading), justify="left" if is_text else "right", no_wrap=short)
    for row in zip(*cells.values(), strict=True):
        rich.add_row(*map(plain, row))
    return rich, [] if fits else ["Standard deviations do not fit on this screen; the files have them."]


def _width(heading: str, cells: list[str]) -> int:
    """Return the width of a column whose heading wraps and whose cells do not, unless they are long."""
    return max(max(map(len, heading.split())), min(_SHORT_NAME, max(map(len, cells), default=0)))


def _short(value: Any, *, spread: bool) -> str:
    if value is None:
        return ""
    if hasattr(value, "std") and not spread:
        value = value._replace(std=None)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
