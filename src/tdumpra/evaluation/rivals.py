"""Rivals with dials of their own: temperatures, a power of the class prior, a weight.

They have what the gate has: the same rows to choose on, the same goal, and the same floor. A setting is a candidate if
its accuracy on those rows is no lower than that of the plain classifier.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from tdumpra.core.calibration import adjust_prior, apply_temperature, fit_temperature
from tdumpra.core.gate import FUSION_RULES, FusionRule, fuse_rows
from tdumpra.core.posterior import similarity_posterior
from tdumpra.core.rowwise import by_rows, widen
from tdumpra.evaluation.case import Case
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.tune import PRIOR_EXPONENTS

ALPHAS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)  # of ungated fusion; 1 is the classifier alone
T = TypeVar("T")


class Parts(NamedTuple):
    """A posterior on the rows of choice and on the test rows, with what was chosen for it."""

    choice: Tensor
    test: Tensor
    chosen: dict[str, Any]


def on_test(case: Case, name: str, parts: Parts | None) -> Tensor | None:
    """Return the posterior on the test rows, and keep what was chosen under the comparator's name."""
    if parts is None:
        return None
    case.chosen(name, lambda: parts.chosen)
    return parts.test


def as_given(case: Case, column: str) -> Tensor | None:
    """Return a column of the test rows."""
    p = getattr(case.test, column)
    return None if p is None else widen(p)


def calibrated(case: Case, column: str) -> Parts | None:
    """Return a posterior with a temperature fitted on the rows of choice; ``None`` unless both parts have it."""
    rows = case.choice
    chosen_on, test = (getattr(each, column, None) for each in (rows, case.test))
    if rows is None or chosen_on is None or test is None:
        return None
    chosen_on, test = widen(chosen_on), widen(test)
    fitted = case.fitted(f"temperature of {column}", lambda: fit_temperature(chosen_on.log(), rows.y))
    scaled = by_rows(lambda p: apply_temperature(p, fitted), test)
    return Parts(apply_temperature(chosen_on, fitted), scaled, {"temperature": fitted})


def mean_of_networks(case: Case) -> Parts | None:
    """Average both networks' calibrated posteriors."""
    own, other = calibrated(case, "p"), calibrated(case, "p_second")
    if own is None or other is None:
        return None
    chosen = {**own.chosen, "second_temperature": other.chosen["temperature"]}
    return Parts((own.choice + other.choice) / 2, (own.test + other.test) / 2, chosen)


def both_paths(case: Case) -> tuple[Parts, Parts] | None:
    """Return the classifier's and retrieval's posteriors, with the temperatures of the decision."""
    rows, decision, decided = case.choice, case.decision, case.decided
    scores = case.choice_scores(decision.kappa)
    if rows is None or scores is None:
        return None
    p_cls = decision.classifier(widen(rows.p))
    chosen = {"temperature": decision.temperature, "kappa": decision.kappa, "tau": decision.tau}
    p_sim = similarity_posterior(scores, tau=decision.tau).to(p_cls)
    return Parts(p_cls, decided.p_cls, chosen), Parts(p_sim, decided.p_sim, chosen)


def mean_of_paths(case: Case) -> Parts | None:
    """Average classifier and retrieval."""
    paths = both_paths(case)
    if paths is None:
        return None
    cls, sim = paths
    return Parts((cls.choice + sim.choice) / 2, (cls.test + sim.test) / 2, cls.chosen)


def adjusted(case: Case, name: str, parts: Parts | None) -> Parts | None:
    """Divide by the power of the class prior that scores best on the rows of choice."""
    rows, prior = case.choice, case.decision.prior
    if parts is None or rows is None:
        return None

    def choose() -> dict[str, Any]:
        candidates = ((exponent, adjust_prior(parts.choice, prior, exponent)) for exponent in PRIOR_EXPONENTS)
        exponent, harmless = best_harmless(candidates, widen(rows.p), rows.y, case.goal)
        return {"exponent": exponent, "harmless": harmless}

    chosen = case.fitted(f"power of {name}", choose)
    exponent = chosen["exponent"]
    on_choice, test = (
        by_rows(lambda p: adjust_prior(p, prior, exponent), posterior) for posterior in (parts.choice, parts.test)
    )
    return Parts(on_choice, test, {**parts.chosen, **chosen})


def ungated(case: Case) -> Parts | None:
    """Fuse classifier and retrieval on every row, with the weight, rule and power of the prior that score best."""
    paths, rows, prior = both_paths(case), case.choice, case.decision.prior
    if paths is None or rows is None:
        return None
    cls, sim = paths

    def candidates() -> Iterator[tuple[tuple[float, FusionRule, float], Tensor]]:
        for alpha, rule in itertools.product(ALPHAS, FUSION_RULES):
            fused = fuse_rows(cls.choice, sim.choice, alpha=alpha, rule=rule)
            for exponent in PRIOR_EXPONENTS:
                yield (alpha, rule, exponent), adjust_prior(fused, prior, exponent)

    def choose() -> dict[str, Any]:
        (alpha, rule, exponent), harmless = best_harmless(candidates(), widen(rows.p), rows.y, case.goal)
        return {"alpha": alpha, "rule": rule, "exponent": exponent, "harmless": harmless}

    chosen = case.fitted("ungated", choose)
    alpha, rule, exponent = (chosen[name] for name in ("alpha", "rule", "exponent"))
    on_choice, test = (
        by_rows(lambda p, q: fuse_rows(p, q, alpha=alpha, rule=rule, prior=prior, exponent=exponent), *each)
        for each in ((cls.choice, sim.choice), (cls.test, sim.test))
    )
    return Parts(on_choice, test, {**cls.chosen, **chosen})


def best_harmless(candidates: Iterable[tuple[T, Tensor]], plain: Tensor, y: Tensor, goal: Goal) -> tuple[T, bool]:
    """Return the candidate that scores best at no lower accuracy than the ``plain`` classifier; the first of equals.

    Where no candidate is as accurate as that, it is the first, and the second value is ``False``.
    """
    floor = goal.score(plain, y).accuracy
    scored = [(key, goal.score(posterior, y)) for key, posterior in candidates]
    harmless = [pair for pair in scored if pair[1].accuracy >= floor]
    # sums taken in another order differ in the last bits
    best = max(harmless or scored[:1], key=lambda pair: round(pair[1].objective, 12))
    return best[0], bool(harmless)
