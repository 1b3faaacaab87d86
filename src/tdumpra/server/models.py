"""The models of a server: one is active, one may be its shadow; each can be promoted, and a promotion undone."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tdumpra.artifacts import fingerprint
from tdumpra.errors import InputFileError
from tdumpra.networks.model_file import Model
from tdumpra.networks.predict import Predictor
from tdumpra.server import audit
from tdumpra.server.refusals import RefusedError, not_found
from tdumpra.server.store import Store
from tdumpra.server.tables import Entry, ModelFile, Promotion

ROLL_BACK = "roll back"  # what the trail calls it


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model in memory, and the file that it came from."""

    predictor: Predictor
    row: ModelFile
    path: Path
    _stamp: list[tuple[int, int, int]] = field(default_factory=list)  # of the file when its bytes were last checked

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes in the model's order."""
        return self.predictor.model.class_names

    def refuse_if_swapped(self) -> None:
        """Raise unless the file is still the one that was loaded. Its bytes are read again only if it was touched."""
        if not self.is_intact():
            said = f"the file of model {self.row.id} is not the one that was loaded: restart the server"
            raise RefusedError(503, said, retry_after=60)

    def is_intact(self) -> bool:
        """Return whether the file is still the one that was loaded."""
        try:
            status = self.path.stat()
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if self._stamp != [stamp]:
                if hashlib.sha256(self.path.read_bytes()).hexdigest() != self.row.digest:
                    return False
                self._stamp[:] = [stamp]
        except OSError:
            return False
        return True


class Models:
    """The models that are loaded, the active one first."""

    def __init__(self, loaded: list[Loaded], active: str) -> None:
        self._loaded = {each.row.id: each for each in loaded}
        self._active, self._number, self._lock = active, 0, threading.Lock()

    @property
    def active(self) -> Loaded:
        """The model whose word counts."""
        return self._loaded[self._active]

    def all(self) -> list[Loaded]:
        """Return every model, the active one first."""
        active = self._active
        return sorted(self._loaded.values(), key=lambda each: each.row.id != active)

    def find(self, name: str) -> Loaded | None:
        """Return a loaded model by its fingerprint."""
        return self._loaded.get(name)

    def promote(self, session: Session, name: str, actor: str) -> None:
        """Make a loaded model the active one."""
        if name not in self._loaded:
            raise not_found("model")
        if name == current(session):
            raise RefusedError(409, f"model {name} is active already")
        activate(session, name, actor, "promote")

    def roll_back(self, session: Session, actor: str) -> None:
        """Make the model active again that was before the last promotion."""
        before = earlier(session)
        if before is None:
            raise RefusedError(409, "there is no model to go back to")
        if before not in self._loaded:
            raise RefusedError(409, f"model {before} is not loaded: name it when you start the server")
        activate(session, before, actor, ROLL_BACK)

    def follow(self, session: Session) -> None:
        """Take over which model is active, if it was changed; of two who look at once, the newer look counts."""
        last = session.scalars(select(Promotion).order_by(Promotion.number.desc()).limit(1)).one()
        with self._lock:
            if last.number >= self._number and last.model_id in self._loaded:
                self._number, self._active = last.number, last.model_id


def open_models(
    store: Store, paths: list[Path], names: list[str], *, trusted: Collection[str] = (), device: str | None = None
) -> list[Loaded]:
    """Load models from copies in the store."""
    loaded: list[Loaded] = []
    for path, name in zip(paths, names, strict=True):
        digest, kept = store.keep_model(path)
        model = Model.read(kept)
        predictor = Predictor(model, trusted=trusted, device=device)
        row = ModelFile(
            id=digest[:16], digest=digest, name=name[-200:], bank=bank_fingerprint(model),
            settings=settings_fingerprint(model), classes=json.dumps(model.class_names, ensure_ascii=False),
        )  # fmt: skip
        if row.id not in {each.row.id for each in loaded}:
            loaded.append(Loaded(predictor, row, kept))
    if any(each.class_names != loaded[0].class_names for each in loaded):
        raise InputFileError("the shadow has other classes than the model: only models of one task go side by side")
    return loaded


def register(session: Session, loaded: list[Loaded], actor: str) -> str:
    """Record the models, and return which is active: the last promoted one if it is here, else the first."""
    known = set(session.scalars(select(ModelFile.id)))
    for each in loaded:
        if each.row.id not in known:
            audit.record(session, actor, "add model", each.row)
    active = current(session)
    if active in {each.row.id for each in loaded}:
        return active
    activate(session, loaded[0].row.id, actor, "activate")
    return loaded[0].row.id


def current(session: Session) -> str:
    """Return the fingerprint of the active model; nothing where there never was one."""
    newest = select(Promotion.model_id).order_by(Promotion.number.desc()).limit(1)
    return session.scalars(newest).first() or ""


def earlier(session: Session) -> str | None:
    """Return the model that rolling back leads to: each step back undoes one more promotion."""
    entries = select(Entry.subject, Entry.action).where(Entry.kind == Promotion.__tablename__)
    actions = {each.subject: each.action for each in session.execute(entries)}
    active: list[str] = []
    for row in session.scalars(select(Promotion).order_by(Promotion.number)):
        if actions.get(str(row.number)) == ROLL_BACK:
            del active[-1:]
        else:
            active.append(row.model_id)
    return active[-2] if len(active) > 1 else None


def activate(session: Session, name: str, actor: str, action: str) -> None:
    """Record that a model is the active one from now on."""
    number = (session.scalar(select(func.max(Promotion.number))) or 0) + 1
    row = Promotion(number=number, model_id=name, before_id=current(session) or None, by=actor)
    audit.record(session, actor, action, row)


def bank_fingerprint(model: Model) -> str:
    """Return a hash that changes when a prototype does."""
    tensors, meta = model.decision.bank.to_artifact()
    parts: list[bytes | str] = [json.dumps(meta, sort_keys=True)]
    for name, tensor in sorted(tensors.items()):
        parts += [name, tensor.detach().cpu().contiguous().numpy().tobytes()]
    return fingerprint(*parts)


def settings_fingerprint(model: Model) -> str:
    """Return a hash that changes when a threshold, a temperature or the preprocessing does."""
    encoders = [each for each in (model.classifier, model.retrieval) if each is not None]
    said = [model.decision.to_json(), [each.transform.to_dict() for each in encoders]]
    return fingerprint(json.dumps(said, sort_keys=True))
