"""``run``: every stage, the table over seeds, and the report."""

from __future__ import annotations

from rich.console import Console

from tdumpra.cli import report as commands_report
from tdumpra.cli.evaluation_screen import show_evaluation
from tdumpra.cli.experiments import experiment_command, write_evaluation
from tdumpra.cli.run import run_command
from tdumpra.runs.config import Config
from tdumpra.runs.folder import run_root
from tdumpra.screen import print_json, show_notes


def whole_run(config: Config, *, as_json: bool = False) -> None:
    """Run every stage, skipping those whose inputs have not changed."""
    root = run_root(config)
    if config.outputs:  # nothing to train or to embed, and no model of images
        experiment_command("evaluate", config, as_json=as_json)
        commands_report.finish_with_report(root, quiet=as_json)
        return
    evaluated = run_command(config, quiet=as_json)
    if not evaluated:  # one process of several has them
        return
    if as_json:
        print_json({str(seed): each.evaluation for seed, each in evaluated.items()})
        if len(evaluated) > 1:
            write_evaluation(config)
    elif len(evaluated) > 1:
        experiment_command("evaluate", config)  # with their notes
    else:
        (only,) = evaluated.values()
        show_notes(only.evaluation["notes"], Console())
        show_evaluation(only.evaluation, only.folder.root)
    commands_report.finish_with_report(root, quiet=as_json)
