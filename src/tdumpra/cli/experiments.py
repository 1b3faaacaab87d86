"""The commands that tune, evaluate and run experiments on outputs. They parse, call, print.

What they call is imported when it is called: ``tdumpra --help`` must not wait for it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from tdumpra.screen import print_json, progress, say

if TYPE_CHECKING:
    from tdumpra.experiments.grid import Cell, Planned
    from tdumpra.experiments.results import ResultTable
    from tdumpra.report.outcome import Experiment, Found
    from tdumpra.runs.config import Config

_SHORT_NAME = 24


def experiment_command(
    name: str, config: Config, out: Path | None = None, *, as_json: bool = False, plan: bool = False
) -> None:
    """Run ``tune``, ``evaluate``, ``ablate`` or ``sweep``."""
    from tdumpra.report import outcome

    by_name = {each: getattr(outcome, each) for each in ("tune", "evaluate", "ablate", "sweep")}
    _run(by_name[name], config, out, as_json, plan)


def reproduce_command(
    table: str, config: Config | None, out: Path | None = None, *, as_json: bool = False, plan: bool = False
) -> None:
    """Reproduce the table of a data set; without a name, of the one that the configuration's source names."""
    from tdumpra.experiments.paper import DATASETS
    from tdumpra.report.outcome import reproduce
    from tdumpra.runs.config import Config

    if table and table not in DATASETS:
        raise ValueError(f"reproduce takes {' or '.join(DATASETS)}, or a run's TOML file, not {table!r}")
    if config is None:
        config = Config(name=table)
    if not table:
        table = config.data.source.split(":")[0]
        if table not in DATASETS:
            if not config.outputs:
                raise ValueError(
                    f"the paper has tables for {' and '.join(DATASETS)}, and the source of {config.name} is {table}: "
                    f"say which to compare with, as in  tdumpra reproduce {DATASETS[0]} CONFIG"
                )
            table = DATASETS[0]
    _run(reproduce(table), config, out, as_json, plan)


def write_evaluation(config: Config) -> None:
    """Write the evaluation over seeds, and print nothing."""
    from tdumpra.report.outcome import evaluate

    settings, folder = _placed(config, None)
    _found(evaluate, settings, folder, quiet=True)


def _placed(config: Config, out: Path | None) -> tuple[Config, Path]:
    """The configuration of the run that ``out`` is, if it is one, and the folder of the results."""
    from tdumpra.runs.folder import run_root

    if out is not None and not _elsewhere(config, out):
        config = replace(config, folder=str(out))
    return config, run_root(config) if out is None else out


def _found(experiment: Experiment, config: Config, folder: Path, *, quiet: bool) -> Found:
    from tdumpra.experiments import grid

    experiment.refuse(config, folder)
    cells = experiment.cells(config)
    with progress("starting", show=not quiet) as step:

        def watch(cell: Cell, done: int, total: int) -> None:
            step(done, total, cell.name)

        results = dict(zip((cell.name for cell in cells), grid.run(cells, folder, watch), strict=True))
    return experiment.write(config, results, folder)


def _run(experiment: Experiment, config: Config, out: Path | None, as_json: bool, plan: bool) -> None:
    from tdumpra.experiments import grid

    config, folder = _placed(config, out)
    if plan:
        _show_plan(grid.plan(experiment.cells(config), folder), as_json)
        return
    found = _found(experiment, config, folder, quiet=as_json)
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
    say(f"Written to {folder}: {', '.join(found.files)}", console)


def _elsewhere(config: Config, out: Path) -> bool:
    """Whether ``out`` is for results alone: the run's own folder holds tables, and ``out`` does not."""
    from tdumpra.runs.folder import run_folders, run_root

    def embedded(root: Path) -> bool:
        return all(folder.outputs("train").exists() for folder in run_folders(root, config.seeds).values())

    return not embedded(out) and embedded(run_root(config))


def _show_plan(planned: Sequence[Planned], as_json: bool) -> None:
    open_cells = [each for each in planned if not each.finished]
    known = [each.seconds for each in open_cells if each.seconds is not None]
    total = sum(known) if len(known) == len(open_cells) else None
    if as_json:
        document = {"cells": [each._asdict() for each in planned], "seconds": total}
        print_json(document)
        return
    table = Table("cell", "state", "estimate")
    for each in planned:
        estimate = "" if each.finished else "unknown" if each.seconds is None else f"{each.seconds:.0f} s"
        table.add_row(each.name, "finished" if each.finished else "to run", estimate)
    Console().print(table)
    length = "for how long is not known: something must be trained first" if total is None else f"about {total:.0f} s"
    finished = len(planned) - len(open_cells)
    Console().print(f"{finished} of {len(planned)} cells are finished; {len(open_cells)} would run, {length}.")


def _on_screen(table: ResultTable, width: int) -> tuple[Table, list[str]]:
    """A table for the screen, and what a reader must know of it; what does not fit stays in the files."""
    shown = table.screen or tuple(table.columns)
    whole, means = (
        {key: [_short(row.get(key), spread=spread) for row in table.rows] for key in shown} for spread in (True, False)
    )
    headings = {key: table.columns[key] for key in shown}
    fits = whole == means or sum(_width(headings[key], whole[key]) + 1 for key in shown) < width
    cells = whole if fits else means
    rich = Table(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for key in shown:
        is_text = any(isinstance(row.get(key), str) for row in table.rows)
        short = max(map(len, cells[key]), default=0) <= _SHORT_NAME  # must not be cut; what is longer may wrap
        heading = textwrap.fill(headings[key], _width(headings[key], cells[key]))
        rich.add_column(heading, justify="left" if is_text else "right", no_wrap=short)
    for row in zip(*cells.values(), strict=True):
        rich.add_row(*row)
    return rich, [] if fits else ["Standard deviations do not fit on this screen; the files have them."]


def _width(heading: str, cells: list[str]) -> int:
    """What a column takes if its heading wraps and its cells do not, unless they are long."""
    return max(max(map(len, heading.split())), min(_SHORT_NAME, max(map(len, cells), default=0)))


def _short(value: Any, *, spread: bool) -> str:
    if value is None:
        return ""
    if hasattr(value, "std") and not spread:
        value = value._replace(std=None)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
