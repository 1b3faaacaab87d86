"""The commands that tune, evaluate and run experiments on outputs. They parse, call, print.

What they call is imported when it is called: ``tdumpra --help`` must not wait for it.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tdumpra.screen import show_notes

if TYPE_CHECKING:
    from tdumpra.experiments.grid import Cell, Planned, Watch
    from tdumpra.experiments.results import ResultTable
    from tdumpra.report.outcome import Experiment, Found
    from tdumpra.runs.config import Config

ConfigArgument = Annotated[Path, typer.Argument(help="The run's TOML file.", show_default=False)]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder for the results.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")]
_SHORT_NAME = 24
PlanOption = Annotated[bool, typer.Option("--plan", help="Say what would run, and how long it may take, and stop.")]


def register(app: typer.Typer) -> None:
    """Put these commands on the command line."""
    app.command("tune")(tune_command)
    app.command("evaluate")(evaluate_command)
    app.command("ablate")(ablate_command)
    app.command("sweep")(sweep_command)
    app.command("reproduce")(reproduce_command)


def tune_command(
    config: ConfigArgument, out: OutOption = None, as_json: JsonOption = False, plan: PlanOption = False
) -> None:
    """Choose temperatures, thresholds and weight on validation outputs; write gate.json."""
    from tdumpra.report.outcome import tune

    _run(tune, _read(config), out, as_json, plan)


def evaluate_command(
    config: ConfigArgument, out: OutOption = None, as_json: JsonOption = False, plan: PlanOption = False
) -> None:
    """Tune, then score every comparator on test outputs; write evaluation.json, tables and figures."""
    from tdumpra.report.outcome import evaluate

    _run(evaluate, _read(config), out, as_json, plan)


def ablate_command(
    config: ConfigArgument, out: OutOption = None, as_json: JsonOption = False, plan: PlanOption = False
) -> None:
    """The paper's Table 3: six variants over shared trainings."""
    from tdumpra.report.outcome import ablate

    _run(ablate, _read(config), out, as_json, plan)


def sweep_command(
    config: ConfigArgument, out: OutOption = None, as_json: JsonOption = False, plan: PlanOption = False
) -> None:
    """The paper's curves of θ and β, and those of K, κ, τ, α, D and λ."""
    from tdumpra.report.outcome import sweep

    _run(sweep, _read(config), out, as_json, plan)


def reproduce_command(
    what: Annotated[str, typer.Argument(help="ham10000, isic2019, or a run's TOML file whose source says which.")],
    config: Annotated[Path | None, typer.Argument(help="The run's TOML file.", show_default=False)] = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    plan: PlanOption = False,
) -> None:
    """The paper's Tables 1 and 2: backbones with and without the method, its figures beside ours."""
    from tdumpra.experiments.paper import DATASETS
    from tdumpra.report.outcome import reproduce
    from tdumpra.runs.config import Config

    if what in DATASETS:
        settings = _read(config) if config is not None else Config(name=what)
        experiment = reproduce(what)
    elif config is None and what.endswith(".toml"):
        settings = _read(Path(what))
        kind = settings.data.source.split(":")[0]
        if kind not in DATASETS and not settings.outputs:
            raise ValueError(
                f"the paper has tables for {' and '.join(DATASETS)}, and the source of {what} is {kind}: say which to "
                f"compare with, as in  tdumpra reproduce {DATASETS[0]} {what}"
            )
        experiment = reproduce(kind if kind in DATASETS else DATASETS[0])
    else:
        raise ValueError(f"reproduce takes {' or '.join(DATASETS)}, or a run's TOML file, not {what!r}")
    _run(experiment, settings, out, as_json, plan)


def write_evaluation(config: Path, out: Path | None) -> None:
    """The evaluation over seeds, without a word."""
    from tdumpra.report.outcome import evaluate

    settings, folder = _placed(_read(config), out)
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
    with _progress(quiet=quiet) as watch:
        results = dict(zip((cell.name for cell in cells), grid.run(cells, folder, watch), strict=True))
    return experiment.write(config, results, folder)


def _run(experiment: Experiment, config: Config, out: Path | None, as_json: bool, plan: bool) -> None:
    from tdumpra.experiments import grid
    from tdumpra.runs.idle_settings import idle_settings

    config, folder = _placed(config, out)
    show_notes(idle_settings(config), Console(stderr=True))
    if plan:
        _show_plan(grid.plan(experiment.cells(config), folder), as_json)
        return
    found = _found(experiment, config, folder, quiet=as_json)
    if as_json:
        from tdumpra.artifacts import jsonable

        typer.echo(json.dumps(jsonable(found.document), indent=2, ensure_ascii=False))
        return
    console = Console()
    for table in found.tables:
        shown, notes = _on_screen(table, console.width)
        console.print(shown)
        for note in (*table.notes, *notes):
            _say(console, f"• {note}")
    for sentence in found.sentences:
        _say(console, sentence)
    _say(console, f"Written to {folder}: {', '.join(found.files)}")


def _elsewhere(config: Config, out: Path) -> bool:
    """Whether ``out`` is for results alone: the run's own folder holds tables, and ``out`` does not."""
    from tdumpra.runs.folder import run_folders, run_root

    def embedded(root: Path) -> bool:
        return all(folder.outputs("train").exists() for folder in run_folders(root, config.seeds).values())

    return not embedded(out) and embedded(run_root(config))


def _say(console: Console, text: str) -> None:
    """A line as it is: no colours for numbers, no markup in what a file or an error says."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _read(path: Path) -> Config:
    from tdumpra.runs.outputs import read_run

    return read_run(path)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Watch | None]:
    """A bar over the whole grid, with the time that is left."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left:"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("starting", total=None)

        def watch(cell: Cell, done: int, total: int) -> None:
            progress.update(bar, description=cell.name, completed=done, total=total)

        yield watch


def _show_plan(planned: Sequence[Planned], as_json: bool) -> None:
    open_cells = [each for each in planned if not each.finished]
    known = [each.seconds for each in open_cells if each.seconds is not None]
    total = sum(known) if len(known) == len(open_cells) else None
    if as_json:
        document = {"cells": [each._asdict() for each in planned], "seconds": total}
        typer.echo(json.dumps(document, indent=2))
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
