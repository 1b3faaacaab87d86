"""One evaluation on the screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tdumpra.artifacts import jsonable
from tdumpra.evaluation.metrics_table import HEADINGS
from tdumpra.evaluation.story import NO_GROUPS, gate_story


def show_evaluation(evaluation: dict[str, Any], folder: Path, *, as_json: bool = False) -> None:
    """The table of comparators, what tuning chose, and what the gate did; or the whole document."""
    if as_json:
        typer.echo(json.dumps(jsonable(evaluation), indent=2))
        return
    console = Console()
    console.print(_comparator_table(evaluation))
    console.print(_gate_story(evaluation), soft_wrap=True)
    console.print(f"Written to {folder}: evaluation.json, model.safetensors", soft_wrap=True)


def _comparator_table(evaluation: dict[str, Any]) -> Table:
    rows = evaluation["rows"]
    title = f"{rows['test']:,} test rows (bank: {rows['train']:,}, tuning: {rows['val']:,})"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("comparator", no_wrap=True)
    for heading in HEADINGS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for name, scores in evaluation["comparators"].items():
        cells = [_figure(scores[key]) for key in HEADINGS]
        style = {"gate": "bold", "oracle": "dim"}.get(name)
        table.add_row(name, *cells, style=style, end_section=name in {"average", "gate"})
    return table


def _figure(value: float | None) -> str:
    """What is undefined is NaN where it was computed, and ``None`` where it was read from a file."""
    return "undefined" if value is None or value != value else f"{value:.4f}"


def _gate_story(evaluation: dict[str, Any]) -> str:
    story = gate_story(evaluation)
    lines = [f"Tuning: {evaluation['tuning']}.", story[0].upper() + story[1:]]
    if not evaluation["grouped"]:
        lines.append(NO_GROUPS)
    return "\n".join(lines)
