"""What is scored: a fitted decision with its rows, and the outer folds of one seed joined into one set of test rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tdumpra.core.gate import GateSignals
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decided, Decision
from tdumpra.method.outputs import ScoredOutputs, TestOutputs, TrainOutputs, ValidationOutputs, join
from tdumpra.tuning.goal import Goal

Array = np.ndarray
T = TypeVar("T")
_CHOSEN = "settings of "  # names the fits that are a comparator's own settings


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
    fits: dict[str, Any] = field(default_factory=dict, init=False, repr=False)  # kept for the validation rows

    @property
    def choice(self) -> ValidationOutputs | None:
        """Return the rows on which the decision, and thus a comparator's own settings, are chosen."""
        return self.pool if self.pool is not None else self.validation

    def fitted(self, name: str, fit: Callable[[], T]) -> T:
        """Return what a comparator fits on train and validation rows, fitting it at the first call only."""
        if name not in self.fits:
            self.fits[name] = fit()
        found: T = self.fits[name]
        return found

    def chosen(self, name: str, choose: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the settings that a comparator chooses for itself, which the evaluation lists under ``rivals``."""
        return self.fitted(_CHOSEN + name, choose)

    def choices(self) -> dict[str, dict[str, Any]]:
        """Return what each comparator has chosen for itself."""
        return {name.removeprefix(_CHOSEN): each for name, each in self.fits.items() if name.startswith(_CHOSEN)}

    def choice_scores(self, kappa: float) -> Tensor | None:
        """Return retrieval's class scores of the rows of choice, by a bank that holds none of them."""
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
        if self.validation is None:
            return None
        decision = replace(self.decision, bank=self.unseen_bank or self.decision.bank)
        decided = decision.decide(self.validation.p, self.validation.z)
        case = replace(self, test=self.validation, decision=decision, decided=decided)
        case.fits.update(self.fits)
        return case


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scored:
    """Test rows with every comparator's posterior; of several cases, one after the other."""

    cases: tuple[Case, ...]
    test: ScoredOutputs
    decided: Decided
    posteriors: Mapping[str, Array]
    on_validation: tuple[Mapping[str, Tensor], ...]  # by case; empty where a case has no validation rows

    @property
    def y(self) -> Array:
        """Return the labels of the test rows."""
        return self.test.y.numpy()

    @property
    def goal(self) -> Goal:
        """Return what everything was tuned for."""
        return self.cases[0].goal

    def put_together(self, names: Sequence[str]) -> Array:
        """Return a posterior that follows another comparator in each case."""
        if len(set(names)) == 1:
            return self.posteriors[names[0]]
        ends = np.cumsum([len(case.test) for case in self.cases])[:-1]
        parts = [np.split(self.posteriors[name], ends)[i] for i, name in enumerate(names)]
        return np.concatenate(parts)


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
