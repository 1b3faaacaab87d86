"""The command ``validate``: a finished model on data from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tdumpra.artifacts import read_json, write_json
from tdumpra.cli.predict import model_file
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.evaluation.metrics_table import HEADINGS
from tdumpra.method.local_outputs import write_local_outputs
from tdumpra.models.local_rows import is_outputs_file, read_rows
from tdumpra.models.opened import open_model
from tdumpra.models.validate import KIND, SCHEMA, failures, parse_floors, validate
from tdumpra.networks.model_file import Model
from tdumpra.report.kit import number, sentence
from tdumpra.report.validation_page import write_validation_page
from tdumpra.screen import complain, print_json, progress, say, show_notes
from tdumpra.writing import make_folder

_COLUMNS = {"student": "classifier", "similarity": "retrieval", "gate": "gate"}


def validate_command(
    model: Path,
    source: str,
    out: Path | None,
    *,
    outputs: Path | None,
    fail_under: Sequence[str],
    as_json: bool,
    **options: Any,
) -> None:
    """Print figures and shift, and write them with a page where ``out`` is given; exit code 1 below a floor."""
    floors = parse_floors(fail_under)
    opened = open_model(model_file(model))
    if outputs is not None:
        _refuse_outputs(outputs, source)
    with progress("predicting", show=not as_json) as bar:
        local = read_rows(opened, source, on_rows=lambda done, total: bar(done, total), **options)
    if out is not None:
        _refuse_other_results(out, opened.digest, local.fingerprint)
    document = validate(opened, local, source, floors=floors)
    if outputs is not None and isinstance(opened.content, Model):  # else images were refused
        network = opened.content.networks_fingerprint
        write_local_outputs(outputs, local.rows, local.class_names, local.metadata, network)
    page = None
    if out is not None:
        make_folder(out)
        write_json(out / "validation.json", kind=KIND, schema=SCHEMA, content=document)
        page = _page(document, out, quiet=as_json)
    if as_json:
        print_json(document)
    else:
        _show(document)
        if out is not None:
            say(f"Results in {out}: validation.json{'' if page is None else f'; report: {page}'}")
        if outputs is not None:
            say(f"Outputs in {outputs}: adapt and bank add take them in place of the images")
    if missed := failures(document):
        complain("; ".join(missed))
        raise typer.Exit(1)


def _refuse_outputs(outputs: Path, source: str) -> None:
    """Refuse a file of another kind, one that is there, and rows that come from such a file."""
    if outputs.suffix.lower() != ".npz":
        raise ValueError(f"--outputs writes an archive of arrays: call it {outputs.with_suffix('.npz').name}")
    if is_outputs_file(source):
        raise ValueError(f"{source} is a file of outputs already: --outputs keeps those of images")
    if outputs.exists():
        raise ArtifactError(f"{outputs} exists: name another file with --outputs")
    if not outputs.parent.is_dir():
        raise ArtifactError(f"cannot write {outputs}: the folder {outputs.parent} does not exist")


def _refuse_other_results(out: Path, model: str, source: str) -> None:
    """Refuse a folder that holds what another model or other data gave; a damaged file is made again."""
    try:
        before = read_json(out / "validation.json", kind=KIND, schema=SCHEMA)
        same = before["model"]["sha256"] == model and before["source"]["fingerprint"] == source
    except (ArtifactError, KeyError, TypeError):
        return
    if not same:
        raise ArtifactError(f"{out} holds the validation of another model, or on other data: take another --out")


def _page(document: dict[str, Any], out: Path, *, quiet: bool) -> Path | None:
    """Write the page; what hinders it is said, and takes nothing from the figures."""
    try:
        return write_validation_page(document, out)
    except TdumpraError as error:
        show_notes([f"no report: {error}"], Console(stderr=True, quiet=quiet))
        return None


def _show(document: dict[str, Any]) -> None:
    console = Console()
    show_notes(document["notes"], Console(stderr=True))
    if (evaluation := document["evaluation"]) is not None:
        scores, intervals = evaluation["comparators"], evaluation["intervals"]["gate"]
        table = Table("", *_COLUMNS.values(), "95 % interval", "own validation", box=box.SIMPLE_HEAD, pad_edge=False)
        for metric, heading in HEADINGS.items():
            low, high = intervals[metric]
            spread = "undefined" if low != low else f"{low:.3f} to {high:.3f}"
            home = "" if document["at_home"] is None else number(document["at_home"][metric], 3)
            table.add_row(heading, *(number(scores[name][metric], 3) for name in _COLUMNS), spread, home)
        console.print(table)
    for each in document["sentences"]:
        say(f"• {sentence(each)}", console)
