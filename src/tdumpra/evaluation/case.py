"""What is scored: a fitted decision with its rows, and the outer folds of one seed joined into one set of test rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tdumpra.core.bootstrap import MOST_CURVES, Draws
from tdumpra.core.gate import GateSignals
from tdumpra.evaluation.settings import MOST_CLASSES, EvaluateConfig
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.bank_faiss import NeighbourIndex, has_faiss
from tdumpra.method.decision import Decided, Decision
from tdumpra.method.outputs import ScoredOutputs, TestOutputs, TrainOutputs, ValidationOutputs, join
from tdumpra.tuning.goal import Goal

Array = np.ndarray
T = TypeVar("T")
CACHED_ROWS = 25_000  # training rows
_CHOSEN = "settings of "  # names the fits that are a comparator's own settings
_INDEX = "index of "  # names those that are gone when a comparator is done


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Case:
    """Everything a comparator may use. Comparators fit on ``validation``, for ``goal``."""

    train: TrainOutputs | None  # absent after loading a saved model, which keeps no training row
    validation: ValidationOutputs | None
    test: ScoredOutputs
    decision: Decision
    decided: Decided  # the decision's own result on the test rows
    pool: ValidationOutputs | None = None  # validation rows of all seeds, where the decision was chosen on them
    unseen_bank: PrototypeBank | None = None  # one without validation rows, where the decision's own holds them
    pool_scores: Callable[[float], Tensor] | None = None  # retrieval's class scores of ``pool`` for a kappa
    retune: Callable[[Array], Decision] | None = None  # chooses again on the rows of choice with these numbers
    goal: Goal = field(default_factory=Goal)  # what everything was tuned for
    first: Case | None = None  # of a network that never saw the validation rows, where this one's has: it has the fits
    fits: dict[str, Any] = field(default_factory=dict, init=False, repr=False)  # kept for the validation rows

    @property
    def choice(self) -> ValidationOutputs | None:
        """Return the rows on which the decision, and thus a comparator's own settings, are chosen."""
        return self.pool if self.pool is not None else self.validation

    def cached_rows(self) -> tuple[Tensor, Tensor] | None:
        """Return embeddings and labels of the training rows that a query is compared with, one by one.

        Of more than :data:`CACHED_ROWS` it is so many, drawn at random: what it costs must not grow with the square of
        the rows.
        """
        if self.train is None:
            return None
        if len(self.train) <= CACHED_ROWS:
            return self.train.z, self.train.y
        drawn = np.sort(np.random.default_rng(0).choice(len(self.train), CACHED_ROWS, replace=False))
        return self.train.z[drawn], self.train.y[drawn]

    def index(self) -> NeighbourIndex | None:
        """Return what finds the nearest training rows, of more than :data:`CACHED_ROWS`, where faiss is installed.

        Elsewhere there is nothing: queries are compared with :meth:`cached_rows`.
        """
        if self.train is None or len(self.train) <= CACHED_ROWS or not has_faiss():
            return None
        kept = f"{_INDEX}{id(self.train)}"  # another network has other rows
        if kept not in self.fits:
            self.fits[kept] = NeighbourIndex(self.train.z)
        index: NeighbourIndex = self.fits[kept]
        return index

    def drop_index(self) -> None:
        """Forget the index: of millions of rows it takes as much memory as several posteriors."""
        for name in [name for name in self.fits if name.startswith(_INDEX)]:
            del self.fits[name]

    def fitted(self, name: str, fit: Callable[[], T]) -> T:
        """Return what a comparator fits on train and validation rows, fitting it at the first call only."""
        if name not in self.fits:
            if self.first is not None:
                raise RuntimeError(f"{name} must be fitted for the network that never saw the validation rows")
            self.fits[name] = fit()
        found: T = self.fits[name]
        return found

    def refitted(self, train: TrainOutputs, test: ScoredOutputs, decision: Decision) -> Case:
        """Return the case of a second network, which has seen the validation rows: fits stay those of this one."""
        decided = decision.decide(test.p, test.z)
        return replace(self, train=train, test=test, decision=decision, decided=decided, first=self, retune=None)

    def chosen(self, name: str, choose: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the settings that a comparator chooses for itself, which the evaluation lists under ``rivals``."""
        return self.fitted(_CHOSEN + name, choose)

    def choices(self) -> dict[str, dict[str, Any]]:
        """Return what each comparator has chosen for itself."""
        return {name.removeprefix(_CHOSEN): each for name, each in self.fits.items() if name.startswith(_CHOSEN)}

    def choice_scores(self, kappa: float) -> Tensor | None:
        """Return retrieval's class scores of the rows of choice, by a bank that holds none of them."""
        if self.first is not None:
            return self.first.choice_scores(kappa)
        if self.pool is not None:
            return None if self.pool_scores is None else self.pool_scores(kappa)
        bank = self.unseen_bank or self.decision.bank
        return None if self.validation is None else bank.class_scores(self.validation.z, kappa=kappa)

    def chosen_again(self, numbers: Array) -> Case:
        """Return the case whose decision was tuned on the rows of choice with these ``numbers``, which may repeat."""
        if self.retune is None:
            raise ValueError("this decision cannot be tuned again")
        decision, scores = self.retune(numbers), self.pool_scores
        drawn: dict[str, Any] = {}
        if self.pool is not None:
            drawn["pool"] = self.pool.rows(numbers)
            drawn["pool_scores"] = None if scores is None else lambda kappa: scores(kappa)[numbers]
        elif self.validation is not None:
            drawn["validation"] = self.validation.rows(numbers)
        return replace(self, decision=decision, decided=decision.decide(self.test.p, self.test.z), **drawn)

    def on_validation(self) -> Case | None:
        """Return the case with the validation rows in place of test, for choices that test must not make."""
        if self.first is not None:
            return self.first.on_validation()
        if self.validation is None:
            return None
        decision = replace(self.decision, bank=self.unseen_bank or self.decision.bank)
        decided = decision.decide(self.validation.p, self.validation.z)
        case = replace(self, test=self.validation, decision=decision, decided=decided)
        case.fits.update(self.fits)
        return case


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scored:
    """What is scored: the test rows of all cases, one case after the other, and what the decisions did to them."""

    cases: tuple[Case, ...]
    test: ScoredOutputs
    decided: Decided
    lesion: Array  # the number of each row's group
    unsure: Array  # whether the classifier is unsure of a row

    @property
    def y(self) -> Array:
        """Return the labels of the test rows."""
        return self.test.y.numpy()

    @property
    def goal(self) -> Goal:
        """Return what everything was tuned for."""
        return self.cases[0].goal


def joined_test(cases: Sequence[Case]) -> ScoredOutputs:
    """Join the test rows of outer folds. No group, nor a row's own id, may be tested twice."""
    tests = [case.test for case in cases]
    if len(tests) == 1:
        return tests[0]
    if len({rows.n_classes for rows in tests}) > 1:
        raise ValueError("the folds of a seed need the same classes")
    if len({rows.groups is None for rows in tests}) > 1:
        raise ValueError("the folds of a seed need groups for all test rows, or for none")
    for what in ("groups", "ids"):
        names = [np.unique(of_fold) for rows in tests if (of_fold := getattr(rows, what)) is not None]
        found, times = np.unique(np.concatenate([np.empty(0, np.str_), *names]), return_counts=True)
        if (times > 1).any():
            twice = str(found[times.argmax()])
            raise ValueError(f"{twice!r} is tested in two folds: each of the {what} belongs to one")
    shared = set.intersection(*(set(rows.metadata) for rows in tests))
    return TestOutputs(
        **{name: join([getattr(rows, name) for rows in tests]) for name in ("p", "z", "y", "groups", "ids")},
        metadata={name: np.concatenate([rows.metadata[name] for rows in tests]) for name in tests[0].metadata
                  if name in shared},
    )  # fmt: skip


def joined_decided(cases: Sequence[Case]) -> Decided:
    """Join what the decisions of outer folds did to their own test rows."""
    if len(cases) == 1:
        return cases[0].decided
    p, opened, signals, p_cls, p_sim = zip(*(case.decided for case in cases), strict=True)
    each = GateSignals(*(torch.cat(column) for column in zip(*signals, strict=True)))
    return Decided(torch.cat(p), torch.cat(opened), each, torch.cat(p_cls), torch.cat(p_sim))


def part_notes(scored: Scored, settings: EvaluateConfig, draws: Draws | None) -> list[str]:
    """Say where a part stands for all, or something was left out."""
    notes, n_classes = [], scored.test.n_classes
    if not settings.chosen_classes(n_classes):
        notes.append(
            f"with more than {MOST_CLASSES} classes, sensitivities at fixed specificities are given for those that "
            "evaluate.sensitivity_classes names"
        )
    if draws is not None and n_classes > MOST_CURVES:
        notes.append(
            f"with more than {MOST_CURVES} classes, intervals of the mean AUROC follow the rows' weights to first order"
        )
    if any(case.train is not None and len(case.train) > CACHED_ROWS for case in scored.cases):
        which = "tip_adapter, which compares" if has_faiss() else "knn and tip_adapter, which compare"
        notes.append(
            f"{which} a case with training cases one by one, {'has' if has_faiss() else 'have'} {CACHED_ROWS:,} of "
            "them, drawn at random"
        )
        if has_faiss():
            notes.append("knn finds the nearest of all training cases by an index of faiss, which may miss a few")
    if draws is not None and draws.rows is not None:
        notes.append(
            f"the intervals are those of {len(draws.rows):,} test rows, whole groups drawn at random, narrowed to the "
            "number of all groups (m out of n bootstrap)"
        )
    return notes
