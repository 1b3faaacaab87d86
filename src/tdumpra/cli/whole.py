"""``run``: every stage, the table over seeds, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console

from tdumpra.artifacts import jsonable
from tdumpra.cli import report as commands_report
from tdumpra.cli.evaluation_screen import show_evaluation
from tdumpra.cli.experiments import evaluate_command, write_evaluation
from tdumpra.cli.run import run_command
from tdumpra.runs.config import read_config
from tdumpra.runs.folder import run_root
from tdumpra.screen import show_notes


def whole_run(config: Path, out: Path | None, *, as_json: bool = False) -> None:
    """Every stage of a run, skipping those whose inputs have not changed."""
    settings = read_config(config)
    root = run_root(settings) if out is None else out
    if settings.outputs:  # nothing to train or to embed, and no model of images
        evaluate_command(config, out, as_json)
        commands_report.finish_with_report(root, quiet=as_json)
        return
    evaluated = run_command(config, out, quiet=as_json)
    if not evaluated:  # one process of several has them
        return
    if as_json:
        documents = {str(seed): jsonable(each.evaluation) for seed, each in evaluated.items()}
        typer.echo(json.dumps(documents, indent=2))
        if len(evaluated) > 1:
            write_evaluation(config, out)
    else:
        if len(evaluated) > 1:
            evaluate_command(config, out)  # with their notes
        else:
            (only,) = evaluated.values()
            show_notes(only.evaluation["notes"], Console())
            show_evaluation(only.evaluation, only.folder.root)
    commands_report.finish_with_report(root, quiet=as_json)
