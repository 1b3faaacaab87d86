"""The comparators' posteriors, one after the other, and their figures as functions of the rows' weights.

A replicate draws the test lesions again. Where the choice is to be part of the interval, it draws the validation
lesions too: the gate and every rival are chosen again on them, as the run chose them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tdumpra.core import metrics
from tdumpra.core.bootstrap import MetricSums, drawn_groups
from tdumpra.core.groups import lesion_numbers
from tdumpra.evaluation.case import Case, Scored
from tdumpra.evaluation.comparators import Comparator
from tdumpra.evaluation.paired import Figures, with_selective_figures
from tdumpra.evaluation.settings import EvaluateConfig

Array = np.ndarray
MIDDLE_THETA = 0.7
_TEST, _VALIDATION = 1, 2  # streams of random numbers beside the bootstrap's own


class Posteriors(NamedTuple):
    """One comparator's posteriors."""

    name: str
    test: Array  # on the rows of all cases, one case after the other
    validation: tuple[Tensor | None, ...]  # by case; absent where a case has no validation rows, or cannot have it


def one_by_one(cases: Sequence[Case], comparators: Mapping[str, Comparator]) -> Iterator[Posteriors]:
    """Yield the posteriors of the comparators that every case has inputs for.

    Of millions of rows a posterior takes a gigabyte: whoever asks for the next one should have let go of the last.
    What a second network's comparators need is fitted with the first network, on rows that it has not seen.
    """
    for case in cases:
        if case.first is not None and (before := case.first.on_validation()) is not None:
            for name, comparator in comparators.items():
                _posterior(before, name, comparator)  # fits what there is to fit
            case.first.fits.update(before.fits)
            case.fits.update(before.fits)
    held_out = [case.on_validation() for case in cases]
    for name, comparator in comparators.items():
        joined = _joined([_posterior(case, name, comparator) for case in cases])
        if joined is None:
            continue
        on_validation: list[Tensor | None] = []
        for case, rows in zip(cases, held_out, strict=True):
            if rows is not None:
                rows.fits.update((case.first or case).fits)  # with what was fitted for the test rows
            on_validation.append(None if rows is None else _posterior(rows, name, comparator))
        for each in (*cases, *(case.first for case in cases), *held_out):
            if each is not None:
                each.drop_index()
        yield Posteriors(name, joined, tuple(on_validation))
        del joined, on_validation


def _posterior(case: Case, name: str, comparator: Comparator) -> Tensor | None:
    p = comparator.posterior(case)
    if p is not None and p.shape != case.test.p.shape:
        raise ValueError(f"the comparator {name} returned shape {tuple(p.shape)}, not {tuple(case.test.p.shape)}")
    return p


def _joined(by_case: list[Tensor | None]) -> Array | None:
    """Join the posteriors of all cases, in float64; ``None`` if one of them has none."""
    parts = [p.double().cpu() for p in by_case if p is not None]
    if len(parts) < len(by_case):
        return None
    joined: Array = (parts[0] if len(parts) == 1 else torch.cat(parts)).numpy()
    return joined


def put_together(cases: Sequence[Case], comparators: Sequence[Comparator]) -> Array:
    """Return a posterior on the test rows that follows another comparator in each case."""
    joined = _joined([_posterior(case, each.words, each) for case, each in zip(cases, comparators, strict=True)])
    assert joined is not None  # each of them was scored before
    return joined


def figures_of(
    scored: Scored, p: Array, settings: EvaluateConfig, *, paired: bool, rows: Array | slice = slice(None)
) -> Figures:
    """Return the figures of a posterior as functions of the rows' weights; more of them if it is to be ``paired``.

    They are of all rows, or of some ``rows``.
    """
    p, y, costs = p[rows], scored.y[rows], scored.goal.costs
    points = dict.fromkeys(settings.chosen_classes(scored.test.n_classes), settings.specificities)
    means = {} if costs is None else {"cost": metrics.cost_by_row(p.argmax(1), y, costs)}
    of_rows = MetricSums.prepare(p, y, means, points).metrics
    return with_selective_figures(of_rows, p, y, scored.unsure[rows]) if paired else of_rows


def tuned_replicates(
    scored: Scored, comparators: Mapping[str, Comparator], member: Int[Array, " n"], settings: EvaluateConfig
) -> dict[str, dict[str, list[float]]]:
    """Draw validation and test lesions again, choose again on the former, and score on the latter.

    ``comparators`` are the gate and its rivals; ``member`` numbers the lesions of the test rows.
    """
    if any(case.retune is None for case in scored.cases):
        raise ValueError("tuning_replicates needs a decision that can be tuned again: evaluate the run that tuned it")
    by_test, by_validation = (np.random.default_rng([settings.seed, stream]) for stream in (_TEST, _VALIDATION))
    plain = replace(settings, bootstrap=0, specificities=())
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(settings.tuning_replicates):
        again = [_chosen_again(case, by_validation) for case in scored.cases]
        weights = drawn_groups(member, by_test)[:, None].astype(np.float64)
        for name, comparator in comparators.items():
            p = _joined([_posterior(case, name, comparator) for case in again])
            if p is None:
                continue
            for metric, value in figures_of(scored, p, plain, paired=True)(weights).items():
                found.setdefault(name, {}).setdefault(metric, []).append(float(value[0]))
    return found


def _chosen_again(case: Case, rng: np.random.Generator) -> Case:
    rows = case.choice
    assert rows is not None  # the decision was tuned on them
    times = drawn_groups(lesion_numbers(rows.lesions(), len(rows)), rng)
    return case.chosen_again(np.repeat(np.arange(len(rows)), times))


def ambiguous_below(case: Case, settings: EvaluateConfig) -> float:
    """Return the classifier's confidence below which a row is ambiguous: the gate's theta, unless settings say more.

    A gate that is shut, or has no ceiling on that confidence, has no theta: the middle of the paper's grid serves.
    """
    theta = case.decision.thresholds.theta
    if settings.ambiguous_below is not None:
        return settings.ambiguous_below
    return theta if 0 < theta < 1 else MIDDLE_THETA


def ambiguous_rows(case: Case, settings: EvaluateConfig) -> Array:
    """Mark the ambiguous rows."""
    unsure: Array = (case.decided.signals.gamma_cls < ambiguous_below(case, settings)).cpu().numpy()
    return unsure


def unsure_rows(cases: Sequence[Case], settings: EvaluateConfig) -> Array:
    """Mark the ambiguous rows of all cases."""
    return np.concatenate([ambiguous_rows(case, settings) for case in cases])
