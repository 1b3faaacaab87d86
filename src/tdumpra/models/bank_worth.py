"""What rows that are added to a bank are worth: measured on those of them that the bank does not hold yet."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tdumpra.core.groups import group_folds
from tdumpra.method.decision import Decision
from tdumpra.method.record import Record
from tdumpra.method.rows import KeptRows
from tdumpra.models.opened import OpenedModel

FOLDS = 5
Array = NDArray[Any]


class OfClass(NamedTuple):
    """How one class's added rows were called; shares of right labels."""

    name: str
    is_new: bool
    rows: int
    groups: int
    before: float | None  # by the model as it was; None for a class that it did not know
    after: float | None  # by the model with the others' rows; None where one group alone shows the class
    retrieval: float | None  # by retrieval alone, with the others' rows


class Worth(NamedTuple):
    """What adding rows brings, each row decided with a bank that holds no row of its group."""

    folds: int
    classes: tuple[OfClass, ...]
    accuracy: tuple[float, float]  # before and after, on the added rows
    opened: float  # share of the added rows whose gate opens
    validation: tuple[float, float] | None  # accuracy on the model's own validation rows, before and after
    moved: int | None  # of those rows, how many got another label

    def sentence(self) -> str:
        """Return what was found in words."""
        before, after = self.accuracy
        words = (
            f"on the added rows, each left out of the bank with its group ({self.folds} folds), accuracy is "
            f"{after:.3f} with the others' rows and {before:.3f} without them"
        )
        if self.validation is not None:
            words += (
                f"; on the model's own validation rows it goes from {self.validation[0]:.3f} to "
                f"{self.validation[1]:.3f}, with {self.moved:,} labels moved"
            )
        return words


def worth(model: OpenedModel, rows: KeptRows, names: Sequence[str], *, seed: int = 0) -> Worth | None:
    """Cross-validate adding ``rows``; ``None`` where they are of one group, and nothing can be left out.

    ``names`` are the model's classes, and after them those that are new.
    """
    record, decision, kin = model.record, model.decision, rows.kin
    n_groups = len(np.unique(kin))
    if n_groups < 2:
        return None
    n_folds = min(FOLDS, n_groups)
    fold = group_folds(kin, rows.y, n_folds, seed=seed)
    after, retrieval, opened = (np.empty(len(rows), dtype=kind) for kind in (np.int64, np.int64, bool))
    for number in range(n_folds):
        held = fold == number
        with_others = _with_rows(decision, record, rows.rows(~held), names)
        after[held], retrieval[held], opened[held] = _labels(with_others, rows.rows(held))
    before = _labels(decision, rows)[0]
    kept = record.validation
    validation, moved = None, None
    if len(kept) and not record.bank.with_validation and not np.isnan(kept.p).any():
        labels = [_labels(each, kept)[0] for each in (decision, _with_rows(decision, record, rows, names))]
        validation = (float((labels[0] == kept.y).mean()), float((labels[1] == kept.y).mean()))
        moved = int((labels[0] != labels[1]).sum())
    return Worth(
        folds=n_folds,
        classes=tuple(_of_class(model, rows, names, c, before, after, retrieval) for c in np.unique(rows.y).tolist()),
        accuracy=(float((before == rows.y).mean()), float((after == rows.y).mean())),
        opened=float(opened.mean()),
        validation=validation,
        moved=moved,
    )


def _with_rows(decision: Decision, record: Record, rows: KeptRows, names: Sequence[str]) -> Decision:
    """Return the decision over a bank that holds these rows too."""
    bare = replace(rows, features=None, has_features=np.zeros(len(rows), dtype=bool))
    more = record.with_rows(bare, source="added")
    known = decision.columns if len(names) > decision.columns else None
    with warnings.catch_warnings():  # a small class has fewer groups in a fold: the bank of all rows warns of them
        warnings.simplefilter("ignore", UserWarning)
        bank = more.rebuild_bank(names)
    return replace(decision, bank=bank, prior=more.prior(len(names)), known=known)


def _labels(decision: Decision, rows: KeptRows) -> tuple[Array, Array, Array]:
    """Return the final label of each row, retrieval's, and whether the gate opened."""
    p = torch.from_numpy(rows.p.astype(np.float64))
    decided = decision.decide(p / p.sum(1, keepdim=True), torch.from_numpy(np.ascontiguousarray(rows.z)))
    return decided.p.argmax(1).numpy(), decided.p_sim.argmax(1).numpy(), decided.opened.numpy()


def _of_class(
    model: OpenedModel, rows: KeptRows, names: Sequence[str], c: int, before: Array, after: Array, retrieval: Array
) -> OfClass:
    own = rows.y == c
    n_groups, is_new = len(np.unique(rows.groups[own])), c >= len(model.class_names)
    measurable = n_groups > 1 or not is_new
    return OfClass(
        names[c],
        is_new,
        int(own.sum()),
        n_groups,
        None if is_new else float((before[own] == c).mean()),
        float((after[own] == c).mean()) if measurable else None,
        float((retrieval[own] == c).mean()) if measurable else None,
    )
