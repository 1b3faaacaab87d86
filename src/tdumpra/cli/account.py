"""The commands ``account``: who may use a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdumpra.cli.options import JsonOption
from tdumpra.cli.serve import FOLDER, DatabaseOption, FolderOption, open_database, require
from tdumpra.screen import print_json, say

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

NameArgument = Annotated[str, typer.Argument(help="The account's name.", show_default=False)]
PasswordOption = Annotated[
    str | None,
    typer.Option(
        "--password",
        envvar="TDUMPRA_PASSWORD",
        help="Asked for if left out; better not typed here.",
        show_default=False,
    ),
]

app = typer.Typer(no_args_is_help=True, help="People and programs that may use a server.")


@app.command("add")
def _add(
    name: NameArgument,
    role: Annotated[str, typer.Option(help="admin, reader, adjudicator or service.", show_default=False)],
    password: PasswordOption = None,
    no_password: Annotated[bool, typer.Option("--no-password", help="For who logs in at a provider.")] = False,
    folder: FolderOption = FOLDER,
    database: DatabaseOption = None,
) -> None:
    """Make an account. A service gets a token, everyone else a password."""
    require()
    from tdumpra.server.accounts import add_account, add_token, check_new

    check_new(name, role)  # before anybody types a password
    secret = None if role == "service" or no_password else _password(password)
    with _writing(folder, database, new=True) as session:
        add_account(session, name, role, secret)
        token = add_token(session, name) if role == "service" else None
    say(f"Added {name} ({role}).")
    if token is not None:
        say(f"Token, shown this once: {token}")


@app.command("password")
def _set_password(
    name: NameArgument, password: PasswordOption = None, folder: FolderOption = FOLDER, database: DatabaseOption = None
) -> None:
    """Give an account another password, and let it in again if it was disabled."""
    require()
    from tdumpra.server.accounts import set_password

    secret = _password(password)
    with _writing(folder, database) as session:
        set_password(session, name, secret)
    say(f"{name} has another password; earlier logins have ended.")


@app.command("token")
def _token(name: NameArgument, folder: FolderOption = FOLDER, database: DatabaseOption = None) -> None:
    """Make a token with which a program acts for an account."""
    require()
    from tdumpra.server.accounts import add_token

    with _writing(folder, database) as session:
        token = add_token(session, name)
    say(f"Token, shown this once: {token}")


@app.command("link")
def _link(
    name: NameArgument,
    subject: Annotated[str, typer.Argument(help="Whom the provider calls so (the claim sub).", show_default=False)],
    issuer: Annotated[str, typer.Option(metavar="URL", help="As serve's --oidc-issuer.", show_default=False)],
    folder: FolderOption = FOLDER,
    database: DatabaseOption = None,
) -> None:
    """Let a person in under an account whom a provider of logins vouches for."""
    require()
    from tdumpra.server.accounts import link

    with _writing(folder, database) as session:
        link(session, name, issuer, subject)
    say(f"{subject} of {issuer} logs in as {name}.")


@app.command("unlink")
def _unlink(name: NameArgument, folder: FolderOption = FOLDER, database: DatabaseOption = None) -> None:
    """Let nobody in under an account any more whom a provider vouches for."""
    require()
    from tdumpra.server.accounts import unlink

    with _writing(folder, database) as session:
        unlink(session, name)
    say(f"No provider vouches for {name} any more; earlier logins have ended.")


@app.command("disable")
def _disable(name: NameArgument, folder: FolderOption = FOLDER, database: DatabaseOption = None) -> None:
    """Shut an account out, with its logins and tokens; what it did stays."""
    require()
    from tdumpra.server.accounts import disable

    with _writing(folder, database) as session:
        disable(session, name)
    say(f"{name} is shut out.")


@app.command("list")
def _list(folder: FolderOption = FOLDER, database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """List the accounts."""
    require()
    from sqlalchemy import select

    from tdumpra.server.tables import Account

    place = open_database(folder, database)
    with place.read() as session:
        rows = session.scalars(select(Account).order_by(Account.name)).all()
    place.close()
    if as_json:
        print_json([{"name": row.name, "role": row.role, "active": row.active} for row in rows])
        return
    for row in rows:
        say(f"{row.name}: {row.role}{'' if row.active else ', shut out'}")


@contextmanager
def _writing(folder: Path, url: str | None, *, new: bool = False) -> Iterator[Session]:
    from tdumpra.server.database import in_sentences

    place = open_database(folder, url, new=new)
    try:
        with in_sentences(), place.write() as session:
            yield session
    finally:
        place.close()


def _password(given: str | None) -> str:
    if given is not None:
        return given
    asked: Any = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    return str(asked)
