"""The command ``serve``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tdumpra.cli.options import DeviceOption, ModelArgument, TrustOption
from tdumpra.errors import InputFileError, MissingExtraError
from tdumpra.screen import say

if TYPE_CHECKING:
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


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to the command line."""
    app.command("serve", rich_help_panel=panel)(_serve)


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
    from tdumpra.server.database import in_sentences
    from tdumpra.server.run import listen, run
    from tdumpra.server.service import open_service
    from tdumpra.server.settings import Queue, Settings

    oidc = _provider(oidc_issuer, oidc_client, oidc_secret_file)
    paths = [path for path in (model, shadow) if path is not None]
    files = [model_file(path) for path in paths]
    place = open_database(folder, database, new=True)
    with in_sentences(), place.read() as session:
        login = oidc is not None or needs_login(session)
    place.close()
    on_gpu = _is_gpu(device)
    settings = Settings(
        folder=folder, database=database, host=host, port=port, metrics_port=metrics_port, origin=origin, login=login,
        oidc=oidc, blind=login if blind is None else blind, readers=readers or (2 if login else 1),
        queue=cast(Queue, queue), threads=threads or (1 if on_gpu else available_cores()), batch=16 if on_gpu else 4,
    )  # fmt: skip
    settings.refuse_open_door()
    with listen(settings) as listener:
        service = open_service(settings, files, names=[path.name for path in paths], trusted=trust or (), device=device)
        who = "log in with an account" if login else "no login: only this machine can reach it"
        say(f"Open {settings.address} ({who}; Ctrl-C stops it)")
        run(service, listener)


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
        needed = {
            "--oidc-issuer URL": issuer,
            "--oidc-client ID": client,
            "its secret (--oidc-secret-file FILE, or the environment variable TDUMPRA_OIDC_SECRET)": secret,
        }
        missing = " and ".join(words for words, given in needed.items() if not given)
        raise InputFileError(f"a provider of logins also needs {missing}")
    return OidcSettings(issuer=issuer, client_id=client, secret=secret)


def _is_gpu(device: str | None) -> bool:
    import torch

    return device.startswith("cuda") if device is not None else torch.cuda.is_available()
