"""Figures of the posteriors as functions of the rows' weights, and their replicates.

A replicate draws the test lesions again. Where the choice is to be part of the interval, it draws the validation
lesions too: the gate and every rival are chosen again on them, as the run chose them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tdumpra.core import metrics
from tdumpra.core.bootstrap import MetricSums, bootstrap_metrics, drawn_groups
from tdumpra.core.groups import lesion_numbers
from tdumpra.evaluation.case import Case, Scored
from tdumpra.evaluation.comparators import Comparator
from tdumpra.evaluation.paired import Figures, with_selective_figures
from tdumpra.evaluation.settings import EvaluateConfig

Array = np.ndarray
MIDDLE_THETA = 0.7
_TEST, _VALIDATION = 1, 2  # streams of random numbers beside the bootstrap's own


def posteriors_of(case: Case, comparators: Mapping[str, Comparator]) -> dict[str, Tensor]:
    """Return the posteriors of the comparators whose inputs are there."""
    results = {name: comparator.posterior(case) for name, comparator in comparators.items()}
    given = {name: p for name, p in results.items() if p is not None}
    for name, p in given.items():
        if p.shape != case.test.p.shape:
            raise ValueError(f"the comparator {name} returned shape {tuple(p.shape)}, not {tuple(case.test.p.shape)}")
    return given


def joined_posteriors(cases: Sequence[Case], comparators: Mapping[str, Comparator]) -> dict[str, Array]:
    """Return the posteriors on the test rows of all cases, of the comparators that each of them has."""
    by_case = [posteriors_of(case, comparators) for case in cases]
    shared = [name for name in by_case[0] if all(name in of_case for of_case in by_case)]
    return {name: torch.cat([of_case[name].double().cpu() for of_case in by_case]).numpy() for name in shared}


def figures_of(scored: Scored, pairs: Sequence[str], settings: EvaluateConfig) -> dict[str, Figures]:
    """Return the figures of each posterior as functions of the rows' weights, more of them for ``pairs``."""
    y, costs, unsure = scored.y, scored.goal.costs, unsure_rows(scored, settings)
    points = dict.fromkeys(settings.chosen_classes(scored.test.n_classes), settings.specificities)
    figures: dict[str, Figures] = {}
    for name in scored.posteriors if settings.bootstrap else pairs:
        p = scored.posteriors[name]
        means = {} if costs is None else {"cost": metrics.cost_by_row(p.argmax(1), y, costs)}
        of_name = MetricSums.prepare(p, y, means, points).metrics
        figures[name] = with_selective_figures(of_name, p, y, unsure) if name in pairs else of_name
    return figures


def replicates_of(
    figures: Mapping[str, Figures], member: Int[Array, " n"], settings: EvaluateConfig
) -> dict[str, dict[str, Array]]:
    """Return the replicates of all figures over the groups that ``member`` numbers; none without a bootstrap."""
    if not settings.bootstrap:
        return {}
    return bootstrap_metrics(figures, member, n_replicates=settings.bootstrap, seed=settings.seed)


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
        redone = replace(scored, posteriors=joined_posteriors(again, comparators))
        weights = drawn_groups(member, by_test)[:, None].astype(np.float64)
        for name, figures in figures_of(redone, list(redone.posteriors), plain).items():
            for metric, value in figures(weights).items():
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


def unsure_rows(scored: Scored, settings: EvaluateConfig) -> Array:
    """Mark the ambiguous rows of all cases."""
    return np.concatenate([ambiguous_rows(case, settings) for case in scored.cases])
