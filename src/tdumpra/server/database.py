"""The database: SQLite in a file, or PostgreSQL by its address. It brings its tables up to date when it is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic.util.exc import CommandError
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from tdumpra.errors import InputFileError

_WRITERS_TURN = 6_048_207_719  # the number of PostgreSQL's lock that writers take, one after the other
_PATIENCE = 30  # seconds that a writer waits for its turn
_FULL = ("disk is full", "no space left", "disk i/o error", "disk full", "quota exceeded")  # as systems say it
_KINDS = ("sqlite", "postgresql")


class Database:
    """Sessions that read, and sessions that write one after the other, as the audit trail needs it."""

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self._writing = self.engine.execution_options(writing=True)
        self._reading = self.engine
        if self.engine.dialect.name == "postgresql":  # one moment for all that a session reads, as SQLite has it
            self._reading = self.engine.execution_options(isolation_level="REPEATABLE READ")
        try:
            _bring_up_to_date(self._writing)
        except (SQLAlchemyError, CommandError) as error:  # the latter where a newer version wrote the tables
            self.engine.dispose()
            raise InputFileError(f"cannot open the database {shown(url)}: {_words(error)}") from error

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a session that changes nothing."""
        with Session(self._reading, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a session whose changes are kept together or not at all; one at a time, over all processes."""
        with Session(self._writing, expire_on_commit=False) as session, session.begin():
            if self.engine.dialect.name == "postgresql":
                session.execute(text("SELECT pg_advisory_xact_lock(:turn)"), {"turn": _WRITERS_TURN})
            yield session

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()


@contextmanager
def in_sentences() -> Iterator[None]:
    """Turn a failure of the database into one sentence, for commands."""
    try:
        yield
    except DBAPIError as error:
        raise InputFileError(f"the database failed: {_words(error)}") from error


def is_full(error: BaseException) -> bool:
    """Return whether a write failed because there is no room on the disk."""
    said = str(error).lower()
    return any(words in said for words in _FULL)


def shown(url: str) -> str:
    """Return an address without its password."""
    return make_url(url).render_as_string(hide_password=True)


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InputFileError(f"{url!r} is no address of a database, such as postgresql://user@host/name") from error
    if parsed.get_backend_name() not in _KINDS:
        raise InputFileError(f"the database must be {' or '.join(_KINDS)}, not {parsed.get_backend_name()}")
    if parsed.get_backend_name() == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
        return create_engine(
            parsed, pool_pre_ping=True, pool_size=10, max_overflow=20, connect_args={"connect_timeout": 5}
        )
    if parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed, connect_args={"timeout": _PATIENCE, "check_same_thread": False})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves: the driver's own comes too late for a reader
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get("writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _bring_up_to_date(engine: Engine) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":  # two servers may start at once
            connection.execute(text("SELECT pg_advisory_xact_lock(:turn)"), {"turn": _WRITERS_TURN})
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _words(error: Exception) -> str:
    reason = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(reason).split())[:300]
