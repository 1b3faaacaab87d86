"""The command ``serve``, and ``account``, which says who may use it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tdumpra.cli.options import DeviceOption, JsonOption, ModelArgument, TrustOption
from tdumpra.errors import InputFileError, MissingExtraError
from tdumpra.screen import print_json, say

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from tdumpra.server.database import Database
    from tdumpra.server.settings import OidcSettings

FOLDER = Path("serve")
FolderOption = Annotated[Path, typer.Option("--folder", help="Of images, models and the database.")]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database", metavar="URL", help="postgresql://…; by default a file in the folder.", show_default=False
    ),
]
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

accounts_app = typer.Typer(no_args_is_help=True, help="People and programs that may use a server.")


def register(app: typer.Typer, panel: str) -> None:
    """Add the commands to the command line."""
    app.command("serve", rich_help_panel=panel)(_serve)
    app.add_typer(accounts_app, name="account", rich_help_panel=panel)


def _serve(
    model: ModelArgument,
    shadow: Annotated[
        Path | None, typer.Option("--shadow", help="A second model that judges beside it.", show_default=False)
    ] = None,
    folder: FolderOption = FOLDER,
    database: DatabaseOption = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="For Prometheus; none if left out.", show_default=False)
    ] = None,
    origin: Annotated[
        str | None, typer.Option(metavar="URL", help="How people reach it, as behind a proxy.", show_default=False)
    ] = None,
    readers: Annotated[
        int | None, typer.Option(min=1, help="Readings of each case: 2, or 1 without accounts.", show_default=False)
    ] = None,
    blind: Annotated[
        bool | None,
        typer.Option(
            "--blind/--open", help="Readers answer before they see the model; usual with accounts.", show_default=False
        ),
    ] = None,
    queue: Annotated[str, typer.Option(help="Cases that readers are given: all, or flagged.")] = "all",
    threads: Annotated[
        int | None, typer.Option(min=1, help="That run networks; one a core if left out.", show_default=False)
    ] = None,
    oidc_issuer: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A provider at which people log in (OpenID Connect).", show_default=False),
    ] = None,
    oidc_client: Annotated[
        str | None, typer.Option(metavar="ID", help="The name by which it knows this server.", show_default=False)
    ] = None,
    oidc_secret_file: Annotated[
        Path | None,
        typer.Option(help="Holds the secret that goes with it; or TDUMPRA_OIDC_SECRET does.", show_default=False),
    ] = None,
    device: DeviceOption = None,
    trust: TrustOption = None,
) -> None:
    """Serve a model to people and programs: upload images, see the evidence, read, decide, export."""
    require()
    from tdumpra.cli.predict import model_file
    from tdumpra.data.images.workers import available_cores
    from tdumpra.server.accounts import needs_login
    from tdumpra.server.run import listen, run
    from tdumpra.server.service import open_service
    from tdumpra.server.settings import Queue, Settings

    oidc = _provider(oidc_issuer, oidc_client, oidc_secret_file)
    paths = [path for path in (model, shadow) if path is not None]
    files = [model_file(path) for path in paths]
    place = open_database(folder, database, new=True)
    with place.read() as session:
        login = oidc is not None or needs_login(session)
    place.close()
    on_gpu = _is_gpu(device)
    settings = Settings(
        folder=folder, database=database, host=host, port=port, metrics_port=metrics_port, origin=origin, login=login,
        oidc=oidc, blind=login if blind is None else blind, readers=readers or (2 if login else 1),
        queue=cast(Queue, queue), threads=threads or (1 if on_gpu else available_cores()), batch=16 if on_gpu else 1,
    )  # fmt: skip
    settings.refuse_open_door()
    listener = listen(settings)
    service = open_service(settings, files, names=[path.name for path in paths], trusted=trust or (), device=device)
    who = "log in with an account" if login else "no login: only this machine can reach it"
    say(f"Open {settings.address} ({who}; Ctrl-C stops it)")
    run(service, listener)


@accounts_app.command("add")
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
    from tdumpra.server.accounts import add_account, add_token

    secret = None if role == "service" or no_password else _password(password)
    with _writing(folder, database, new=True) as session:
        add_account(session, name, role, secret)
        token = add_token(session, name) if role == "service" else None
    say(f"Added {name} ({role}).")
    if token is not None:
        say(f"Token, shown this once: {token}")


@accounts_app.command("password")
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


@accounts_app.command("token")
def _token(name: NameArgument, folder: FolderOption = FOLDER, database: DatabaseOption = None) -> None:
    """Make a token with which a program acts for an account."""
    require()
    from tdumpra.server.accounts import add_token

    with _writing(folder, database) as session:
        token = add_token(session, name)
    say(f"Token, shown this once: {token}")


@accounts_app.command("link")
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


@accounts_app.command("unlink")
def _unlink(name: NameArgument, folder: FolderOption = FOLDER, database: DatabaseOption = None) -> None:
    """Let nobody in under an account any more whom a provider vouches for."""
    require()
    from tdumpra.server.accounts import unlink

    with _writing(folder, database) as session:
        unlink(session, name)
    say(f"No provider vouches for {name} any more; earlier logins have ended.")


@accounts_app.command("disable")
def _disable(name: NameArgument, folder: FolderOption = FOLDER, database: DatabaseOption = None) -> None:
    """Shut an account out, with its logins and tokens; what it did stays."""
    require()
    from tdumpra.server.accounts import disable

    with _writing(folder, database) as session:
        disable(session, name)
    say(f"{name} is shut out.")


@accounts_app.command("list")
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


def require() -> None:
    """Raise unless the extra is installed; called before any work."""
    try:
        import alembic
        import argon2
        import fastapi
        import prometheus_client
        import python_multipart
        import sqlalchemy
        import uvicorn
    except ImportError as error:
        raise MissingExtraError(error.name or "fastapi", "serve", "a server") from error
    del alembic, argon2, fastapi, prometheus_client, python_multipart, sqlalchemy, uvicorn


def open_database(folder: Path, url: str | None, *, new: bool = False) -> Database:
    """Open the database of a server; one that is not there is made only if it may be ``new``."""
    from tdumpra.server.database import Database
    from tdumpra.server.settings import Settings

    if not new and url is None and not (folder / "cases.sqlite").is_file():
        raise InputFileError(f"{folder} is no server's folder, as it holds no cases.sqlite: name it with --folder")
    return Database(Settings(folder=folder, database=url).url)


@contextmanager
def _writing(folder: Path, url: str | None, *, new: bool = False) -> Iterator[Session]:
    from tdumpra.server.database import in_sentences

    place = open_database(folder, url, new=new)
    try:
        with in_sentences(), place.write() as session:
            yield session
    finally:
        place.close()


def _provider(issuer: str | None, client: str | None, secret_file: Path | None) -> OidcSettings | None:
    if issuer is None and client is None and secret_file is None:
        return None
    try:
        import authlib
        import joserfc
    except ImportError as error:
        raise MissingExtraError(error.name or "authlib", "oidc", "logins at a provider") from error
    del authlib, joserfc
    from tdumpra.server.settings import OidcSettings

    secret = os.environ.get("TDUMPRA_OIDC_SECRET")
    if secret_file is not None:
        try:
            secret = secret_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputFileError(f"cannot read the secret in {secret_file}: {error}") from error
    if issuer is None or client is None or not secret:
        raise InputFileError(
            "a provider of logins needs --oidc-issuer, --oidc-client, and its secret: --oidc-secret-file FILE, or the "
            "environment variable TDUMPRA_OIDC_SECRET"
        )
    return OidcSettings(issuer=issuer, client_id=client, secret=secret)


def _password(given: str | None) -> str:
    if given is not None:
        return given
    asked: Any = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    return str(asked)


def _is_gpu(device: str | None) -> bool:
    import torch

    return device.startswith("cuda") if device is not None else torch.cuda.is_available()
