"""The parts of a running server, put together and taken apart."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from sqlalchemy import select

from tdumpra.server import accounts, models
from tdumpra.server.database import Database, in_sentences
from tdumpra.server.inference import Inference
from tdumpra.server.intake import Intake
from tdumpra.server.metrics import Metrics
from tdumpra.server.models import Models
from tdumpra.server.settings import CALLBACK, Settings
from tdumpra.server.store import Store
from tdumpra.server.tables import Case

if TYPE_CHECKING:
    from tdumpra.server.oidc import Provider


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """What requests are answered with."""

    settings: Settings
    database: Database
    store: Store
    intake: Intake
    inference: Inference
    models: Models
    metrics: Metrics
    attempts: accounts.Attempts
    oidc: Provider | None
    local: accounts.Person | None  # whoever comes, where nobody needs to log in

    def problems(self) -> list[str]:
        """Return why requests cannot be answered now; nothing if they can."""
        found = []
        try:
            with self.database.read() as session:
                session.execute(select(Case.id).limit(1))
        except Exception:
            found.append("the database does not answer")
        if not self.store.has_room():
            found.append("the disk is full")
        found += [f"the file of model {each.row.id} was changed" for each in self.models.all() if not each.is_intact()]
        return found

    def close(self) -> None:
        """End processes, threads and connections."""
        self.intake.close()
        self.inference.close()
        self.database.close()


def open_service(
    settings: Settings,
    model_files: list[Path],
    *,
    names: list[str] | None = None,
    trusted: Collection[str] = (),
    device: str | None = None,
) -> Service:
    """Open everything; the first model is active unless another of them was promoted before."""
    settings.refuse_open_door()
    store = Store(settings.folder)
    loaded = models.open_models(
        store, model_files, names or [path.name for path in model_files], trusted=trusted, device=device
    )
    database = Database(settings.url)
    with in_sentences(), database.write() as session:
        owner = None if settings.login else accounts.local_account(session)
        active = models.register(session, loaded, "shell" if owner is None else owner.id)
        store.sweep(set(session.scalars(select(Case.image).where(Case.withdrawn_at.is_(None)))))
    torch.set_num_threads(1)
    return Service(
        settings=settings,
        database=database,
        store=store,
        intake=Intake(store, settings.threads),
        inference=Inference(threads=settings.threads, waiting=settings.waiting, batch=settings.batch),
        models=Models(loaded, active),
        metrics=Metrics(),
        attempts=accounts.Attempts(settings.logins),
        oidc=_provider(settings),
        local=None if owner is None else accounts.Person(owner.id, owner.name, owner.role, by_cookie=True),
    )


def _provider(settings: Settings) -> Provider | None:
    if settings.oidc is None:
        return None
    from tdumpra.server.oidc import Provider

    return Provider(settings.oidc, settings.address + CALLBACK)
