"""The command ``adapt``: a model and labelled local cases in, a new model out, or the word that nothing wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tdumpra.artifacts import write_json
from tdumpra.cli.predict import model_file
from tdumpra.errors import ArtifactError
from tdumpra.evaluation.metrics_table import METRICS
from tdumpra.models.adapted import adapt_model, goal_of
from tdumpra.models.local_rows import read_rows
from tdumpra.models.opened import open_model, refuse_existing
from tdumpra.report import kit
from tdumpra.report.adaptation_page import adaptation_page
from tdumpra.screen import plain, print_json, progress, say, show_notes
from tdumpra.writing import make_folder, write_bytes

KIND, SCHEMA = "adaptation", 1


def adapt_command(
    model: Path, source: str, out: Path, *, objective: str | None, report: Path | None, as_json: bool, **options: Any
) -> None:
    """Try every way, and write the new model if one wins. That nothing wins is a result, not a failure."""
    refuse_existing(out)
    if report is not None:
        kit.require()
        if (report / "adaptation.json").exists():
            raise ArtifactError(f"{report} holds the report of another trial: name another folder with --report")
    opened = open_model(model_file(model))
    opened.record  # noqa: B018  # a model without one is told before its networks run
    goal_of(opened, objective)
    with progress("predicting", show=not as_json) as bar:
        local = read_rows(opened, source, on_rows=lambda done, total: bar(done, total), **options)
    with progress("trying the ways", show=not as_json):
        outcome = adapt_model(opened, local, source, objective=objective)
    document = {**outcome.document, "written": None if outcome.content is None else out.name}
    if outcome.content is not None:
        settings = {"source": source, "objective": document["objective"], **_chosen(document)}
        opened.write_child(out, outcome.content, command="adapt", settings=settings, inputs={"data": local.fingerprint})
    if report is not None:
        make_folder(report)
        write_json(report / "adaptation.json", kind=KIND, schema=SCHEMA, content=document)
        write_bytes(report / "index.html", adaptation_page(document).encode())
    if as_json:
        print_json(document)
        return
    _show(document)
    say(f"Written: {out}" if outcome.content is not None else "No model was written.")
    if report is not None:
        say(f"Report: {report / 'index.html'}")


def _chosen(document: dict[str, Any]) -> dict[str, Any]:
    """Return what the history of the new model tells of the choice."""
    return {"way": document["way"], "dials": document["ways"][document["way"]]["dials"]}


def _show(document: dict[str, Any]) -> None:
    console, objective = Console(), document["objective"]
    show_notes(document["notes"], Console(stderr=True))
    shown = list(dict.fromkeys([objective, "accuracy"]))
    headings = [f"{METRICS[metric].word}, 95 % interval" for metric in shown]
    table = Table("", *headings, f"estimate less this, {METRICS[objective].word}", box=box.SIMPLE_HEAD, pad_edge=False)
    rows = {each["name"]: each["figures"] for each in document["ways"].values()}
    leads = {each["name"]: each["chosen_minus_this"] for each in document["ways"].values()}
    for name, figures in {**rows, "estimate: chosen anew in each fold": document["estimate"]}.items():
        lead = _span(leads[name][objective], signed=True) if name in leads else ""
        table.add_row(plain(name), *(_span(figures[metric]) for metric in shown), lead)
    console.print(table)
    if (home := document["home"]) is not None:
        told = "; ".join(
            f"{METRICS[metric].word} {_span(home['before'][metric])} before and {_span(home['after'][metric])} after"
            for metric in dict.fromkeys([*shown, "balanced_accuracy"])
        )
        say(f"• At home ({home['rows']:,} validation rows{_had(document)}): {told}.", console)
    if document["dose"]:
        way = document["shown"]
        told = ", ".join(
            f"{dose['lesions']} lesions {kit.signed(dose['gains'][way][objective]['value'], 3)}"
            for dose in document["dose"]
        )
        words = f"{METRICS[objective].word} by dose ({document['ways'][way]['name']}): {told}"
        say(f"• {kit.sentence(words)}", console)
    say(f"• {kit.sentence(document['verdict'])}", console)


def _had(document: dict[str, Any]) -> str:
    """Return which way figures are of where no model was written."""
    return "" if document["wins"] else f", had {document['ways'][document['shown']]['name']} been kept"


def _span(interval: dict[str, float], *, signed: bool = False) -> str:
    value, low, high = ((kit.signed if signed else kit.number)(interval[key], 3) for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"
