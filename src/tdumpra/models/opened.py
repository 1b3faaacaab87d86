"""A finished model of either kind, opened: with networks (``tdumpra run``) or for arrays (``tdumpra attach``)."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tdumpra.core.linear_head import LinearHead
from tdumpra.errors import ArtifactError, OtherKindError
from tdumpra.estimator import DualPathClassifier
from tdumpra.estimator_file import KIND as ARRAYS
from tdumpra.foreign import cannot_read
from tdumpra.method import lineage
from tdumpra.method.decision import Decision
from tdumpra.method.record import Record
from tdumpra.networks.model_file import Model


@dataclass(frozen=True, slots=True, eq=False)
class OpenedModel:
    """A model file: what it holds, and the SHA-256 of its bytes."""

    path: Path
    digest: str
    content: Model | DualPathClassifier

    @property
    def decision(self) -> Decision:
        """Return bank, temperatures and thresholds."""
        return self.content.decision if isinstance(self.content, Model) else self.content.decision_

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of the bank's classes; numbers where a file of outputs had no names."""
        if isinstance(self.content, Model):
            return self.content.class_names
        return self.content.class_names_ or tuple(str(c) for c in range(self.decision.bank.n_classes))

    @property
    def lineage(self) -> tuple[lineage.Entry, ...]:
        """Return its history, oldest entry first; empty in older files."""
        return self.content.lineage if isinstance(self.content, Model) else self.content.lineage_

    @property
    def record(self) -> Record:
        """Return what it keeps of its rows, or say why there is nothing."""
        kept = self.content.record if isinstance(self.content, Model) else self.content.record_
        if kept is None:
            raise ArtifactError(
                f"{self.path} keeps no record of its training and validation rows: it was made by an older version, "
                "or with bank.record = false. Make it again with  tdumpra run  or  tdumpra attach  of this version"
            )
        return kept

    def with_rows(
        self,
        record: Record,
        decision: Decision,
        *,
        class_names: Sequence[str] | None = None,
        head: LinearHead | None = None,
    ) -> Model | DualPathClassifier:
        """Return the contents of a model whose record and decision are these, and all that rests on them.

        ``class_names`` are the bank's where they have changed. A ``head`` takes the place of the classifier's own.
        """
        names = self.class_names if class_names is None else tuple(class_names)
        if isinstance(self.content, Model):
            return _networks_with_rows(self.content, record, decision, names, head)
        fitted, before = self.content.fitted_, self.content
        unseen = None if fitted.unseen_bank is None else record.bank_of_train(names)
        # a proof and an estimate were of the bank that was
        fitted = fitted._replace(
            tuning=replace(fitted.tuning, decision=decision), unseen_bank=unseen, certificate=None, estimate=None
        )
        numbers = tuple(str(c) for c in range(len(names)))  # names of classes that have none, beside added ones
        shrunk = before.class_names_ is not None and len(names) < len(before.class_names_)
        told = None if names == numbers and (before.class_names_ is None or shrunk) else names
        child = DualPathClassifier.from_fitted(fitted, told, **before.get_params(deep=False))
        child.record_, child.lineage_, child.evaluation_ = record, before.lineage_, before.evaluation_
        child.head_ = before.head_ if head is None else head
        return child

    def write_child(
        self,
        out: Path,
        content: Model | DualPathClassifier,
        *,
        command: str,
        settings: Mapping[str, Any],
        inputs: Mapping[str, str],
    ) -> None:
        """Write a model that was made from this one, as a new file with one more step of history."""
        refuse_existing(out)
        steps = lineage.append(self.lineage, command=command, settings=settings, inputs=inputs, parent=self.digest)
        if isinstance(content, Model):
            replace(content, lineage=steps).write(out)
            return
        child = copy.copy(content)
        child.lineage_ = steps
        child.save(out)


def _networks_with_rows(
    content: Model, record: Record, decision: Decision, names: tuple[str, ...], head: LinearHead | None
) -> Model:
    classifier = content.classifier if head is None else content.classifier.with_head(*head)
    identity = {**content.identity, "made_from": ""}  # of the run's files, which this is not
    if head is not None:
        matched = content.retrieval or classifier
        identity |= {"classifier": classifier.fingerprint, "retrieval": matched.fingerprint}
    return replace(
        content,
        decision=decision,
        class_names=names,
        classifier=classifier,
        identity=identity,
        record=record,
    )


def open_model(path: str | Path) -> OpenedModel:
    """Read a model file of either kind."""
    path = Path(path)
    content: Model | DualPathClassifier
    try:
        content = Model.read(path)
    except ArtifactError as error:
        if not isinstance(error.__cause__, OtherKindError) or error.__cause__.found != ARRAYS:
            raise
        content = DualPathClassifier.load(path)
    return OpenedModel(path, file_digest(path), content)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise cannot_read(path, error) from error


def refuse_existing(out: Path) -> None:
    """Refuse to write over a file: models are never changed in place."""
    if out.exists():
        raise ArtifactError(f"{out} exists, and models are never changed in place: name another file with --out")
    if not out.parent.is_dir():
        raise ArtifactError(f"cannot write {out}: the folder {out.parent} does not exist")
