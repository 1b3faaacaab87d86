"""The file of a :class:`~tdumpra.estimator.DualPathClassifier`: what it says, and what of it is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tdumpra.artifacts import Artifact, jsonable, prefixed, read_artifact, read_meta, unprefixed, write_artifact
from tdumpra.core.linear_head import LinearHead
from tdumpra.errors import ArtifactError
from tdumpra.foreign import reading
from tdumpra.method import lineage
from tdumpra.method.record import Record
from tdumpra.method.schema import check_tensor
from tdumpra.toml import from_plain
from tdumpra.tuning.fit import Fitted
from tdumpra.tuning.presets import Preset
from tdumpra.values import check_table

KIND, SCHEMA = "dual-path classifier", 2


class SavedClassifier(NamedTuple):
    """What prediction and evidence need, the tuning's whole curve, and what a model keeps of its rows and history."""

    fitted: Fitted
    params: Mapping[str, Any]  # of the estimator
    class_names: Sequence[str] | None
    record: Record | None = None
    head: LinearHead | None = None
    history: tuple[lineage.Entry, ...] = ()
    evaluation: dict[str, Any] | None = None

    def write(self, path: str | Path, *, made_from: str) -> None:
        """Write one sealed safetensors file."""
        tensors, meta = self.fitted.to_artifact()
        params = dict(self.params)
        if isinstance(params["preset"], Preset):
            params["preset"] = asdict(params["preset"])
        record = Artifact({}, {}) if self.record is None else self.record.to_artifact()
        head = {} if self.head is None else {name: torch.from_numpy(each) for name, each in self.head._asdict().items()}
        tensors = {**tensors, **prefixed("record", record.tensors), **prefixed("head", head)}
        meta = {
            **meta,
            "params": jsonable(params),  # a numpy integer is a fine n_prototypes, and no JSON
            "class_names": self.class_names,
            "made_from": made_from,
            "record": record.meta or None,
            "lineage": lineage.to_json(self.history),
            "evaluation": self.evaluation,
        }
        write_artifact(path, kind=KIND, schema=SCHEMA, tensors=tensors, meta=meta)

    @classmethod
    def read(cls, path: str | Path) -> SavedClassifier:
        """Read what :meth:`write` wrote."""
        tensors, meta = read_artifact(path, kind=KIND, schema=SCHEMA)
        with reading(path, f"tdumpra {KIND}", ArtifactError):
            params = dict(check_table(meta["params"], "params"))
            if isinstance(params["preset"], dict):
                params["preset"] = from_plain(params["preset"], Preset)
            fitted = Fitted.from_artifact(Artifact(tensors, meta))
            return cls(
                fitted=fitted,
                params=params,
                class_names=meta["class_names"],
                record=_record(fitted, Artifact(unprefixed("record", tensors), meta.get("record") or {})),
                head=_head(fitted, unprefixed("head", tensors)),
                history=lineage.from_json(meta.get("lineage", [])),
                evaluation=check_table(meta["evaluation"], "evaluation") if meta.get("evaluation") else None,
            )


def _record(fitted: Fitted, kept: Artifact) -> Record | None:
    bank = fitted.tuning.decision.bank
    return Record.from_artifact(kept, n_classes=bank.n_classes, width=bank.width) if kept.meta else None


def _head(fitted: Fitted, head: Mapping[str, Tensor]) -> LinearHead | None:
    if not head:
        return None
    columns = fitted.tuning.decision.columns
    weight = check_tensor(head, "weight", (columns, None))
    return LinearHead(weight.numpy(), check_tensor(head, "bias", (columns,)).numpy())


def read_made_from(path: str | Path) -> tuple[str, str]:
    """Return the names that a saved classifier carries for what it, and what its evaluation, was made from."""
    meta = read_meta(path, kind=KIND, schema=SCHEMA)
    with reading(path, f"tdumpra {KIND}", ArtifactError):
        figures = check_table(meta.get("evaluation") or {}, "evaluation")
        return str(meta.get("made_from", "")), str(figures.get("made_from", ""))
