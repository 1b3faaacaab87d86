"""The audit trail: an append-only chain of hashes over everything that is done.

Each entry names who did what to which row, holds a digest of the row as it was then, and the hash of the entry before
it. :func:`verify` walks the chain and compares the tables behind it. Whoever can write to the database could also make
a new chain from the start: keep the head, a number and a hash, where they cannot write, and hand it to :func:`verify`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import inspect, select
from sqlalchemy.orm import Session

from tdumpra.errors import InputFileError
from tdumpra.server.store import Store
from tdumpra.server.tables import RECORDED, Base, Case, Entry, now

ORIGIN = "0" * 64  # stands before the first entry
_FIELDS = ("number", "at", "actor", "action", "kind", "subject", "digest", "previous")


class Head(NamedTuple):
    """The end of a chain: everything up to here follows from it."""

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read what ``str`` wrote."""
        found = re.fullmatch(r"(\d+):([0-9a-f]{64})", text.strip())
        if found is None:
            raise InputFileError(f"{text!r} is no head of an audit trail, which is NUMBER:HASH")
        return cls(int(found[1]), found[2])


class Checked(NamedTuple):
    """What :func:`verify` found."""

    head: Head
    faults: list[str]  # sentences; none if everything is as it was written


def record(session: Session, actor: str, action: str, row: Base) -> None:
    """Append an entry on a row that was added or changed, in the transaction that changes it."""
    session.add(row)
    session.flush()
    last = head(session)
    entry = Entry(
        number=last.number + 1, at=now(), actor=actor, action=action, kind=row.__tablename__, subject=_key(row),
        digest=digest(row), previous=last.hash,
    )  # fmt: skip
    entry.hash = _hash(entry)
    session.add(entry)
    session.flush()


def head(session: Session) -> Head:
    """Return the end of the chain."""
    last = session.scalars(select(Entry).order_by(Entry.number.desc()).limit(1)).first()
    return Head(0, ORIGIN) if last is None else Head(last.number, last.hash)


def verify(session: Session, expected: Head | None = None) -> Checked:
    """Check the chain, the rows behind it and, if it is given, that the chain goes on from an earlier head."""
    faults: list[str] = []
    newest: dict[tuple[str, str], str] = {}
    end, seen = Head(0, ORIGIN), None if expected is None or expected.number else ORIGIN
    for entry in session.scalars(select(Entry).order_by(Entry.number).execution_options(yield_per=1000)):
        if entry.number != end.number + 1:
            faults.append(f"entries {end.number + 1} to {entry.number - 1} are missing")
        if entry.previous != end.hash:
            faults.append(f"entry {entry.number} does not follow from the one before it")
        if _hash(entry) != entry.hash:
            faults.append(f"entry {entry.number} was altered")
        newest[entry.kind, entry.subject] = entry.digest
        end = Head(entry.number, entry.hash)
        if expected is not None and entry.number == expected.number:
            seen = entry.hash
    if expected is not None and seen is None:
        faults.append(f"the chain ends at entry {end.number}, and the head that was kept is entry {expected.number}")
    elif expected is not None and seen != expected.hash:
        faults.append(f"entry {expected.number} is another than the head that was kept")
    return Checked(end, [*faults, *_rows(session, newest)])


def changed_images(session: Session, store: Store) -> Iterator[str]:
    """Yield a sentence for each case whose image is missing or is another one."""
    for case in session.scalars(select(Case).where(Case.withdrawn_at.is_(None)).order_by(Case.number)):
        if not store.is_intact(case.image):
            yield f"the image of case {case.number} is missing, or is another one"


def digest(row: Base) -> str:
    """Return the SHA-256 of a row, column by column."""
    columns = {column.key: getattr(row, column.key) for column in inspect(type(row)).columns}
    return hashlib.sha256(_canonical(columns)).hexdigest()


def _rows(session: Session, newest: dict[tuple[str, str], str]) -> Iterator[str]:
    for table in RECORDED:
        kind = table.__tablename__
        for row in session.scalars(select(table).execution_options(yield_per=1000)):
            said = newest.pop((kind, _key(row)), None)
            if said is None:
                yield f"the trail knows nothing of {_key(row)} in {kind}"
            elif said != digest(row):
                yield f"{_key(row)} in {kind} is not as the trail has it"
    for kind, subject in newest:
        yield f"{subject} is missing from {kind}"


def _key(row: Base) -> str:
    return str(inspect(type(row)).primary_key_from_instance(row)[0])


def _hash(entry: Entry) -> str:
    return hashlib.sha256(_canonical({name: getattr(entry, name) for name in _FIELDS})).hexdigest()


def _canonical(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()
