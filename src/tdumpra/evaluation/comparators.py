"""What the gate is compared with. A comparator is a function from a :class:`Case` to a posterior on the test rows.

To add one, write the function and put it into a dictionary beside :data:`COMPARATORS`. One whose inputs are absent
returns ``None`` and is left out of the table. This one knows nothing but how common each class is:

    def prior_alone(case: Case) -> Tensor:
        return case.decision.prior.expand(len(case.test), -1)

    evaluate(case, {**COMPARATORS, "prior_alone": prior_alone}, without_bank=WITHOUT_BANK | {"prior_alone"})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from tdumpra.core.calibration import adjust_prior, apply_temperature, fit_temperature
from tdumpra.core.metrics import Objective
from tdumpra.core.neighbours import cache_affinity, nearest_neighbour_shares
from tdumpra.core.risk import bayes_gate
from tdumpra.core.sphere import normalise
from tdumpra.method.arrays import widen
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decided, Decision
from tdumpra.method.outputs import ScoredOutputs, TrainOutputs, ValidationOutputs
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.presets import PRESETS, Preset
from tdumpra.tuning.search import Search
from tdumpra.tuning.tune import choose_prior_exponent, tune

CACHE_SHARPNESS = (1.0, 3.0, 5.5, 10.0, 20.0)  # around the 5.5 of Tip-Adapter's paper
CACHE_WEIGHT = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Case:
    """Everything a comparator may use. Anything it fits, it fits on ``validation``, under ``goal``."""

    train: TrainOutputs | None  # absent after loading a saved model, which keeps no training row
    validation: ValidationOutputs | None
    test: ScoredOutputs
    decision: Decision
    decided: Decided  # the decision's own result on the test rows
    pool: ValidationOutputs | None = None  # validation rows of all seeds, where the decision was chosen on them
    unseen_bank: PrototypeBank | None = None  # one without validation rows, where the decision's own holds them
    objective: Objective = "balanced_accuracy"
    costs: np.ndarray | None = None

    @property
    def goal(self) -> Goal:
        """What everything was tuned for."""
        return Goal(self.objective, self.costs)

    @property
    def choice(self) -> ValidationOutputs | None:
        """The rows on which a posterior's own settings are chosen: those that the decision was chosen on."""
        return self.pool if self.pool is not None else self.validation

    def rehearsal(self) -> Case | None:
        """The same case with the validation rows in the place of test, for choices that test must not make."""
        if self.validation is None:
            return None
        decision = replace(self.decision, bank=self.unseen_bank or self.decision.bank)
        decided = decision.decide(self.validation.p, self.validation.z)
        return replace(self, test=self.validation, decision=decision, decided=decided)


Comparator = Callable[[Case], Tensor | None]


def student(case: Case) -> Tensor:
    """The classifier as it came."""
    return widen(case.test.p)


def teacher(case: Case) -> Tensor | None:
    """The teacher's own classifier, where it was given."""
    return None if case.test.p_teacher is None else widen(case.test.p_teacher)


def temperature(case: Case) -> Tensor | None:
    """The classifier with a fitted temperature, also where the decision uses none."""
    if case.choice is None:
        return None
    fitted = fit_temperature(widen(case.choice.p).log(), case.choice.y)
    return apply_temperature(widen(case.test.p), fitted)


def logit_adjusted(case: Case) -> Tensor | None:
    """The classifier divided by a power of the class prior: the honest rival, since retrieval ignores the prior too."""
    return None if case.choice is None else _adjusted(case, case.choice.p, case.choice.y, case.test.p)


def teacher_adjusted(case: Case) -> Tensor | None:
    """The same for the teacher's own classifier."""
    if case.choice is None or case.choice.p_teacher is None or case.test.p_teacher is None:
        return None
    return _adjusted(case, case.choice.p_teacher, case.choice.y, case.test.p_teacher)


def _adjusted(case: Case, p_val: Tensor, y_val: Tensor, p_test: Tensor) -> Tensor:
    prior = case.decision.prior
    exponent = choose_prior_exponent(widen(p_val), y_val, prior, case.goal)
    return adjust_prior(widen(p_test), prior, exponent)


def second(case: Case) -> Tensor | None:
    """Where the bank lives in another run's space: that network's own classifier, calibrated, by itself."""
    both = _both(case)
    return None if both is None else both[1][1]


def second_adjusted(case: Case) -> Tensor | None:
    """The same, divided by a fitted power of the class prior."""
    both = _both(case)
    return None if both is None or case.choice is None else _adjusted(case, both[0][1], case.choice.y, both[1][1])


def ensemble(case: Case) -> Tensor | None:
    """The mean of the two networks' own classifiers, calibrated, and no bank.

    Two networks are better than one, with a bank or without: this is what a bank in a space of its own must beat.
    """
    both = _both(case)
    return None if both is None else _mean(both[1])


def ensemble_adjusted(case: Case) -> Tensor | None:
    """The same, divided by a fitted power of the class prior."""
    both = _both(case)
    if both is None or case.choice is None:
        return None
    return _adjusted(case, _mean(both[0]), case.choice.y, _mean(both[1]))


_Pair = tuple[Tensor, Tensor]  # the classifier's posterior, and the second network's


def _both(case: Case) -> tuple[_Pair, _Pair] | None:
    """The two networks' calibrated posteriors, on the rows of choice and on test."""
    rows, test = case.choice, case.test
    if rows is None or rows.p_second is None or test.p_second is None:
        return None
    own, other = (fit_temperature(widen(p).log(), rows.y) for p in (rows.p, rows.p_second))

    def calibrated(p: Tensor, p_second: Tensor) -> _Pair:
        return apply_temperature(widen(p), own), apply_temperature(widen(p_second), other)

    return calibrated(rows.p, rows.p_second), calibrated(test.p, test.p_second)


def _mean(pair: _Pair) -> Tensor:
    return (pair[0] + pair[1]) / 2


def baseline(case: Case) -> Tensor | None:
    """Another run's classifier on the same rows, where one was named."""
    return None if case.test.p_baseline is None else widen(case.test.p_baseline)


def knn(case: Case) -> Tensor | None:
    """Shares of the classes among the nearest training rows, in the bank's space."""
    if case.train is None:
        return None
    return nearest_neighbour_shares(case.train.z, case.train.y, case.test.z, n_classes=case.test.n_classes)


def single_prototype(case: Case) -> Tensor | None:
    """One direction per class, the mean of its training rows, with a temperature fitted on validation."""
    if case.train is None or case.validation is None:
        return None
    votes = torch.nn.functional.one_hot(case.train.y, case.test.n_classes).to(normalise(case.train.z).dtype)
    means = votes.T @ normalise(case.train.z)
    present = means.norm(dim=1) > 0
    means[present] = normalise(means[present])

    def scores(z: Tensor) -> Tensor:
        return (normalise(z).to(means) @ means.T).masked_fill(~present, -torch.inf)

    tau = fit_temperature(scores(case.validation.z), case.validation.y)
    return (scores(case.test.z) / tau).softmax(1)


def tip_adapter(case: Case) -> Tensor | None:
    """A cache of all training rows on top of the classifier's logits, after Tip-Adapter (Zhang et al., 2022).

    Its few-shot cache has as many rows of each class; where classes are unequal, their affinities are averaged.
    Sharpness and weight are tuned on validation, which the original did on test.
    """
    if case.train is None or case.validation is None:
        return None
    train, p_val = case.train, widen(case.validation.p)

    def affinity(z: Tensor, sharpness: tuple[float, ...]) -> Tensor:
        return cache_affinity(train.z, train.y, z, sharpness=sharpness, n_classes=case.test.n_classes)

    def adapted(p: Tensor, affinities: Tensor, weight: float) -> Tensor:
        return (p.log() + weight * affinities.to(p)).softmax(1)

    on_val = dict(zip(CACHE_SHARPNESS, affinity(case.validation.z, CACHE_SHARPNESS), strict=True))
    grid = [(sharpness, weight) for sharpness in CACHE_SHARPNESS for weight in (0.0, *CACHE_WEIGHT)]
    candidates = (((s, w), adapted(p_val, on_val[s], w)) for s, w in grid)
    sharpness, weight = best_harmless(candidates, p_val, case.validation.y, case.goal)
    return adapted(widen(case.test.p), affinity(case.test.z, (sharpness,))[0], weight)


def similarity(case: Case) -> Tensor:
    """Retrieval alone."""
    return case.decided.p_sim


def average(case: Case) -> Tensor:
    """Half classifier, half retrieval, on every row: fusion without a gate."""
    return (case.decided.p_cls + case.decided.p_sim) / 2


def paper_gate(case: Case) -> Tensor | None:
    """The five clauses as the paper sets them: its grid of theta, its alpha of 0.9, no temperatures."""
    return _gate_of(case, PRESETS["paper"])


def calibrated_gate(case: Case) -> Tensor | None:
    """The gate that opens where retrieval's fitted chance of being right is ahead."""
    return _gate_of(case, Preset(gates=("calibrated",)))


def gate(case: Case) -> Tensor:
    """The method."""
    return case.decided.p


def oracle(case: Case) -> Tensor:
    """Upper bound: of the two paths, the one that happens to be right (the classifier, where both or neither are)."""
    wrong_cls, wrong_sim = (
        (p.argmax(1) != case.test.y).double().numpy() for p in (case.decided.p_cls, case.decided.p_sim)
    )
    follow = torch.from_numpy(bayes_gate(wrong_cls, wrong_sim))
    return torch.where(follow[:, None], case.decided.p_sim, case.decided.p_cls)


COMPARATORS: dict[str, Comparator] = {
    function.__name__: function
    for function in (
        baseline, student, teacher, temperature, logit_adjusted, teacher_adjusted, second, second_adjusted, ensemble,
        ensemble_adjusted, knn, single_prototype, tip_adapter, similarity, average, paper_gate, calibrated_gate, gate,
        oracle,
    )
}  # fmt: skip
WITHOUT_BANK = frozenset(  # need no second path
    {
        "baseline", "student", "teacher", "temperature", "logit_adjusted", "teacher_adjusted", "second",
        "second_adjusted", "ensemble", "ensemble_adjusted",
    }
)  # fmt: skip


def _gate_of(case: Case, preset: Preset) -> Tensor | None:
    """Another gate over the same bank, tuned for the same goal."""
    if case.validation is None:
        return None
    bank, search = case.unseen_bank or case.decision.bank, Search(preset, case.goal)
    tuned = tune(bank, case.validation, case.decision.prior, search)
    return replace(tuned.decision, bank=case.decision.bank).decide(case.test.p, case.test.z).p


def best_harmless(candidates: Iterable[tuple[T, Tensor]], p: Tensor, y: Tensor, goal: Goal) -> T:
    """The candidate whose posterior scores best at no lower accuracy than ``p``; the first of equals.

    One candidate must leave ``p`` as it is, so that there always is an answer.
    """
    floor = goal.score(p, y).accuracy
    scored = [(key, goal.score(posterior, y)) for key, posterior in candidates]
    return max((pair for pair in scored if pair[1].accuracy >= floor), key=lambda pair: pair[1].objective)[0]
