"""The command ``report``, and the report that other commands write at their end."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tdumpra.errors import TdumpraError
from tdumpra.report.cases import SHOWN
from tdumpra.report.runs import write_report
from tdumpra.runs.config import read_config
from tdumpra.runs.folder import run_root
from tdumpra.screen import print_json, say, show_notes


def report_command(run: Path, out: Path | None, *, cases: int | None, as_json: bool) -> None:
    """Write a run's report, and say where it lies."""
    if cases is not None and cases < 0:
        raise ValueError(f"--cases must be 0 or more, not {cases}")
    if run.suffix == ".toml" and run.is_file():
        run = run_root(read_config(run))
    page = write_report(run, out, limit=SHOWN if cases is None else cases)
    if as_json:
        print_json({"report": str(page)})
        return
    say(f"Report: {page}")


def finish_with_report(run: Path, *, quiet: bool = False) -> None:
    """The report of results that have just been written. What hinders it is said, and takes nothing from them."""
    console = Console(quiet=quiet)
    try:
        page = write_report(run)
    except TdumpraError as error:
        show_notes([f"no report: {error}"], console)
        return
    say(f"Report: {page}", console)
