"""The comparators: what the gate is compared with.

A comparator's function goes from a :class:`Case` to a posterior on the test rows; it returns ``None`` where its inputs
are absent. To add one, put it into a dictionary beside :data:`COMPARATORS`. This one predicts the class prior:

    def prior_alone(case: Case) -> Tensor:
        return case.decision.prior.expand(len(case.test), -1)

    added = Comparator("how common each class is", prior_alone, needs_bank=False)
    evaluate(case, {**COMPARATORS, "prior_alone": added})
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tdumpra.core.calibration import fit_temperature
from tdumpra.core.neighbours import N_NEIGHBOURS, cache_affinity, class_shares, nearest_neighbour_shares
from tdumpra.core.risk import bayes_gate
from tdumpra.core.rowwise import block_rows, by_rows, normalise, widen
from tdumpra.evaluation.case import Case as Case
from tdumpra.evaluation.rivals import (
    Parts,
    adjusted,
    as_given,
    best_harmless,
    calibrated,
    mean_of_networks,
    mean_of_paths,
    on_test,
    ungated,
)
from tdumpra.tuning.presets import PRESETS, Preset
from tdumpra.tuning.search import Search
from tdumpra.tuning.tune import tune

CACHE_SHARPNESS = (1.0, 3.0, 5.5, 10.0, 20.0)  # around the 5.5 of Tip-Adapter's paper
CACHE_WEIGHT = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_CACHE_ENTRIES = 2**23  # affinities in memory at once


Posterior = Callable[[Case], Tensor | None]


class Comparator(NamedTuple):
    """A row of the results: what a page calls it, and how its posterior is made."""

    words: str  # for a clinician
    posterior: Posterior
    needs_bank: bool = True
    rival: bool = False  # whether the gate is compared with it row by row, over seeds


def knn(case: Case) -> Tensor | None:
    """Return the shares of the classes among the nearest training rows, in the bank's space."""
    cached, index, n_classes = case.cached_rows(), case.index(), case.test.n_classes
    if case.train is None or cached is None:
        return None
    if index is not None:
        y = case.train.y
        return by_rows(lambda z: class_shares(y, index.nearest(z, N_NEIGHBOURS), n_classes=n_classes), case.test.z)
    return nearest_neighbour_shares(*cached, case.test.z, n_classes=n_classes)


def single_prototype(case: Case) -> Tensor | None:
    """Match one direction per class, the mean of its training rows, with a temperature fitted on validation."""
    train, validation = case.train, case.validation
    if train is None or validation is None:
        return None
    step = block_rows(train.z.shape[1])
    blocks = [slice(start, start + step) for start in range(0, len(train.y), step)]
    means = torch.stack([_class_sums(train.z[rows], train.y[rows], case.test.n_classes) for rows in blocks]).sum(0)
    present = means.norm(dim=1) > 0
    means[present] = normalise(means[present])

    def scores(z: Tensor) -> Tensor:
        return by_rows(lambda rows: (normalise(rows).to(means) @ means.T).masked_fill(~present, -torch.inf), z)

    chosen = case.chosen("single_prototype", lambda: {"tau": fit_temperature(scores(validation.z), validation.y)})
    tau: float = chosen["tau"]
    return (scores(case.test.z) / tau).softmax(1)


def _class_sums(z: Tensor, y: Tensor, n_classes: int) -> Tensor:
    unit = normalise(z)
    return torch.nn.functional.one_hot(y, n_classes).to(unit.dtype).T @ unit


def tip_adapter(case: Case) -> Tensor | None:
    """Add a cache of all training rows to the classifier's logits, after Tip-Adapter (Zhang et al., 2022).

    Its few-shot cache has as many rows of each class; where classes are unequal, their affinities are averaged.
    Sharpness and weight are tuned on validation, which the original did on test.
    """
    cached, validation = case.cached_rows(), case.validation
    if cached is None or validation is None:
        return None

    def affinity(z: Tensor, sharpness: tuple[float, ...]) -> Tensor:
        return cache_affinity(*cached, z, sharpness=sharpness, n_classes=case.test.n_classes)

    def adapted(p: Tensor, affinities: Tensor, weight: float) -> Tensor:
        return (p.log() + weight * affinities.to(p)).softmax(1)

    def choose() -> dict[str, float]:
        p_val = widen(validation.p)
        together = max(1, _CACHE_ENTRIES // p_val.numel())  # of many rows or classes, one after the other

        def candidates() -> Iterator[tuple[tuple[float, float], Tensor]]:
            for start in range(0, len(CACHE_SHARPNESS), together):
                some = CACHE_SHARPNESS[start : start + together]
                for sharpness, on_val in zip(some, affinity(validation.z, some), strict=True):
                    for weight in (0.0, *CACHE_WEIGHT):
                        yield (sharpness, weight), adapted(p_val, on_val, weight)

        (sharpness, weight), _ = best_harmless(candidates(), p_val, validation.y, case.goal)
        return {"sharpness": sharpness, "weight": weight}

    chosen = case.chosen("tip_adapter", choose)
    of_test = affinity(case.test.z, (chosen["sharpness"],))[0]
    return by_rows(lambda p, rows: adapted(p, rows, chosen["weight"]), widen(case.test.p), of_test)


def _gate_of(case: Case, name: str, preset: Preset) -> Tensor | None:
    """Apply another gate over the same bank, tuned for the same goal."""
    validation = case.validation
    if validation is None:
        return None
    bank, prior = case.unseen_bank or case.decision.bank, case.decision.prior

    decision = case.fitted(name, lambda: tune(bank, validation, prior, Search(preset, case.goal)).decision)
    case.chosen(name, decision.to_json)
    of_case = replace(decision, bank=case.decision.bank, prior=prior)
    return torch.cat([part.p for part in of_case.chunks(case.test.p, case.test.z)])


def oracle(case: Case) -> Tensor:
    """Follow the path that happens to be right (the classifier, where both or neither are): an upper bound."""
    wrong_cls, wrong_sim = (
        (p.argmax(1) != case.test.y).double().numpy() for p in (case.decided.p_cls, case.decided.p_sim)
    )
    follow = torch.from_numpy(bayes_gate(wrong_cls, wrong_sim))
    return torch.where(follow[:, None], case.decided.p_sim, case.decided.p_cls)


def _alone(words: str, posterior: Posterior) -> Comparator:
    return Comparator(words, posterior, needs_bank=False, rival=True)


def _adjusted(name: str, words: str, parts: Callable[[Case], Parts | None], *, needs_bank: bool = False) -> Comparator:
    """Divide a posterior by the power of the class prior that scores best on the rows of choice."""
    return Comparator(
        f"{words}, {_PRIOR}",
        lambda case: on_test(case, name, adjusted(case, name, parts(case))),
        needs_bank,
        rival=True,
    )


_PRIOR = "corrected for how common each class is"  # divided by a fitted power of the class prior
COMPARATORS: dict[str, Comparator] = {
    "baseline": _alone("another run’s classifier alone", lambda case: as_given(case, "p_baseline")),
    # the classifier as it is; what calibration alone brings is the row below it
    "student": _alone("classifier alone", lambda case: as_given(case, "p")),
    "teacher": _alone("averaged classifier (teacher) alone", lambda case: as_given(case, "p_teacher")),
    # fitted also where the decision uses no temperature
    "temperature": _alone(
        "classifier, confidence recalibrated", lambda case: on_test(case, "temperature", calibrated(case, "p"))
    ),
    # the fair rival, since retrieval ignores the class prior too
    "logit_adjusted": _adjusted("logit_adjusted", "classifier", lambda case: calibrated(case, "p")),
    "teacher_adjusted": _adjusted("teacher_adjusted", "teacher", lambda case: calibrated(case, "p_teacher")),
    # of the network in whose space the bank lives, where that is another run's
    "second": _alone("second network’s classifier alone", lambda case: as_given(case, "p_second")),
    "second_temperature": _alone(
        "second network, confidence recalibrated",
        lambda case: on_test(case, "second_temperature", calibrated(case, "p_second")),
    ),
    "second_adjusted": _adjusted("second_adjusted", "second network", lambda case: calibrated(case, "p_second")),
    # two networks are better than one, with a bank or without: a bank in a space of its own must beat this
    "ensemble": _alone(
        "both networks’ classifiers averaged, without stored cases",
        lambda case: on_test(case, "ensemble", mean_of_networks(case)),
    ),
    "ensemble_adjusted": _adjusted("ensemble_adjusted", "both networks averaged", mean_of_networks),
    "knn": Comparator("similar cases alone: the 16 nearest training cases", knn),
    "single_prototype": Comparator("similar cases alone: one average case per class", single_prototype),
    "tip_adapter": Comparator("classifier plus every training case", tip_adapter),
    "similarity": Comparator("similar cases alone: the prototypes", lambda case: case.decided.p_sim, rival=True),
    "average": Comparator(
        "classifier and similar cases, half and half, without a gate",
        lambda case: (case.decided.p_cls + case.decided.p_sim) / 2,
        rival=True,
    ),
    "average_adjusted": _adjusted(
        "average_adjusted", "classifier and similar cases, half and half", mean_of_paths, needs_bank=True
    ),
    # the gate's own dials on every row: what is left for the gate to bring is the choice of rows
    "ungated": Comparator(
        f"classifier and similar cases, weighted, {_PRIOR}, without a gate",
        lambda case: on_test(case, "ungated", ungated(case)),
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
