"""Who may do what: accounts with roles, passwords, tokens and logins. Secrets are kept as hashes."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Select, delete, or_, select
from sqlalchemy.orm import Session

from tdumpra.errors import InputFileError, nearest
from tdumpra.server import audit
from tdumpra.server.database import Database
from tdumpra.server.refusals import RefusedError
from tdumpra.server.settings import is_guarded
from tdumpra.server.tables import Account, Identity, Login, Token, now

if TYPE_CHECKING:
    from argon2 import PasswordHasher

LOCAL = "local"  # the name and the role of whoever uses a server that only this machine can reach
ROLES = {
    "admin": frozenset({"predict", "upload", "see", "decide", "study", "export", "manage"}),
    "reader": frozenset({"read"}),  # who adds a copy of a case sees what the model says of it
    "adjudicator": frozenset({"predict", "upload", "see", "decide", "study", "export"}),
    "service": frozenset({"predict", "upload"}),
    LOCAL: frozenset({"predict", "upload", "read", "see", "decide", "study", "export", "manage"}),
}
LEAST_PASSWORD = 10
LONGEST_SUBJECT = 255  # OpenID Connect Core, section 2
_LONGEST_PASSWORD = 1000  # argon2 takes the time for all of it
_AT_ONCE = 2  # passwords that are looked at: argon2 takes 64 MiB for each
_NAME = re.compile(r"[\w][\w .@+-]{0,79}")


class Person(NamedTuple):
    """Whoever makes a request."""

    id: str
    name: str
    role: str
    by_cookie: bool  # then a page of another site could have made the browser send it

    def may(self, what: str) -> bool:
        """Return whether the role allows it."""
        return what in ROLES[self.role]

    def require(self, what: str) -> None:
        """Raise ``RefusedError`` unless the role allows it."""
        if not self.may(what):
            raise RefusedError(403, f"the role {self.role} does not allow this ({what})")


def add_account(session: Session, name: str, role: str, password: str | None) -> Account:
    """Make an account."""
    check_new(name, role)
    if session.scalars(select(Account).where(Account.name == name)).first() is not None:
        raise InputFileError(f"there is an account {name!r} already: give it another password with  account password")
    row = Account(name=name, role=role, password=None if password is None else _hashed(password))
    audit.record(session, _SHELL, "add account", row)
    return row


def check_new(name: str, role: str) -> None:
    """Raise unless an account could have this name and role."""
    if role not in ROLES or role == LOCAL:
        raise InputFileError(f"{role!r} is no role: choose admin, reader, adjudicator or service{nearest(role, ROLES)}")
    if not _NAME.fullmatch(name) or name == LOCAL:
        raise InputFileError(f"{name!r} cannot be a name: letters, digits, spaces and . @ + - _ make one, at most 80")


def local_account(session: Session) -> Account:
    """Return the account of a server without logins."""
    found = session.scalars(select(Account).where(Account.name == LOCAL)).first()
    if found is None:
        found = Account(name=LOCAL, role=LOCAL)
        audit.record(session, _SHELL, "add account", found)
    return found


def set_password(session: Session, name: str, password: str) -> None:
    """Give an account another password, let it in again if it was shut out, and end its logins."""
    row = _named(session, name)
    row.password, row.active = _hashed(password), True
    session.execute(delete(Login).where(Login.account_id == row.id))
    audit.record(session, _SHELL, "set password", row)


def disable(session: Session, name: str) -> None:
    """Shut an account out: its password, its logins, its tokens and whom a provider knows."""
    row = _named(session, name)
    row.active = False
    audit.record(session, _SHELL, "disable account", row)
    unlink(session, name)
    for token in session.scalars(select(Token).where(Token.account_id == row.id, Token.revoked_at.is_(None))):
        token.revoked_at = now()
        audit.record(session, _SHELL, "revoke token", token)


def add_token(session: Session, name: str) -> str:
    """Make a token for an account; it is shown this once."""
    row = _named(session, name)
    secret = f"tdumpra_{secrets.token_urlsafe(32)}"
    audit.record(session, _SHELL, "add token", Token(account_id=row.id, digest=_digest(secret)))
    return secret


def link(session: Session, name: str, issuer: str, subject: str) -> None:
    """Let the person in under an account whom a provider of logins calls ``subject``."""
    row = _named(session, name)
    if row.role == "service":
        raise InputFileError(f"{name} is a service, which has a token: only people log in at a provider")
    if not (1 <= len(subject) <= LONGEST_SUBJECT and len(issuer) <= LONGEST_SUBJECT):
        raise InputFileError(f"a subject and its issuer have 1 to {LONGEST_SUBJECT} characters")
    if not is_guarded(issuer):
        raise InputFileError(f"the issuer must be an address that begins with https://, not {issuer!r}")
    found = session.scalars(select(Identity).where(Identity.issuer == issuer, Identity.subject == subject)).first()
    if found is None:
        found = Identity(account_id=row.id, issuer=issuer, subject=subject)
    elif found.revoked_at is None and found.account_id != row.id:
        raise InputFileError(f"{subject!r} is the person of another account: end that first with  account unlink")
    found.account_id, found.revoked_at = row.id, None
    audit.record(session, _SHELL, "link identity", found)


def unlink(session: Session, name: str) -> None:
    """Let nobody in under an account any more whom a provider knows, and end its logins."""
    row = _named(session, name)
    session.execute(delete(Login).where(Login.account_id == row.id))
    for each in session.scalars(select(Identity).where(Identity.account_id == row.id, Identity.revoked_at.is_(None))):
        each.revoked_at = now()
        audit.record(session, _SHELL, "unlink identity", each)


def needs_login(session: Session) -> bool:
    """Return whether anybody has a password, a token or a provider's word, so that nobody gets in without."""
    linked = select(Identity.account_id).where(Identity.revoked_at.is_(None))
    ways = or_(Account.password.is_not(None), Account.id.in_(_live_tokens()), Account.id.in_(linked))
    found = select(Account.id).where(Account.active, ways)
    return session.scalars(found.limit(1)).first() is not None


def by_token(session: Session, secret: str) -> Person | None:
    """Return whose token this is."""
    digest = _digest(secret)
    found = select(Account).join(Token).where(Token.digest == digest, Token.revoked_at.is_(None), Account.active)
    row = session.scalars(found).first()
    return None if row is None else Person(row.id, row.name, row.role, by_cookie=False)


def by_cookie(session: Session, secret: str) -> Person | None:
    """Return whose login this is, if it has not run out."""
    found = select(Account).join(Login).where(Login.digest == _digest(secret), Login.expires_at > now(), Account.active)
    row = session.scalars(found).first()
    return None if row is None else Person(row.id, row.name, row.role, by_cookie=True)


def log_in(database: Database, name: str, password: str, *, hours: float) -> str | None:
    """Return the secret of a new login, or nothing if name and password do not go together.

    The password is looked at before the turn to write is taken: that takes long, and strangers may ask for it.
    """
    known = select(Account).where(Account.name == name, Account.active)
    with database.read() as session:
        found = session.scalars(known).first()
    if not _matches(found.password if found is not None else None, password) or found is None:
        return None
    with database.write() as session:
        row = session.scalars(known.where(Account.password == found.password)).first()  # still so
        return None if row is None else _new_login(session, row, hours)


def log_in_known(session: Session, issuer: str, subject: str, *, hours: float) -> str | None:
    """Return the secret of a new login of the person whom a provider vouches for; nothing if nobody was linked."""
    known = (Identity.issuer == issuer, Identity.subject == subject, Identity.revoked_at.is_(None))
    row = session.scalars(select(Account).join(Identity).where(*known, Account.active)).first()
    return None if row is None else _new_login(session, row, hours)


def _new_login(session: Session, row: Account, hours: float) -> str:
    secret = secrets.token_urlsafe(32)
    ends = (datetime.now(UTC) + timedelta(hours=hours)).isoformat(timespec="milliseconds")
    session.execute(delete(Login).where(Login.expires_at < now()))
    session.add(Login(digest=_digest(secret), account_id=row.id, expires_at=ends))
    audit.record(session, row.id, "log in", row)
    return secret


def log_out(session: Session, secret: str) -> None:
    """End a login."""
    found = Login.digest == _digest(secret)
    row = session.scalars(select(Account).join(Login).where(found)).first()
    if row is not None:
        session.execute(delete(Login).where(found))
        audit.record(session, row.id, "log out", row)


def note_wrong_password(database: Database, name: str) -> None:
    """Record a failed login of an account. A name that nobody has may be a password in the wrong field: it is not kept.

    Call this once the answer is out: the time it takes would tell which names there are.
    """
    with database.write() as session:
        row = session.scalars(select(Account).where(Account.name == name, Account.active)).first()
        if row is not None:
            audit.record(session, _STRANGER, "wrong password", row)


class Attempts:
    """Wrong passwords by name: after so many a minute, further ones are not even looked at."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._places = threading.Semaphore(_AT_ONCE)
        self._times: dict[str, list[float]] = {}

    @contextmanager
    def one(self, name: str) -> Iterator[Callable[[], None]]:
        """Hold a place for one password of a name, or raise ``RefusedError`` after too many wrong ones.

        It counts as a wrong one, so that many at once are no way around, until the function that is given is called.
        """
        now = time.monotonic()
        with self._lock:
            if len(self._times) > 10_000:  # names that somebody made up
                self._times.clear()
            recent = [at for at in self._times.get(name, ()) if now - at < 60]
            if len(recent) >= self._most:
                raise RefusedError(429, "too many wrong passwords: wait a minute", retry_after=60)
            self._times[name] = [*recent, now]
        with self._places:
            yield lambda: self._forgive(name, now)

    def _forgive(self, name: str, at: float) -> None:
        with self._lock:
            self._times[name] = [each for each in self._times.get(name, ()) if each != at]


_STRANGER = "stranger"  # somebody who is not known, in the audit trail
_SHELL = "shell"  # whoever can run commands on the server's machine, in the audit trail


def _named(session: Session, name: str) -> Account:
    row = session.scalars(select(Account).where(Account.name == name)).first()
    if row is None or name == LOCAL:
        names = session.scalars(select(Account.name)).all()
        raise InputFileError(f"there is no account {name!r}{nearest(name, names)}")
    return row


def _live_tokens() -> Select[str]:
    return select(Token.account_id).where(Token.revoked_at.is_(None))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()  # of 256 random bits: no salt is needed


def _hashed(password: str) -> str:
    if not LEAST_PASSWORD <= len(password) <= _LONGEST_PASSWORD:
        raise InputFileError(f"a password has {LEAST_PASSWORD} to {_LONGEST_PASSWORD} characters, not {len(password)}")
    return _hasher().hash(password)


def _matches(known: str | None, password: str) -> bool:
    """Compare a password, as slowly for a name that does not exist as for one that does."""
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        _hasher().verify(known or _nobodys(), password[:_LONGEST_PASSWORD])
    except (VerificationError, InvalidHashError):
        return False
    return known is not None


@cache
def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher

    return PasswordHasher()


@cache
def _nobodys() -> str:
    return _hasher().hash(secrets.token_urlsafe(16))
