"""What a choice earns on rows that had no say in it, and tuning where validation is small.

The best of thousands of settings looks better on the rows that it was chosen on than it is. So whole lesions are dealt
into folds, and for each fold everything, temperatures included, is chosen once more from the others
(:func:`out_of_fold`): what these choices earn on the rows that they did not see estimates what the one choice on all
rows earns on new ones.

Where validation is small, :func:`cross_fit` makes the bank from train and validation together. A fold's rows are
matched against a bank built from the other folds, so that no row meets a prototype made of itself or of its own lesion;
on all these out-of-fold scores one gate is chosen, and the bank that goes into use is built from everything.

Rows that the network was trained on are part of the bank, not of the choice: a network is surer of them, and their
embeddings lie closer to their classes, than on anything new. ``training_rows=True`` lets them in, for outputs whose
training rows were predicted out of fold too; it is refused where they plainly were not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tdumpra.checks import check_count
from tdumpra.core.calibration import class_prior
from tdumpra.core.groups import group_folds
from tdumpra.core.metrics import Objective
from tdumpra.core.posterior import similarity_posterior
from tdumpra.core.rowwise import widen
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decided
from tdumpra.method.outputs import ScoredOutputs, TrainOutputs, ValidationOutputs, join
from tdumpra.tuning.goal import Goal, objective_name, shown_value
from tdumpra.tuning.result import Tuning
from tdumpra.tuning.search import DEFAULT_SEARCH, Search
from tdumpra.tuning.tune import refuse_other_than_validation, tune_on_scores

Array = np.ndarray
LeftOut = Literal["fold", "seed"]
BankMaker = Callable[[TrainOutputs], PrototypeBank]
_SEED = 0
_FOLDS = 5
_ESTIMATE_SEED = 2  # neither that of cross-fitting nor that of the certificate's halves
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
    maximised: Objective = "balanced_accuracy"  # what ``objective`` is
    by_class: tuple[tuple[int, int, int], ...] = ()  # rows gained, lost and falsely called, for each class

    @property
    def survives(self) -> bool:
        """Return whether something was gained on rows that had no say: a better objective at no lower accuracy."""
        gained = round(self.objective, 12) > round(self.base_objective, 12)
        return gained and round(self.accuracy, 12) >= round(self.base_accuracy, 12)

    @property
    def gain(self) -> str:
        """Return the figures before and after, in words."""
        accuracy = f"accuracy {self.base_accuracy:.4f} to {self.accuracy:.4f}"
        if self.maximised == "accuracy":
            return accuracy
        before, after = (shown_value(self.maximised, each) for each in (self.base_objective, self.objective))
        return f"{objective_name(self.maximised)} {before:.4f} to {after:.4f}, {accuracy}"

    def untaken(self) -> Estimate:
        """Return what the classifier alone earned on the same rows."""
        nothing = tuple((0, 0, 0) for _ in self.by_class)
        return self._replace(
            objective=self.base_objective, accuracy=self.base_accuracy, opened=0, fixed=0, broken=0, by_class=nothing
        )

    def sentence(self) -> str:
        """Say what was earned."""
        how = "out of fold" if self.left_out == "fold" else "chosen without the seed that it is judged on"
        where = f"on rows that had no say in the choice ({how}, {self.rows:,} rows)"
        if not self.opened:
            return f"{where} the gate never opened"
        return (
            f"{where} the gate opened {self.opened} times, fixed {self.fixed} predictions and broke {self.broken} "
            f"(retrieval was right on {self.fixable} of the classifier's errors): {self.gain}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**self._asdict(), "survives": self.survives, "sentence": self.sentence()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Estimate:
        """Read what :meth:`to_json` returned; older files lack the last fields."""
        known = {name: content[name] for name in cls._fields if name in content}
        return cls(**{**known, "by_class": tuple(map(tuple, known.get("by_class", ())))})


def out_of_fold(
    bank: PrototypeBank, rows: ScoredOutputs, scores: Mapping[float, Tensor], prior: Tensor, search: Search
) -> Estimate | None:
    """Estimate what a choice on ``rows`` earns on others: choose on four folds of lesions, apply to the fifth.

    ``scores`` are retrieval's, for each kappa. ``None`` where the rows are of fewer than two lesions.
    """
    folds = min(_FOLDS, len(np.unique(rows.lesions())))
    if folds < 2:
        return None
    fold = group_folds(rows.groups, rows.y.numpy(), folds, seed=_ESTIMATE_SEED)
    in_part = replace(search, preset=search.preset.for_share(1 - 1 / folds))
    decided, p, y = [], [], []
    for number in range(folds):
        held_out = torch.from_numpy(fold == number)
        of_rest = {kappa: values[~held_out] for kappa, values in scores.items()}
        decision = tune_on_scores(bank, rows.rows(fold != number), of_rest, prior, in_part).decision
        p_sim = similarity_posterior(scores[decision.kappa][held_out], tau=decision.tau)
        decided.append(decision.decide_posteriors(rows.p[held_out], p_sim))
        p.append(rows.p[held_out])
        y.append(rows.y[held_out])
    return estimate(decided, torch.cat(p), torch.cat(y), search.goal)


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

    The decision's bank holds train and validation. The estimate is not strictly nested: a fold's labels have no say in
    the choice that is applied to it, but its embeddings do, as part of the banks that the other folds' rows are matched
    against.
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

    def choose(bank: PrototypeBank, keep: Array, wanted: Search) -> Tuning:
        of_rows = {kappa: values[torch.from_numpy(keep)] for kappa, values in scores.items()}
        return tune_on_scores(bank, rows.rows(keep), of_rows, prior, wanted)

    in_part = replace(search, preset=search.preset.for_share(1 - 1 / folds))
    decided, p, y = [], [], []
    for number in np.unique(fold_of_row):
        held_out = rows.rows(fold_of_row == number)
        decided.append(choose(banks[number], fold_of_row != number, in_part).decision.decide(held_out.p, held_out.z))
        p.append(held_out.p)
        y.append(held_out.y)
    tuning = choose(make_bank(pool), np.ones(len(rows), dtype=bool), search)
    return tuning, estimate(decided, torch.cat(p), torch.cat(y), search.goal)


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


def estimate(decided: list[Decided], p_plain: Tensor, y: Tensor, goal: Goal, *, left_out: LeftOut = "fold") -> Estimate:
    """Estimate what decisions earned on rows ``y`` that took no part in choosing them.

    Accuracy, and all that is counted as fixed or broken, is compared with the classifier as it came, ``p_plain``. The
    objective is compared with that of the calibrated classifier, its prior adjusted where that was asked for, as in
    :func:`tdumpra.tuning.tune.tune`.
    """
    p_cls, p_sim, p = (torch.cat([getattr(part, name) for part in decided]) for name in ("p_cls", "p_sim", "p"))
    after, label_before, label = goal.score(p, y), p_plain.argmax(1), p.argmax(1)
    was_right, is_right = label_before == y, label == y
    return Estimate(
        rows=len(y),
        objective=after.objective,
        accuracy=after.accuracy,
        base_objective=goal.score(p_cls, y).objective,
        base_accuracy=goal.score(widen(p_plain), y).accuracy,
        opened=int(sum(int(part.opened.sum()) for part in decided)),
        fixed=int((is_right & ~was_right).sum()),
        broken=int((was_right & ~is_right).sum()),
        fixable=int(((p_sim.argmax(1) == y) & ~was_right).sum()),
        left_out=left_out,
        maximised=goal.objective,
        by_class=_moved_by_class(label_before, label, y, n_classes=p.shape[1]),
    )


def _moved_by_class(before: Tensor, after: Tensor, y: Tensor, *, n_classes: int) -> tuple[tuple[int, int, int], ...]:
    """Count for each class its rows that became right, its rows that became wrong, and others newly called it."""
    gained, lost = (after == y) & (before != y), (after != y) & (before == y)
    called = (after != y) & (after != before)
    columns = (labels[rows].bincount(minlength=n_classes).tolist() for labels, rows in (
        (y, gained), (y, lost), (after, called),
    ))  # fmt: skip
    return tuple(zip(*columns, strict=True))
