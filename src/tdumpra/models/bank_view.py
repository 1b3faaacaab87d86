"""What is in a model's bank, and in what two banks differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tdumpra.method.bank import PrototypeBank
from tdumpra.method.record import Record
from tdumpra.method.rows import KeptRows
from tdumpra.models.opened import OpenedModel
from tdumpra.networks.model_file import Model


def listed(model: OpenedModel) -> dict[str, Any]:
    """Return the bank class by class; how many rows stand behind it, where the model keeps a record."""
    bank, rows = model.decision.bank, _train(model)
    return {
        "model": str(model.path),
        "width": bank.width,
        "classifier_knows": model.decision.columns,
        "beside": None if rows is None else len(_beside(model)),
        "classes": [
            {
                "name": name,
                "rows": None if rows is None else int((rows.y == c).sum()),
                "groups": None if rows is None else len(np.unique(rows.groups[rows.y == c])),
                "merged": bank.merged[c],
                "prototypes": [
                    {
                        "weight": float(bank.weight[c, k]),
                        "cohesion": float(bank.cohesion[c, k]),
                        "exemplars": [each._asdict() for each in exemplars],
                    }
                    for k, exemplars in enumerate(bank.exemplars[c])
                ],
            }
            for c, name in enumerate(model.class_names)
        ],
    }


def difference(first: OpenedModel, second: OpenedModel) -> dict[str, Any]:
    """Return in what the second model differs from the first."""
    names = dict.fromkeys((*first.class_names, *second.class_names))
    settings = [each.decision.to_json() for each in (first, second)]
    return {
        "descends": first.digest in [entry.parent for entry in second.lineage],
        "classes_gone": [name for name in first.class_names if name not in second.class_names],
        "classes_new": [name for name in second.class_names if name not in first.class_names],
        "same_networks": _matched(first) == _matched(second),
        "same_head": _head(first) == _head(second),
        "settings_changed": sorted(
            key for key in settings[0].keys() | settings[1].keys() if settings[0].get(key) != settings[1].get(key)
        ),
        "beside": _rows_beside(first, second),
        "classes": [_of_class(first, second, name) for name in names],
    }


def _rows_beside(first: OpenedModel, second: OpenedModel) -> dict[str, Any] | None:
    """Return in what the rows differ that the models keep and that are not in their banks; ``None``: one keeps none."""
    if _record(first) is None or _record(second) is None:
        return None
    before, after = _beside(first), _beside(second)
    return {"rows_gone": sorted(before - after), "rows_new": sorted(after - before)}


def _beside(model: OpenedModel) -> set[str]:
    """Return the ids of rows that a model keeps and that have no part in its bank: of validation, or of weight 0."""
    record = model.record
    held = {str(name) for name in record.bank_rows.ids}
    return {str(name) for rows in (record.train, record.validation) for name in rows.ids} - held


def _of_class(first: OpenedModel, second: OpenedModel, name: str) -> dict[str, Any]:
    (ids, before), (other_ids, after) = (_side(each, name) for each in (first, second))
    known = ids is not None and other_ids is not None
    found: dict[str, Any] = {
        "name": name,
        "rows_gone": sorted((ids or set()) - (other_ids or set())) if known else None,
        "rows_new": sorted((other_ids or set()) - (ids or set())) if known else None,
        "prototypes": [len(before), len(after)],
        "unchanged": 0,
        "least_cosine": None,
    }
    if len(before) and len(after) and before.shape[1] == after.shape[1]:
        found["unchanged"] = sum(any(torch.equal(a, b) for b in after) for a in before)
        found["least_cosine"] = float((before @ after.T).amax(1).min())
    return found


def _side(model: OpenedModel, name: str) -> tuple[set[str] | None, torch.Tensor]:
    """Return the ids of a class's rows, where they are known, and its prototypes."""
    bank: PrototypeBank = model.decision.bank
    rows = _train(model)
    if name not in model.class_names:
        return (None if rows is None else set()), bank.prototypes.new_empty(0, bank.width)
    c = model.class_names.index(name)
    ids = None if rows is None else {str(each) for each in rows.ids[rows.y == c]}
    return ids, bank.prototypes[c][bank.mask[c]]


def _train(model: OpenedModel) -> KeptRows | None:
    """Return the rows that the bank is made of; ``None`` in a model without a record."""
    record = _record(model)
    return None if record is None else record.bank_rows


def _record(model: OpenedModel) -> Record | None:
    return model.content.record if isinstance(model.content, Model) else model.content.record_


def _matched(model: OpenedModel) -> str:
    """Return a name for the network in whose space the bank lies; the user's own has none."""
    if not isinstance(model.content, Model):
        return ""
    return (model.content.retrieval or model.content.classifier).without_adapted_head.fingerprint


def _head(model: OpenedModel) -> list[Any] | None:
    """Return the classifier's last layer, where the model holds it."""
    head = model.content.classifier.head if isinstance(model.content, Model) else model.content.head_
    return None if head is None else [each.tolist() for each in head]
