"""The commands ``audit verify``, ``audit head`` and ``audit replay``: whether what a server recorded is still so."""

from __future__ import annotations

from typing import Annotated

import typer

from tdumpra.cli.options import JsonOption, TrustOption
from tdumpra.cli.serve import FOLDER, DatabaseOption, FolderOption, open_database, require
from tdumpra.errors import ArtifactError
from tdumpra.screen import print_json, say

app = typer.Typer(no_args_is_help=True, help="The audit trail of a server.")


@app.command("head")
def _head(folder: FolderOption = FOLDER, database: DatabaseOption = None) -> None:
    """Print the head of the trail, a number and a hash: keep it where the server cannot write."""
    require()
    from tdumpra.server.audit import head

    place = open_database(folder, database)
    with place.read() as session:
        say(str(head(session)))
    place.close()


@app.command("verify")
def _verify(
    head: Annotated[
        str | None,
        typer.Option(
            "--head", metavar="NUMBER:HASH", help="A head that was kept: nothing before it is gone.", show_default=False
        ),
    ] = None,
    folder: FolderOption = FOLDER,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every entry, every row behind the trail and every image; fails if one was edited, removed or moved."""
    require()
    from tdumpra.server.audit import Head, changed_images, verify
    from tdumpra.server.store import Store

    expected, place = None if head is None else Head.parse(head), open_database(folder, database)
    with place.read() as session:
        checked = verify(session, expected)
        faults = [*checked.faults, *changed_images(session, Store(folder))]
    place.close()
    if as_json:
        print_json({"entries": checked.head.number, "head": str(checked.head), "faults": faults})
    else:
        for fault in faults:
            say(fault, style="red")
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults):,} faults"
        raise ArtifactError(f"the audit trail does not hold: {count} in {checked.head.number:,} entries")
    if not as_json:
        say(f"{checked.head.number:,} entries, all as they were written. Head: {checked.head}")


@app.command("replay")
def _replay(
    cases: Annotated[
        list[int] | None, typer.Argument(help="Numbers of cases; all if left out.", show_default=False)
    ] = None,
    folder: FolderOption = FOLDER,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
    trust: TrustOption = None,
) -> None:
    """Compute past predictions again from the stored images and models; fails if one comes out otherwise."""
    require()
    from tdumpra.server.replay import replay
    from tdumpra.server.store import Store

    place = open_database(folder, database)
    found = replay(place, Store(folder), numbers=cases or (), trusted=trust or ())
    place.close()
    bad = [each for each in found if each.fault is not None]
    if as_json:
        print_json([each._asdict() for each in found])
    else:
        for each in bad:
            say(f"case {each.case}, model {each.model}: {each.fault}", style="red")
    if missing := set(cases or ()) - {each.case for each in found}:
        raise ArtifactError(f"there is no case {min(missing)}, or it was withdrawn")
    if bad:
        raise ArtifactError(f"{len(bad)} of {len(found)} predictions come out otherwise, or cannot be computed")
    if not as_json:
        largest = max((each.difference or 0.0 for each in found), default=0.0)
        say(f"{len(found)} predictions come out as they were; the largest difference is {largest:.1e}")
