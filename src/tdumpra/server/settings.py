"""What a server is told when it starts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from tdumpra.checks import check_choice, check_count
from tdumpra.errors import InputFileError
from tdumpra.limits import MIB

Queue = Literal["all", "flagged"]
FORMATS = ("BMP", "JPEG", "PNG", "TIFF", "WEBP")  # of uploads: what cameras and scanners write

CALLBACK = "/login/callback"  # where a provider of logins sends people back to
LOW_CONFIDENCE = 0.5  # of the final first choice; below it a case is worth a second look


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """A provider at which people log in, and the name and secret under which it knows this server."""

    issuer: str
    client_id: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.issuer)
        if not is_guarded(self.issuer) or parts.query or parts.fragment:
            raise ValueError(f"the issuer must be an address that begins with https://, not {self.issuer!r}")
        for name, value in (("client id", self.client_id), ("secret", self.secret)):
            if not value or not value.isprintable():
                raise ValueError(f"the {name} of the provider is empty, or holds what cannot be printed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One server.

    ``readers`` is the number of people who read a case before it is decided. With ``blind``, a reader sees what the
    model says only after an answer of their own. ``queue`` says which cases readers are given: all, or those that the
    gate moved, that are unfamiliar, or whose confidence is low. ``origin`` is the address under which people reach the
    server where that is another than ``host`` and ``port``, as behind a proxy.
    """

    folder: Path = Path("serve")
    database: str | None = None  # SQLAlchemy's address; by default a file in the folder
    host: str = "127.0.0.1"
    port: int = 8000
    metrics_port: int | None = None
    origin: str | None = None
    login: bool = True
    oidc: OidcSettings | None = None
    blind: bool = True
    readers: int = 2
    queue: Queue = "all"
    threads: int = 2  # that run networks, and processes that decode
    waiting: int = 16  # images that may wait for them; more are turned away
    batch: int = 1  # images that one thread takes at once, of those that wait
    image_bytes: int = 32 * MIB  # of one upload
    form_bytes: int = 128 * MIB  # of one form with several images
    form_files: int = 20
    text_bytes: int = 64 * 1024  # of any other request
    header_bytes: int = 16 * 1024
    headers: int = 64
    open_requests: int = 64
    rate: float = 200.0  # requests a second of one account, in the long run
    burst: float = 400.0  # requests at once
    logins: int = 5  # wrong passwords a minute for one name
    body_seconds: float = 30.0  # in which a request must have arrived
    session_hours: float = 12.0

    def __post_init__(self) -> None:
        check_choice(self.queue, "queue", ("all", "flagged"))
        for name in ("readers", "threads", "waiting", "batch"):
            check_count(getattr(self, name), name)
        parts = urlsplit(self.origin or "http://x")
        if self.origin == "" or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"origin must be an address such as https://reader.example.org, not {self.origin!r}")

    @property
    def url(self) -> str:
        """The database's address."""
        return self.database or f"sqlite:///{(self.folder / 'cases.sqlite').absolute()}"

    @property
    def is_loopback(self) -> bool:
        """Return whether nobody but this machine can reach the server."""
        return _is_loopback(self.host)

    @property
    def address(self) -> str:
        """Where people find the server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.origin or f"http://{host}:{self.port}").rstrip("/")

    @property
    def hosts(self) -> frozenset[str]:
        """Values of the header Host that are answered."""
        found = {urlsplit(self.address).netloc}
        if self.is_loopback:
            found |= {f"{name}:{self.port}" for name in ("localhost", "127.0.0.1", "[::1]")}
        return frozenset(name.lower() for name in found if name)

    @property
    def is_secure(self) -> bool:
        """Return whether people come by HTTPS, so that cookies may say so."""
        return self.address.startswith("https:")

    def refuse_open_door(self) -> None:
        """Raise unless others who can reach the server must log in, at an address that it knows."""
        named = urlsplit(self.address).hostname or ""  # behind a proxy, everyone comes from this machine
        if self.is_loopback and _is_loopback(named):
            return
        if not self.login:
            where, option = (named, "--origin") if self.is_loopback else (self.host, "--host")
            raise InputFileError(
                f"the server would answer anyone at {where}, and nobody has an account: make one with  tdumpra "
                f"account add NAME --role admin --folder {self.folder},  or leave {option} out"
            )
        if self.origin is None and self.host in ("0.0.0.0", "::"):
            raise InputFileError(
                f"--host {self.host} is every address of this machine: say with --origin under which one people come, "
                "as in  --origin https://reader.example.org"
            )


def is_guarded(address: str) -> bool:
    """Return whether nobody can listen on the way to an address: it is HTTPS, or on this machine."""
    parts = urlsplit(address)
    if parts.scheme == "http":
        return _is_loopback(parts.hostname or "")
    return parts.scheme == "https" and bool(parts.hostname)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
