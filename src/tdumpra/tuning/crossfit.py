"""Tuning where validation is small: a bank from train and validation together, every row judged out of fold.

Whole lesions are dealt into folds. A fold's rows are matched against a bank built from the other folds, so that no row
meets a prototype made of itself or of its own lesion; on all these out-of-fold scores one gate is chosen, and the bank
that goes into use is built from everything. How good the choice is, is estimated by choosing once more for each fold
from the others alone.

Rows that the network was trained on are part of the bank, not of the choice: a network is surer of them, and their
embeddings lie closer to their classes, than on anything new. ``training_rows=True`` lets them in, for outputs whose
training rows were predicted out of fold too; it is refused where they plainly were not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tdumpra.checks import check_count
from tdumpra.core.calibration import class_prior
from tdumpra.core.groups import group_folds
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decided
from tdumpra.method.outputs import TrainOutputs, ValidationOutputs, join
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.result import Tuning
from tdumpra.tuning.search import DEFAULT_SEARCH, Search
from tdumpra.tuning.tune import refuse_other_than_validation, tune_on_scores

Array = np.ndarray
LeftOut = Literal["fold", "seed"]
BankMaker = Callable[[TrainOutputs], PrototypeBank]
_SEED = 0
_PLAINLY = 0.05  # training accuracy so far above validation's was not predicted out of fold


class Estimate(NamedTuple):
    """How the choice did on rows that took no part in it."""

    rows: int
    objective: float
    accuracy: float
    base_objective: float
    base_accuracy: float
    opened: int
    fixed: int
    broken: int
    fixable: int  # rows that retrieval has right and the classifier wrong
    left_out: LeftOut = "fold"

    def sentence(self) -> str:
        """Say what was earned."""
        how = "out of fold" if self.left_out == "fold" else "chosen without the seed that it is judged on"
        return (
            f"{how}, on {self.rows:,} rows, the gate opened {self.opened} times, fixed {self.fixed} predictions and "
            f"broke {self.broken} (retrieval was right on {self.fixable} of the classifier's errors): accuracy "
            f"{self.base_accuracy:.4f} to {self.accuracy:.4f}"
        )


def cross_fit(
    train: TrainOutputs,
    validation: ValidationOutputs,
    make_bank: BankMaker,
    search: Search = DEFAULT_SEARCH,
    *,
    folds: int = 5,
    training_rows: bool = False,
) -> tuple[Tuning, Estimate]:
    """Choose on out-of-fold scores of validation rows (and training rows, if ``training_rows``).

    The decision's bank holds train and validation.
    """
    refuse_other_than_validation(validation)
    check_count(folds, "folds", least=2)
    pool = _pool(train, validation)
    rows = _with_training_rows(train, validation, pool) if training_rows else validation
    fold = group_folds(pool.groups, pool.y.numpy(), folds, seed=_SEED)
    fold_of_row = fold[-len(rows) :]  # the pool holds validation last
    banks = [_bank_without(pool, fold == number, make_bank) for number in range(folds)]
    scores = {kappa: _out_of_fold_scores(banks, rows.z, fold_of_row, kappa) for kappa in search.preset.kappa}
    prior = class_prior(pool.y, validation.n_classes)

    def choose(bank: PrototypeBank, keep: Array) -> Tuning:
        of_rows = {kappa: values[torch.from_numpy(keep)] for kappa, values in scores.items()}
        return tune_on_scores(bank, rows.rows(keep), of_rows, prior, search)

    decided, y = [], []
    for number in np.unique(fold_of_row):
        held_out = rows.rows(fold_of_row == number)
        decided.append(choose(banks[number], fold_of_row != number).decision.decide(held_out.p, held_out.z))
        y.append(held_out.y)
    tuning = choose(make_bank(pool), np.ones(len(rows), dtype=bool))
    return tuning, estimate(decided, torch.cat(y), search.goal)


def _pool(train: TrainOutputs, validation: ValidationOutputs) -> TrainOutputs:
    """Join train and validation into the rows of one bank."""
    if (train.groups is None) != (validation.groups is None):
        raise ValueError("cross-fitting needs groups for both the training and the validation rows, or for neither")
    columns = ("z", "y", "groups", "ids")
    return TrainOutputs(**{name: join([getattr(train, name), getattr(validation, name)]) for name in columns})


def _with_training_rows(train: TrainOutputs, validation: ValidationOutputs, pool: TrainOutputs) -> ValidationOutputs:
    if train.p is None:
        raise ValueError("training_rows needs the classifier's out-of-fold probabilities of the training rows")
    of_train, of_validation = (
        float((p.argmax(1) == y).double().mean()) for p, y in ((train.p, train.y), (validation.p, validation.y))
    )
    if of_train > of_validation + _PLAINLY:
        raise ValueError(
            f"the classifier is right on {of_train:.1%} of the training rows and {of_validation:.1%} of the "
            "validation rows: it was trained on the former, and thresholds chosen on them would be worthless; leave "
            "training_rows off"
        )
    p = torch.cat([train.p, validation.p])
    return ValidationOutputs(p=p, z=pool.z, y=pool.y, groups=pool.groups, ids=pool.ids)


def _bank_without(pool: TrainOutputs, held_out: Array, make_bank: BankMaker) -> PrototypeBank:
    with warnings.catch_warnings():  # a small class has fewer groups in a fold: the bank of all rows warns of them
        warnings.filterwarnings("ignore", message="n_prototypes")
        return make_bank(pool.rows(~held_out))


def _out_of_fold_scores(banks: list[PrototypeBank], z: Tensor, fold: Array, kappa: float) -> Tensor:
    scores = torch.cat([bank.class_scores(z[fold == number], kappa=kappa) for number, bank in enumerate(banks)])
    return scores[np.argsort(np.argsort(fold, kind="stable"), kind="stable")]  # back in the order of the rows


def estimate(decided: list[Decided], y: Tensor, goal: Goal, *, left_out: LeftOut = "fold") -> Estimate:
    """Estimate what decisions earned on rows ``y`` that took no part in choosing them."""
    p_cls, p_sim, p = (torch.cat([getattr(part, name) for part in decided]) for name in ("p_cls", "p_sim", "p"))
    before, after = goal.score(p_cls, y), goal.score(p, y)
    was_right, is_right = p_cls.argmax(1) == y, p.argmax(1) == y
    return Estimate(
        rows=len(y),
        objective=after.objective,
        accuracy=after.accuracy,
        base_objective=before.objective,
        base_accuracy=before.accuracy,
        opened=int(sum(int(part.opened.sum()) for part in decided)),
        fixed=int((is_right & ~was_right).sum()),
        broken=int((was_right & ~is_right).sum()),
        fixable=int(((p_sim.argmax(1) == y) & ~was_right).sum()),
        left_out=left_out,
    )
