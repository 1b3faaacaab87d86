"""The command ``search``: try settings, and write the best configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdumpra.cli.options import ConfigArgument, JsonOption, OutOption, SeedsOption, SetOption, settings

if TYPE_CHECKING:
    from tdumpra.runs.config import Config


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command("search", rich_help_panel=panel)(_search)


def _search(
    config: ConfigArgument,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A database that machines share, sqlite:///… or postgresql://…", show_default=False
        ),
    ] = None,
    changes: SetOption = None,
    seeds: SeedsOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search settings: draw, train, judge on validation rows; start it several times to share the work."""
    search_command(settings(config, changes, seeds, out), storage, as_json=as_json)


def search_command(config: Config, storage: str | None, *, as_json: bool) -> None:
    """Work on the search of a configuration until it is finished, then write its history and its best settings."""
    from tdumpra.cli.experiments import show
    from tdumpra.experiments.search import studies
    from tdumpra.report import outcome
    from tdumpra.screen import progress

    document: dict[str, Any] = {}
    for study in studies(config, storage):
        with progress(f"searching {study.name}", config.search.trials, show=not as_json) as step:
            tried = study.work(step)
        found = outcome.search(study, tried)
        document[study.name] = found.document
        if not as_json:
            show(found, study.folder)
    if as_json:
        from tdumpra.screen import print_json

        print_json(document)
