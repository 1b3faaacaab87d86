"""The comparators: what the gate is compared with.

A comparator's function goes from a :class:`Case` to a posterior on the test rows; it returns ``None`` where its inputs
are absent. To add one, put it into a dictionary beside :data:`COMPARATORS`. This one predicts the class prior:

    def prior_alone(case: Case) -> Tensor:
        return case.decision.prior.expand(len(case.test), -1)

    added = Comparator("how common each class is", prior_alone, needs_bank=False)
    evaluate(case, {**COMPARATORS, "prior_alone": added})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from tdumpra.core.calibration import adjust_prior, apply_temperature, fit_temperature
from tdumpra.core.neighbours import cache_affinity, nearest_neighbour_shares
from tdumpra.core.risk import bayes_gate
from tdumpra.core.rowwise import normalise, widen
from tdumpra.evaluation.case import Case as Case
from tdumpra.method.decision import Decision
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.presets import PRESETS, Preset
from tdumpra.tuning.search import Search
from tdumpra.tuning.tune import choose_prior_exponent, tune

CACHE_SHARPNESS = (1.0, 3.0, 5.5, 10.0, 20.0)  # around the 5.5 of Tip-Adapter's paper
CACHE_WEIGHT = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
T = TypeVar("T")


Posterior = Callable[[Case], Tensor | None]
_Parts = tuple[Tensor, Tensor]  # a posterior on the rows of choice, and on the test rows


class Comparator(NamedTuple):
    """A row of the results: what a page calls it, and how its posterior is made."""

    words: str  # for a clinician
    posterior: Posterior
    needs_bank: bool = True
    rival: bool = False  # whether the gate is compared with it row by row, over seeds


def _on_test(parts: _Parts | None) -> Tensor | None:
    return None if parts is None else parts[1]


def _as_given(case: Case, column: str) -> Tensor | None:
    p = getattr(case.test, column)
    return None if p is None else widen(p)


def _given(case: Case, column: str) -> _Parts | None:
    """Return a posterior as it was given; ``None`` unless both parts have it."""
    chosen_on, test = (getattr(rows, column, None) for rows in (case.choice, case.test))
    return None if chosen_on is None or test is None else (widen(chosen_on), widen(test))


def _calibrated(case: Case, column: str) -> _Parts | None:
    """Return a posterior with a temperature fitted on the rows of choice."""
    parts, rows = _given(case, column), case.choice
    if parts is None or rows is None:
        return None
    fitted = case.fitted(f"temperature of {column}", lambda: fit_temperature(parts[0].log(), rows.y))
    return apply_temperature(parts[0], fitted), apply_temperature(parts[1], fitted)


def _mean(case: Case) -> _Parts | None:
    own, other = _calibrated(case, "p"), _calibrated(case, "p_second")
    return None if own is None or other is None else ((own[0] + other[0]) / 2, (own[1] + other[1]) / 2)


def _adjusted(case: Case, name: str, parts: _Parts | None) -> Tensor | None:
    """Divide by the power of the class prior that scores best on the rows of choice."""
    rows, prior = case.choice, case.decision.prior
    if parts is None or rows is None:
        return None
    exponent = case.fitted(
        f"prior exponent of {name}",
        lambda: choose_prior_exponent(parts[0], rows.y, prior, case.goal),
    )
    return adjust_prior(parts[1], prior, exponent)


def knn(case: Case) -> Tensor | None:
    """Return the shares of the classes among the nearest training rows, in the bank's space."""
    if case.train is None:
        return None
    return nearest_neighbour_shares(case.train.z, case.train.y, case.test.z, n_classes=case.test.n_classes)


def single_prototype(case: Case) -> Tensor | None:
    """Match one direction per class, the mean of its training rows, with a temperature fitted on validation."""
    train, validation = case.train, case.validation
    if train is None or validation is None:
        return None
    votes = torch.nn.functional.one_hot(train.y, case.test.n_classes).to(normalise(train.z).dtype)
    means = votes.T @ normalise(train.z)
    present = means.norm(dim=1) > 0
    means[present] = normalise(means[present])

    def scores(z: Tensor) -> Tensor:
        return (normalise(z).to(means) @ means.T).masked_fill(~present, -torch.inf)

    tau = case.fitted("single_prototype", lambda: fit_temperature(scores(validation.z), validation.y))
    return (scores(case.test.z) / tau).softmax(1)


def tip_adapter(case: Case) -> Tensor | None:
    """Add a cache of all training rows to the classifier's logits, after Tip-Adapter (Zhang et al., 2022).

    Its few-shot cache has as many rows of each class; where classes are unequal, their affinities are averaged.
    Sharpness and weight are tuned on validation, which the original did on test.
    """
    train, validation = case.train, case.validation
    if train is None or validation is None:
        return None

    def affinity(z: Tensor, sharpness: tuple[float, ...]) -> Tensor:
        return cache_affinity(train.z, train.y, z, sharpness=sharpness, n_classes=case.test.n_classes)

    def adapted(p: Tensor, affinities: Tensor, weight: float) -> Tensor:
        return (p.log() + weight * affinities.to(p)).softmax(1)

    def choose() -> tuple[float, float]:
        p_val = widen(validation.p)
        on_val = dict(zip(CACHE_SHARPNESS, affinity(validation.z, CACHE_SHARPNESS), strict=True))
        grid = [(sharpness, weight) for sharpness in CACHE_SHARPNESS for weight in (0.0, *CACHE_WEIGHT)]
        candidates = (((s, w), adapted(p_val, on_val[s], w)) for s, w in grid)
        return best_harmless(candidates, p_val, validation.y, case.goal)

    sharpness, weight = case.fitted("tip_adapter", choose)
    return adapted(widen(case.test.p), affinity(case.test.z, (sharpness,))[0], weight)


def _gate_of(case: Case, name: str, preset: Preset) -> Tensor | None:
    """Apply another gate over the same bank, tuned for the same goal."""
    validation = case.validation
    if validation is None:
        return None
    bank, prior = case.unseen_bank or case.decision.bank, case.decision.prior

    def choose() -> Decision:
        return tune(bank, validation, prior, Search(preset, case.goal)).decision

    return replace(case.fitted(name, choose), bank=case.decision.bank).decide(case.test.p, case.test.z).p


def oracle(case: Case) -> Tensor:
    """Follow the path that happens to be right (the classifier, where both or neither are): an upper bound."""
    wrong_cls, wrong_sim = (
        (p.argmax(1) != case.test.y).double().numpy() for p in (case.decided.p_cls, case.decided.p_sim)
    )
    follow = torch.from_numpy(bayes_gate(wrong_cls, wrong_sim))
    return torch.where(follow[:, None], case.decided.p_sim, case.decided.p_cls)


def _alone(words: str, posterior: Posterior) -> Comparator:
    return Comparator(words, posterior, needs_bank=False, rival=True)


_PRIOR = "corrected for how common each class is"  # divided by a fitted power of the class prior
COMPARATORS: dict[str, Comparator] = {
    "baseline": _alone("another run’s classifier alone", lambda case: _as_given(case, "p_baseline")),
    "student": _alone("classifier alone", lambda case: _as_given(case, "p")),
    "teacher": _alone("averaged classifier (teacher) alone", lambda case: _as_given(case, "p_teacher")),
    # fitted also where the decision uses no temperature
    "temperature": _alone("classifier, confidence recalibrated", lambda case: _on_test(_calibrated(case, "p"))),
    # the fair rival, since retrieval ignores the class prior too
    "logit_adjusted": _alone(f"classifier, {_PRIOR}", lambda case: _adjusted(case, "classifier", _given(case, "p"))),
    "teacher_adjusted": _alone(
        f"teacher, {_PRIOR}", lambda case: _adjusted(case, "teacher", _given(case, "p_teacher"))
    ),
    # of the network in whose space the bank lives, where that is another run's
    "second": _alone("second network’s classifier alone", lambda case: _on_test(_calibrated(case, "p_second"))),
    "second_adjusted": _alone(
        f"second network, {_PRIOR}", lambda case: _adjusted(case, "second", _calibrated(case, "p_second"))
    ),
    # two networks are better than one, with a bank or without: a bank in a space of its own must beat this
    "ensemble": _alone("both networks’ classifiers averaged, without stored cases", lambda case: _on_test(_mean(case))),
    "ensemble_adjusted": _alone(
        f"both networks averaged, {_PRIOR}", lambda case: _adjusted(case, "ensemble", _mean(case))
    ),
    "knn": Comparator("similar cases alone: the 16 nearest training cases", knn),
    "single_prototype": Comparator("similar cases alone: one average case per class", single_prototype),
    "tip_adapter": Comparator("classifier plus every training case", tip_adapter),
    "similarity": Comparator("similar cases alone: the prototypes", lambda case: case.decided.p_sim, rival=True),
    "average": Comparator(
        "classifier and similar cases, half and half, without a gate",
        lambda case: (case.decided.p_cls + case.decided.p_sim) / 2,
        rival=True,
    ),
    # the five clauses with the paper's grid of theta, its alpha of 0.9, and no temperatures
    "paper_gate": Comparator("the gate as published", lambda case: _gate_of(case, "paper_gate", PRESETS["paper"])),
    "calibrated_gate": Comparator(
        "the gate that compares chances of being right",
        lambda case: _gate_of(case, "calibrated_gate", Preset(gates=("calibrated",))),
    ),
    "gate": Comparator("classifier and similar cases, joined by the tuned gate", lambda case: case.decided.p),
    "oracle": Comparator("upper bound: whichever of the two happens to be right", oracle),
}


def words_of(name: str) -> str:
    """Return a comparator's words; none for one that is not in the table."""
    return COMPARATORS[name].words if name in COMPARATORS else ""


def best_harmless(candidates: Iterable[tuple[T, Tensor]], p: Tensor, y: Tensor, goal: Goal) -> T:
    """Return the candidate whose posterior scores best at no lower accuracy than ``p``; the first of equals.

    One candidate must leave ``p`` as it is, so that there always is an answer.
    """
    floor = goal.score(p, y).accuracy
    scored = [(key, goal.score(posterior, y)) for key, posterior in candidates]
    return max((pair for pair in scored if pair[1].accuracy >= floor), key=lambda pair: pair[1].objective)[0]
