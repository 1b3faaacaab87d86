"""The command line: what each command is called and takes. It parses and calls; other modules do the work.

A user's mistake ends in one line on standard error and exit code 2, a stop by Ctrl-C in one line and 130.
``TDUMPRA_TRACEBACK=1`` shows where a mistake came from. Whatever takes time to import is imported when a command needs
it: ``tdumpra --help`` must not wait for torch.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from tdumpra import __version__, lanes
from tdumpra.cli import account, audit, bank, data, export, images, models, score, seals, search, serve
from tdumpra.cli.messages import NotesOnce, is_ours
from tdumpra.cli.options import (
    ConfigArgument,
    DataOption,
    JsonOption,
    OutOption,
    PlanOption,
    SeedsOption,
    SetOption,
    WeightsOption,
    add_stage,
    paper_settings,
    settings,
)
from tdumpra.errors import StopRequestedError, TdumpraError
from tdumpra.screen import complain

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A classifier, a bank of class prototypes, and a conservative gate between them.",
)

_START, _STAGES, _EXPERIMENTS, _MODELS, _SERVER, _DATA, _PROJECT = (
    "Start here", "Stages", "Experiments", "Models", "Server", "Data", "Project",
)  # fmt: skip
_INTERRUPTED = 130  # what shells report of a program that Ctrl-C ended: 128 + SIGINT


def program() -> None:
    """Entry point of ``tdumpra``: the command line in a process of its own, which Ctrl-C ends at once."""
    try:
        main()
    except SystemExit as end:
        if end.code == _INTERRUPTED and lanes.are_open():
            _leave(_INTERRUPTED)
        raise


def _leave(code: int) -> None:
    """End while threads compute. Python would tidy up under them, and crash; what they compute nobody wants."""
    for child in multiprocessing.active_children():
        child.kill()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a pipe whose reader is gone
            stream.flush()
    os._exit(code)


@cache
def _command() -> Callable[[], Any]:
    """Make a command of everything that is registered: once, for a process that runs several."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line."""
    warnings.showwarning = NotesOnce().print_warning
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for terminals that do not know every letter
    try:
        _command()()
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # typer's answer to Ctrl-C, which says nothing
            complain("stopped")
        raise
    except StopRequestedError as error:
        complain(str(error))
        sys.exit(_INTERRUPTED)
    except (TdumpraError, ValueError, TypeError, OSError) as error:
        if os.environ.get("TDUMPRA_TRACEBACK"):
            raise
        if isinstance(error, OSError):  # a disk that fails or is full, where nobody foresaw it
            complain(f"cannot use {error.filename or 'a file'}: {error.strerror or error}")
        else:
            unexpected = "" if is_ours(error) else " (unexpected; TDUMPRA_TRACEBACK=1 shows where it comes from)"
            complain(f"{error}{unexpected}")
        sys.exit(2)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"tdumpra {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


@app.command("demo", rich_help_panel=_START)
def _demo(
    out: OutOption = None,
    seed: Annotated[int, typer.Option(help="Of the images, the split and the training.")] = 0,
    images: Annotated[
        int | None, typer.Option(help="How many to make; fewer are quicker and show less.", show_default=False)
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Of training.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """Try the whole path on pictures made on the spot: train, embed, bank, tune, evaluate, report."""
    from tdumpra.cli.demo import demo_command

    folder = out if out is not None else Path("runs") / ("demo" if seed == 0 else f"demo-{seed}")
    demo_command(folder, seed=seed, images=images, epochs=epochs, as_json=as_json)


@app.command("attach", rich_help_panel=_START)
def _attach(
    outputs: Annotated[Path, typer.Argument(help="Saved outputs: .npz, .csv or .parquet.", show_default=False)],
    out: OutOption = None,
    preset: Annotated[str, typer.Option(help="default, free, paper, paper-swapped or rebalancing.")] = "default",
    objective: Annotated[str, typer.Option(help="balanced_accuracy, accuracy, macro_f1 or nll.")] = "balanced_accuracy",
    n_prototypes: Annotated[int, typer.Option(help="Prototypes per class.")] = 5,
    adjust_prior: Annotated[bool, typer.Option(help="Also divide by a fitted power of the class prior.")] = False,
    n_classes: Annotated[
        int | None, typer.Option(help="Say it where a class has no training row.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the clustering.")] = 0,
    certify: Annotated[bool, typer.Option("--certify", help="Open the gate only if its benefit is proven.")] = False,
    folds: Annotated[int, typer.Option(help="For little validation data: cross-fit in so many folds.")] = 0,
    max_asked: Annotated[float, typer.Option(help="Largest share of rows that θ may leave to retrieval.")] = 1.0,
    record: Annotated[
        bool, typer.Option(help="Keep names and outputs of all rows in the model, for validate, adapt and bank.")
    ] = True,
    force: Annotated[bool, typer.Option(help="Write over results of other settings.")] = False,
    report: Annotated[bool, typer.Option(help="Also write the HTML report.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Add the second path to your own saved probabilities and embeddings, and see what it is worth."""
    from tdumpra.cli.experiments import saved_run
    from tdumpra.runs.attach import attach_config, refuse_other_results

    folder = out if out is not None else Path("runs") / outputs.stem
    config = attach_config(
        outputs, folder, {"n_prototypes": n_prototypes, "n_classes": n_classes, "seed": seed, "record": record},
        {"preset": preset, "objective": objective, "adjust_prior": adjust_prior, "certify": certify, "folds": folds,
         "max_asked": max_asked},
    )  # fmt: skip
    if not force:
        refuse_other_results(config)
    saved_run(config, as_json=as_json, report=report, force=force)


@app.command("run", rich_help_panel=_START)
def _run(
    config: ConfigArgument,
    changes: SetOption = None,
    seeds: SeedsOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    plan: PlanOption = False,
) -> None:
    """Run every stage, skipping those whose inputs have not changed."""
    run = settings(config, changes, seeds, out)
    from tdumpra.cli.run import run_command

    run_command(run, as_json=as_json, plan=plan)


def _experiment(name: str, panel: str, about: str) -> None:
    """Register a command that computes something on the outputs of the runs that a configuration describes."""

    @app.command(name, rich_help_panel=panel, help=about)
    def command(
        config: ConfigArgument,
        changes: SetOption = None,
        seeds: SeedsOption = None,
        out: OutOption = None,
        as_json: JsonOption = False,
        plan: PlanOption = False,
    ) -> None:
        run = settings(config, changes, seeds)
        from tdumpra.cli.experiments import experiment_command

        experiment_command(name, run, out, as_json=as_json, plan=plan)


add_stage(
    app, "train", "train_command", panel=_STAGES,
    about="Train student and teacher; goes on where an earlier run stopped.",
)  # fmt: skip
add_stage(
    app, "embed", "embed_command", panel=_STAGES,
    about="Write logits and embeddings of every image: everything afterwards stands on these tables.",
)  # fmt: skip
app.add_typer(bank.app, name="bank", rich_help_panel=_STAGES)
_experiment("tune", _STAGES, "Choose temperatures, thresholds and weight on validation outputs; write gate.json.")
_experiment("evaluate", _STAGES, "Tune, then score every comparator on test outputs; write evaluation.json and tables.")


@app.command("report", rich_help_panel=_STAGES)
def _report(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run's folder or configuration, or the folder of a seed or of attach.", show_default=False
        ),
    ],
    out: OutOption = None,
    cases: Annotated[
        int | None, typer.Option(help="Pages of single cases, at most; 96 unless said.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the HTML report again: results, the gate's story, its cases with their evidence."""
    from tdumpra.cli.report import report_command

    report_command(run, out, cases=cases, as_json=as_json)


_experiment("ablate", _EXPERIMENTS, "Make the paper's Table 3: six variants over shared trainings.")
_experiment("sweep", _EXPERIMENTS, "Draw the paper's curves of θ and β, and those of K, κ, τ, α, D and λ.")


@app.command("reproduce", rich_help_panel=_EXPERIMENTS)
def _reproduce(
    what: Annotated[str, typer.Argument(help="ham10000, isic2019, or a run's TOML file whose source says which.")],
    config: Annotated[Path | None, typer.Argument(help="The run's TOML file.", show_default=False)] = None,
    data_folder: DataOption = None,
    weights: WeightsOption = None,
    changes: SetOption = None,
    seeds: SeedsOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    plan: PlanOption = False,
) -> None:
    """Make the paper's Tables 1 and 2: backbones with and without the method, its figures beside ours."""
    if config is None and what.endswith(".toml"):
        config, what = Path(what), ""
    run = paper_settings(what, config, data_folder, changes, seeds)
    from tdumpra.cli.experiments import reproduce_command

    reproduce_command(what, run, out, weights=weights or (), as_json=as_json, plan=plan)


images.register(app, _MODELS)
score.register(app, _MODELS)
export.register(app, _MODELS)
search.register(app, _EXPERIMENTS)
models.register(app, _MODELS)
seals.register(app, _MODELS)
serve.register(app, _SERVER)
app.add_typer(account.app, name="account", rich_help_panel=_SERVER)
app.add_typer(audit.app, name="audit", rich_help_panel=_SERVER)
app.add_typer(data.app, name="data", rich_help_panel=_DATA)


@app.command("bench", rich_help_panel=_PROJECT)
def _bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which benchmarks; all if left out.", show_default=False)
    ] = None,
    out: OutOption = None,
) -> None:
    """Run the benchmarks of a source checkout: ratios against named peers, measured in one run."""
    script = Path("benchmarks") / "run.py"
    if not script.is_file():
        raise TdumpraError("benchmarks are part of the source checkout: run this in its root folder")
    command = [sys.executable, str(script), *(names or []), *(["--out", str(out)] if out else [])]
    raise typer.Exit(subprocess.run(command, check=False).returncode)
