"""The tables of the database. Times are UTC in ISO 8601, so that a row reads alike in every database."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

from sqlalchemy import ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import Double

Id = String(32)


def new_id() -> str:
    """Return a name that nobody can guess, for a row."""
    return secrets.token_hex(16)


def now() -> str:
    """Return the time."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Base(DeclarativeBase):
    """What the tables share."""


class Account(Base):
    """A person, or a program."""

    __tablename__ = "accounts"
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(80), unique=True)
    role: Mapped[str] = mapped_column(String(16))
    password: Mapped[str | None] = mapped_column(String(255), default=None)  # argon2's hash
    active: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[str] = mapped_column(String(40), default=now)


class Token(Base):
    """A program's way in; its secret is kept as a hash."""

    __tablename__ = "tokens"
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[str] = mapped_column(String(40), default=now)
    revoked_at: Mapped[str | None] = mapped_column(String(40), default=None)


class Identity(Base):
    """Who a provider of logins says that an account's person is."""

    __tablename__ = "identities"
    __table_args__ = (UniqueConstraint("issuer", "subject"),)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    issuer: Mapped[str] = mapped_column(String(255))
    subject: Mapped[str] = mapped_column(String(255))
    created_at: Mapped[str] = mapped_column(String(40), default=now)
    revoked_at: Mapped[str | None] = mapped_column(String(40), default=None)


class Login(Base):
    """A browser that somebody logged in with; its cookie is kept as a hash."""

    __tablename__ = "logins"
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    expires_at: Mapped[str] = mapped_column(String(40))


class ModelFile(Base):
    """A model that was served, by its fingerprints."""

    __tablename__ = "models"
    id: Mapped[str] = mapped_column(String(16), primary_key=True)  # of the file's bytes
    digest: Mapped[str] = mapped_column(String(64))  # the same in full
    name: Mapped[str] = mapped_column(String(200))
    bank: Mapped[str] = mapped_column(String(16))
    settings: Mapped[str] = mapped_column(String(16))
    classes: Mapped[str] = mapped_column(Text)  # JSON
    added_at: Mapped[str] = mapped_column(String(40), default=now)


class Promotion(Base):
    """A model that became the active one, and which was before it."""

    __tablename__ = "promotions"
    number: Mapped[int] = mapped_column(primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"))
    before_id: Mapped[str | None] = mapped_column(ForeignKey("models.id"), default=None)
    at: Mapped[str] = mapped_column(String(40), default=now)
    by: Mapped[str] = mapped_column(Id)


class Case(Base):
    """An image that somebody handed in."""

    __tablename__ = "cases"
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    number: Mapped[int] = mapped_column(unique=True)
    image: Mapped[str] = mapped_column(String(64), index=True)  # SHA-256 of the stored file
    width: Mapped[int]
    height: Mapped[int]
    lesion: Mapped[str | None] = mapped_column(String(120))  # the group: lesion or patient, under a pseudonym
    created_by: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    created_at: Mapped[str] = mapped_column(String(40), default=now)
    withdrawn_at: Mapped[str | None] = mapped_column(String(40), default=None)


class Opinion(Base):
    """What one model said of a case."""

    __tablename__ = "opinions"
    __table_args__ = (UniqueConstraint("case_id", "model_id"),)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    case_id: Mapped[str] = mapped_column(ForeignKey("cases.id"), index=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"))
    active: Mapped[bool]  # at that time; the other one was the shadow
    label: Mapped[str] = mapped_column(Text)
    classifier: Mapped[str] = mapped_column(Text)
    retrieval: Mapped[str] = mapped_column(Text)
    opened: Mapped[bool]
    confidence: Mapped[float] = mapped_column(Double)
    familiarity: Mapped[float] = mapped_column(Double)
    evidence: Mapped[str] = mapped_column(Text)  # JSON
    created_at: Mapped[str] = mapped_column(String(40), default=now)


class Reading(Base):
    """A reader's answer to a case."""

    __tablename__ = "readings"
    __table_args__ = (UniqueConstraint("case_id", "reader_id", "informed"),)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    case_id: Mapped[str] = mapped_column(ForeignKey("cases.id"), index=True)
    reader_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    informed: Mapped[bool]  # whether the reader had seen what the model says
    first: Mapped[bool]  # the reader's first answer to the case, which counts for agreement
    label: Mapped[str] = mapped_column(Text)
    confidence: Mapped[int]  # 1 to 5
    comment: Mapped[str] = mapped_column(Text)
    created_at: Mapped[str] = mapped_column(String(40), default=now)


class Decision(Base):
    """The label of a case: what its readers agree on, or what an adjudicator says. The last one counts."""

    __tablename__ = "decisions"
    __table_args__ = (UniqueConstraint("case_id", "number"),)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    case_id: Mapped[str] = mapped_column(ForeignKey("cases.id"), index=True)
    number: Mapped[int]  # of the case's decisions, from 1
    label: Mapped[str] = mapped_column(Text)
    agreed: Mapped[bool]  # by all readers; otherwise adjudicated
    comment: Mapped[str] = mapped_column(Text)
    decided_by: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    created_at: Mapped[str] = mapped_column(String(40), default=now)


class Answer(Base):
    """What a write with a key was answered, so that it is done once however often it is sent."""

    __tablename__ = "answers"
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    request: Mapped[str] = mapped_column(String(64))  # SHA-256 of what was asked
    body: Mapped[str] = mapped_column(Text)
    created_at: Mapped[str] = mapped_column(String(40), index=True, default=now)


class Entry(Base):
    """A link of the audit trail: who did what to which row, what the row was then, and the hash of all before."""

    __tablename__ = "audit"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[str] = mapped_column(String(40))
    actor: Mapped[str] = mapped_column(Id)
    action: Mapped[str] = mapped_column(String(40))
    kind: Mapped[str] = mapped_column(String(16))  # the table
    subject: Mapped[str] = mapped_column(String(64), index=True)  # the row's key
    digest: Mapped[str] = mapped_column(String(64))  # of the row
    previous: Mapped[str] = mapped_column(String(64))
    hash: Mapped[str] = mapped_column(String(64))


RECORDED: tuple[type[Base], ...] = (
    Account, Token, Identity, ModelFile, Promotion, Case, Opinion, Reading, Decision
)  # fmt: skip
