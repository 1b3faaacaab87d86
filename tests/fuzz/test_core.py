"""Arrays of any size and degeneracy for every function of the core: figures that mean something, and no warning.

The core is the unchecked kernel: what its checked shell lets through is sound in type and shape. So the arrays here are
sound and awkward: one row, one class in all rows, ties, certainty, chances of zero, lengths of 1e-30 and 1e30.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.campaigns.record import attempts
from tests.test_trust_boundary import TREES

from tdumpra.core import (
    bootstrap,
    calibration,
    chances,
    gate,
    groups,
    kmeans,
    linear_head,
    losses,
    metrics,
    neighbours,
    posterior,
    risk,
    rowwise,
    search,
    selective,
    significance,
    two_samples,
)

Array = np.ndarray
THRESHOLDS = gate.GateThresholds(theta=0.6, beta=0.3, margin=0.1, delta=0.01, alpha=0.3, entropy=0.1)
WEIGHTS: chances.Weights = (0.1, 1.0, -0.5)


class Drawn:
    """Arrays that belong together: ``n`` rows, ``c`` classes, ``k`` prototypes of a class, ``d`` dimensions.

    Each is made when it is asked for, from one seed; as a tensor where a function takes tensors (``t``).
    """

    def __init__(self, n: int, c: int, d: int, seed: int, kind: str, dtype: torch.dtype) -> None:
        self.n, self.c, self.d, self.k, self.m, self.b = n, c, d, 1 + seed % 3, 1 + seed % 5, 2
        self.seed, self.kind, self.dtype = seed, kind, dtype
        self.rng = np.random.default_rng(seed)

    def __repr__(self) -> str:
        return f"Drawn({self.n}, {self.c}, {self.d}, {self.seed}, {self.kind!r}, {self.dtype})"

    def t(self, array: Array) -> torch.Tensor:
        """Return an array as a tensor; real numbers in the type that is tried."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def p(self, rows: int | None = None) -> Array:
        """Return probabilities."""
        rows = self.n if rows is None else rows
        if self.kind == "certain":
            return np.asarray(np.eye(self.c)[self.rng.integers(self.c, size=rows)])
        if self.kind == "even":
            return np.full((rows, self.c), 1 / self.c)
        return self.rng.dirichlet(np.full(self.c, 0.05 if self.kind == "sharp" else 1.0), rows)

    def log_p(self) -> Array:
        """Return logarithms of probabilities, as the shell gives them: of none below the smallest."""
        return np.asarray(np.log(np.maximum(self.p(), metrics.SMALLEST_PROBABILITY)))

    def y(self, rows: int | None = None) -> Array:
        """Return labels; of one class alone where probabilities are certain."""
        rows = self.n if rows is None else rows
        return self.rng.integers(1 if self.kind == "certain" else self.c, size=rows)

    def z(self, rows: int | None = None) -> Array:
        """Return embeddings, of any length."""
        rows = self.n if rows is None else rows
        scale = {"sharp": 1e-30, "even": 1e30}.get(self.kind, 1.0)
        return scale * (np.ones((rows, self.d)) if self.kind == "certain" else self.rng.normal(size=(rows, self.d)))

    def unit(self, rows: int | None = None) -> torch.Tensor:
        """Return embeddings of length one."""
        return rowwise.normalise(self.t(self.z(rows)))

    def share(self, rows: int | None = None) -> Array:
        """Return numbers from 0 to 1, with ties."""
        rows = self.n if rows is None else rows
        return np.round(self.rng.random(rows), 1)

    def number(self, *shape: int) -> Array:
        """Return real numbers."""
        return self.rng.normal(size=shape or (self.n,))

    def flag(self, rows: int | None = None) -> Array:
        """Return truths; all alike where probabilities are certain."""
        rows = self.n if rows is None else rows
        return np.ones(rows, bool) if self.kind == "certain" else self.rng.random(rows) < 0.5

    def member(self) -> Array:
        """Return numbers of groups, none of which is left out."""
        return np.unique(self.rng.integers(self.n, size=self.n), return_inverse=True)[1]

    def moments(self) -> linear_head.Moments:
        """Return sums of rows; of rows that are all alike where probabilities are certain."""
        return linear_head.Moments.of(
            np.ones((self.n, self.d)) if self.kind == "certain" else self.number(self.n, self.d)
        )

    def count(self) -> Array:
        """Return how many rows each class has; one has some."""
        return np.asarray(self.rng.integers(4, size=self.c) + (np.arange(self.c) == 0))

    def prior(self) -> torch.Tensor:
        return self.t(self.rng.dirichlet(np.ones(self.c)))

    def signals(self) -> gate.GateSignals:
        return gate.gate_signals(self.t(self.p()), self.t(self.p()))

    def counts(self) -> metrics.ClassCounts:
        return metrics.class_counts(self.y(), self.y(), self.c)

    def axes(self) -> tuple[search.Axis, ...]:
        return search.below(self.share(), (0.2, 0.5, 1.0)), search.above(self.share(), (0.0, 0.4))

    def sums(self) -> bootstrap.MetricSums:
        return bootstrap.MetricSums.prepare(self.p(), self.y(), {"cost": self.share()}, {0: (0.8, 0.95)})

    def head(self) -> linear_head.LinearHead:
        return linear_head.LinearHead(self.number(self.c, self.d), self.number(self.c))


KINDS = ("plain", "sharp", "even", "certain")
drawn = st.builds(
    Drawn, st.integers(1, 12), st.integers(2, 5), st.integers(1, 6), st.integers(0, 9999), st.sampled_from(KINDS),
    st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip


# --- what a result must be


def numbers(result: Any) -> Iterator[Array]:
    """Yield all numbers of a result."""
    if isinstance(result, torch.Tensor):
        yield result.detach().double().numpy().ravel()
    elif isinstance(result, dict):
        for value in result.values():
            yield from numbers(value)
    elif isinstance(result, np.ndarray | float | int | np.generic):
        yield np.asarray(result, np.float64).ravel() if np.asarray(result).dtype.kind in "fiub" else np.zeros(0)
    elif result is not None and not isinstance(result, str):
        for value in result:
            yield from numbers(value)


def flat(result: Any) -> Array:
    return np.concatenate([np.zeros(0), *numbers(result)])


def finite(result: Any) -> bool:
    return bool(np.isfinite(flat(result)).all())


def defined_or_nan(result: Any) -> bool:
    """Undefined is NaN; infinity is nothing."""
    return not np.isinf(flat(result)).any()


def share(result: Any) -> bool:
    found = flat(result)
    return finite(result) and bool(((found >= 0) & (found <= 1 + 1e-9)).all())


def share_or_nan(result: Any) -> bool:
    found = flat(result)
    found = found[~np.isnan(found)]
    return bool(((found >= -1e-9) & (found <= 1 + 1e-9)).all())


def rows_of_one(result: Any) -> bool:
    found = np.asarray(result, np.float64)
    return share(found) and bool((np.abs(found.sum(-1) - 1) < 1e-5).all())


def share_but_for_losses(result: dict[str, Any]) -> bool:
    return all((finite if name in ("nll", "brier") else share_or_nan)(value) for name, value in result.items())


def answers_or_nobody(threshold: float) -> bool:
    return threshold == np.inf or 0 <= threshold <= 1


def truths(result: Any) -> bool:
    return np.asarray(result).dtype == bool


class Case(NamedTuple):
    """How a function is called, and what its result must be."""

    call: Callable[[Drawn], Any]
    is_sound: Callable[[Any], bool]


CASES: dict[str, Case] = {
    "bootstrap.Draws.make": Case(
        lambda a: list(bootstrap.Draws.make(a.member(), n_replicates=a.b, seed=0).weights()), finite
    ),
    "bootstrap.group_weights": Case(
        lambda a: list(bootstrap.group_weights(a.member(), n_replicates=a.b, seed=0)), finite
    ),
    "bootstrap.drawn_groups": Case(lambda a: bootstrap.drawn_groups(a.member(), a.rng), finite),
    "bootstrap.over_drawn_seeds": Case(
        lambda a: bootstrap.over_drawn_seeds(a.number(a.k, a.b), seed=a.seed), finite
    ),
    "bootstrap.MetricSums.prepare": Case(lambda a: a.sums().metrics(np.ones((a.n, 1))), share_but_for_losses),
    "bootstrap.MetricSums.metrics": Case(
        lambda a: a.sums().metrics(np.eye(a.n)[:, : a.b] + (np.arange(a.n) == 0)[:, None]), share_but_for_losses
    ),
    "bootstrap.bootstrap_metrics": Case(
        lambda a: bootstrap.bootstrap_metrics(
            a.sums().metrics, bootstrap.group_weights(a.member(), n_replicates=a.b, seed=1)
        ),
        share_but_for_losses,
    ),
    "bootstrap.around_whole": Case(
        lambda a: bootstrap.around_whole(
            {"ece": a.share(), "nll": a.number()}, {"ece": np.array(0.5), "nll": np.array(1.0)},
            {"ece": 0.1, "nll": 2.0}, 0.5,
        ),
        finite,
    ),
    "bootstrap.percentile_interval": Case(lambda a: bootstrap.percentile_interval(a.number(), 0.9), finite),
    "calibration.apply_temperature": Case(
        lambda a: calibration.apply_temperature(a.t(a.p()), float(a.rng.choice([0.05, 0.7, 1.0, 20.0]))), rows_of_one
    ),
    "calibration.fit_temperature": Case(
        lambda a: calibration.fit_temperature(a.t(a.log_p()), a.t(a.y())) / calibration.TEMPERATURE_RANGE[1], share
    ),
    "calibration.apply_temperature_and_bias": Case(
        lambda a: calibration.apply_temperature_and_bias(a.t(a.p()), 0.7, (0.5,) * a.c), rows_of_one
    ),
    "calibration.fit_temperature_and_bias": Case(
        lambda a: calibration.fit_temperature_and_bias(a.t(a.p()), a.t(a.y())), finite
    ),
    "calibration.adjust_prior": Case(
        lambda a: calibration.adjust_prior(a.t(a.p()), a.prior(), float(a.rng.choice([0.0, 0.4, 1.0]))), rows_of_one
    ),
    "calibration.class_prior": Case(lambda a: calibration.class_prior(a.t(a.y()), a.c), rows_of_one),
    "chances.chances": Case(lambda a: chances.chances(a.signals(), WEIGHTS, WEIGHTS), share),
    "chances.advantage": Case(lambda a: chances.advantage(a.signals(), WEIGHTS, (0.0, 0.0, 1.0)), finite),
    "chances.calibrated_gate_opens": Case(
        lambda a: chances.calibrated_gate_opens(a.signals(), chances.CalibratedGate(WEIGHTS, WEIGHTS, 0.1)).numpy(),
        truths,
    ),
    "chances.confidence_features": Case(lambda a: chances.confidence_features(a.signals()), finite),
    "chances.fit_chance": Case(
        lambda a: chances.fit_chance(
            chances.confidence_features(a.signals()).numpy(), a.flag(), chances.PRIOR_CLASSIFIER
        ),
        finite,
    ),
    "gate.entropy": Case(lambda a: gate.entropy(a.t(a.p())), finite),
    "gate.js_divergence": Case(lambda a: gate.js_divergence(a.t(a.p()), a.t(a.p())) / math.log(2), share),
    "gate.gate_signals": Case(lambda a: a.signals(), finite),
    "gate.gate_opens": Case(lambda a: gate.gate_opens(a.signals(), THRESHOLDS).numpy(), truths),
    "gate.fuse_linear": Case(lambda a: gate.fuse_linear(a.t(a.p()), a.t(a.p()), alpha=0.3), rows_of_one),
    "gate.fuse_log_linear": Case(
        lambda a: gate.fuse_log_linear(a.t(a.p()), a.t(a.p()), alpha=float(a.rng.choice([0.0, 0.5, 1.0]))), rows_of_one
    ),
    "gate.fuse_where_open": Case(
        lambda a: gate.fuse_where_open(
            a.t(a.p()), a.t(a.p()), a.t(a.flag()), alpha=0.2, rule="log-linear", prior=a.prior(), exponent=0.5
        ),
        rows_of_one,
    ),
    "gate.fuse_rows": Case(
        lambda a: gate.fuse_rows(a.t(a.p()), a.t(a.p()), alpha=0.2, rule="linear", prior=a.prior(), exponent=0.5),
        rows_of_one,
    ),
    "gate.is_first_choice": Case(
        lambda a: gate.is_first_choice(a.t(a.p()), a.t(a.p()), a.t(a.p())).numpy(), truths
    ),
    "gate.fuse": Case(lambda a: gate.fuse(a.t(a.p()), a.t(a.p()), THRESHOLDS, rule="log-linear").p, rows_of_one),
    "groups.lesion_of_each_row": Case(lambda a: groups.lesion_of_each_row(None, a.n), finite),
    "groups.lesion_numbers": Case(lambda a: groups.lesion_numbers(a.share().astype(str), a.n), finite),
    "groups.joined_groups": Case(
        lambda a: groups.joined_groups(a.member().astype(str), a.member(), a.y()), lambda found: len(found) > 0
    ),
    "groups.sum_by_lesion": Case(lambda a: groups.sum_by_lesion(a.y(), a.member().astype(str)), finite),
    "groups.count_by_lesion": Case(lambda a: groups.count_by_lesion(a.share()), finite),
    "groups.gained_by_lesion": Case(
        lambda a: groups.gained_by_lesion(a.y(), np.arange(a.n).astype(str), a.member()), finite
    ),
    "groups.drawn_rows": Case(lambda a: groups.drawn_rows(a.member(), a.m), lambda found: bool(found.any())),
    "groups.group_folds": Case(
        lambda a: groups.group_folds(None, a.y(), min(a.n, a.k), seed=a.seed), finite
    ),
    "kmeans.spherical_kmeans": Case(lambda a: kmeans.spherical_kmeans(a.unit(), 1, n_init=2)[:3], finite),
    "kmeans.seed_centers": Case(
        lambda a: kmeans.seed_centers(a.unit(), a.k, torch.Generator(), torch.ones(a.n, dtype=a.dtype)), finite
    ),
    "kmeans.lloyd": Case(
        lambda a: kmeans.lloyd(a.unit(), a.unit(a.k), torch.ones(a.n, dtype=a.dtype), max_iter=5)[:3], finite
    ),
    "linear_head.LinearHead.logits": Case(lambda a: a.head().logits(a.number(a.n, a.d)), finite),
    "linear_head.Directions.coordinates": Case(
        lambda a: linear_head.principal_directions(a.moments()).coordinates(a.number(a.m, a.d)), finite
    ),
    "linear_head.Directions.on_features": Case(
        lambda a: linear_head.Directions(a.number(a.d), a.number(a.d, a.d)).on_features(a.head()), finite
    ),
    "linear_head.principal_directions": Case(
        lambda a: linear_head.principal_directions(a.moments(), 1 + a.seed % 3), finite
    ),
    "linear_head.Moments.of": Case(lambda a: linear_head.Moments.of(a.number(a.n, a.d)), finite),
    "linear_head.Moments.plus": Case(lambda a: a.moments().plus(a.moments()), finite),
    "linear_head.fit_linear_head": Case(
        lambda a: linear_head.fit_linear_head(
            a.number(a.n, a.d), a.y(), a.share() + 0.1, n_classes=a.c, l2=0.1, tolerance=1e-3
        ),
        finite,
    ),
    "losses.joint_loss": Case(
        lambda a: losses.joint_loss(
            a.t(a.number(a.n, a.c)), a.unit(), a.t(a.y()), class_weights=a.prior(), label_smoothing=0.1
        ),
        finite,
    ),
    "losses.supervised_contrastive_loss": Case(
        lambda a: losses.supervised_contrastive_loss(a.unit(), a.t(a.y()), temperature=0.01), finite
    ),
    "metrics.class_counts": Case(lambda a: a.counts(), finite),
    "metrics.accuracy": Case(lambda a: metrics.accuracy(a.counts()), share),
    "metrics.balanced_accuracy": Case(lambda a: metrics.balanced_accuracy(a.counts()), share),
    "metrics.macro_f1": Case(lambda a: metrics.macro_f1(a.counts()), share),
    "metrics.auroc_by_class": Case(lambda a: metrics.auroc_by_class(a.p(), a.y()), share_or_nan),
    "metrics.macro_auroc": Case(lambda a: metrics.macro_auroc(a.p(), a.y()), share_or_nan),
    "metrics.bin_numbers": Case(lambda a: metrics.bin_numbers(a.share(), a.k), finite),
    "metrics.calibration_bins": Case(lambda a: metrics.calibration_bins(a.share(), a.flag())[1:], share_or_nan),
    "metrics.calibration_error": Case(
        lambda a: metrics.calibration_error(metrics.calibration_bins(a.share(), a.flag())), share
    ),
    "metrics.calibration_noise": Case(lambda a: metrics.calibration_noise(a.share(), a.member()), finite),
    "metrics.expected_calibration_error": Case(lambda a: metrics.expected_calibration_error(a.p(), a.y(), 5), share),
    "metrics.classwise_calibration_error": Case(lambda a: metrics.classwise_calibration_error(a.p(), a.y()), share),
    "metrics.log_loss_by_row": Case(lambda a: metrics.log_loss_by_row(a.p(), a.y()), finite),
    "metrics.negative_log_likelihood": Case(lambda a: metrics.negative_log_likelihood(a.p(), a.y()), finite),
    "metrics.auroc_influence": Case(lambda a: metrics.auroc_influence(a.p(), a.y()), finite),
    "metrics.squared_error_by_row": Case(lambda a: metrics.squared_error_by_row(a.p(), a.y()) / 2, share),
    "metrics.brier_score": Case(lambda a: metrics.brier_score(a.p(), a.y()) / 2, share),
    "metrics.cost_by_row": Case(lambda a: metrics.cost_by_row(a.y(), a.y(), a.number(a.c, a.c)), finite),
    "metrics.cheapest_decision": Case(
        lambda a: metrics.cheapest_decision(a.p(), a.number(a.c, a.c)) / a.c, share
    ),
    "metrics.sensitivity_at_specificity": Case(
        lambda a: metrics.sensitivity_at_specificity(a.share(), a.flag(), 0.9)[0], share_or_nan
    ),
    "metrics.sensitivities_at_specificities": Case(
        lambda a: [each[0] for each in metrics.sensitivities_at_specificities(a.share(), a.flag(), (0.0, 0.5, 1.0))],
        share_or_nan,
    ),
    "metrics.classification_metrics": Case(
        lambda a: metrics.classification_metrics(a.p(), a.y()), defined_or_nan
    ),
    "metrics.ratio": Case(lambda a: metrics.ratio(a.number(), np.round(a.share())), defined_or_nan),
    "metrics.mean_of_defined": Case(
        lambda a: metrics.mean_of_defined(np.where(a.flag(a.c), a.share(a.c), np.nan)), share_or_nan
    ),
    "neighbours.cache_affinity": Case(
        lambda a: neighbours.cache_affinity(
            a.unit(a.m), a.t(a.y(a.m)), a.unit(), sharpness=(1.0, 20.0), n_classes=a.c
        ),
        finite,
    ),
    "neighbours.class_shares": Case(
        lambda a: neighbours.class_shares(
            a.t(a.y(a.m)), torch.randint(a.m, (a.n, 2)), n_classes=a.c, dtype=a.dtype
        ),
        rows_of_one,
    ),
    "neighbours.nearest_neighbour_shares": Case(
        lambda a: neighbours.nearest_neighbour_shares(
            a.unit(a.m), a.t(a.y(a.m)), a.unit(), n_classes=a.c, n_neighbours=3
        ),
        rows_of_one,
    ),
    "posterior.prototype_similarity": Case(
        lambda a: posterior.prototype_similarity(a.unit(), a.unit(a.c * a.k).reshape(a.c, a.k, a.d)), finite
    ),
    "posterior.vmf_class_scores": Case(
        lambda a: posterior.vmf_class_scores(
            a.t(a.number(a.n, a.c, a.k)), torch.ones(a.c, a.k, dtype=torch.bool), kappa=float(10.0 ** (a.seed % 4))
        ),
        finite,
    ),
    "posterior.similarity_posterior": Case(
        lambda a: posterior.similarity_posterior(1000 * a.t(a.number(a.n, a.c)), tau=0.1), rows_of_one
    ),
    "risk.risk_decomposition": Case(
        lambda a: risk.risk_decomposition(a.share(), a.share(), a.flag()), defined_or_nan
    ),
    "risk.bayes_gate": Case(lambda a: risk.bayes_gate(a.share(), a.share()), truths),
    "risk.regret": Case(lambda a: risk.regret(a.share(), a.share(), a.share()), finite),
    "risk.gap_favours_similarity": Case(
        lambda a: risk.gap_favours_similarity(a.share(), a.share(), 0.1, 0.1), truths
    ),
    "risk.share_upper": Case(lambda a: risk.share_upper(a.flag(), a.member()), share),
    "rowwise.by_rows": Case(lambda a: rowwise.by_rows(torch.exp, a.t(a.share())), finite),
    "rowwise.widen": Case(lambda a: rowwise.widen(a.t(a.number()).half()), finite),
    "rowwise.normalise": Case(lambda a: rowwise.normalise(a.t(a.z())).square(), rows_of_one),
    "rowwise.softmax_rows": Case(lambda a: rowwise.softmax_rows(1000 * a.t(a.number(a.n, a.c))), rows_of_one),
    "search.below": Case(lambda a: search.below(a.share(), (0.5, 0.2)), finite),
    "search.above": Case(lambda a: search.above(a.share(), (0.5, 0.2)), finite),
    "search.Corners.of": Case(lambda a: search.Corners.of(a.axes()).corner, finite),
    "search.Corners.sums": Case(
        lambda a: search.Corners.of(a.axes()).sums(a.number(), a.y(), a.c), finite
    ),
    "search.orthant_sums": Case(lambda a: search.orthant_sums(a.axes(), a.number(a.n, 2)), finite),
    "search.tally": Case(
        lambda a: search.tally(
            a.axes(), a.y(), a.y(), a.y(), a.number(), n_classes=a.c, may_open=a.flag()
        ),
        finite,
    ),
    "selective.risk_coverage": Case(lambda a: selective.risk_coverage(a.share(), a.flag()), share),
    "selective.area_under_risk_coverage": Case(
        lambda a: selective.area_under_risk_coverage(a.share(), a.flag()), share
    ),
    "selective.weighted_areas": Case(
        lambda a: selective.weighted_areas(a.share(), a.flag(), np.round(2 * a.rng.random((a.n, 3)))), share_or_nan
    ),
    "selective.best_area": Case(lambda a: selective.best_area(a.flag()), share),
    "selective.refer_below": Case(lambda a: selective.refer_below(a.share(), a.flag(), risk=0.1), answers_or_nobody),
    "significance.sign_flip_test": Case(lambda a: significance.sign_flip_test(a.y() - a.y()), share),
    "significance.betting_stakes": Case(
        lambda a: significance.betting_stakes(np.sign(a.number()), squares=float(a.n), bound=1.0, level=0.05), share
    ),
    "significance.betting_test": Case(
        lambda a: significance.betting_test(np.sign(a.number()), 0.9 * a.share()), share
    ),
    "significance.loss_upper_bound": Case(
        lambda a: significance.loss_upper_bound(np.sign(a.number()), np.ones(a.n), 0.9 * a.share(), level=0.05), share
    ),
    "significance.betting_power": Case(
        lambda a: significance.betting_power(
            np.ones(a.k), a.n, 0.7, squares=float(a.n), bound=1.0, level=0.05, seed=a.seed, runs=5
        ),
        share,
    ),
    "significance.holm": Case(lambda a: significance.holm(a.share(), 0.05), truths),
    "significance.holm_adjusted": Case(lambda a: significance.holm_adjusted(a.share()), share),
    "significance.fixed_sequence": Case(lambda a: significance.fixed_sequence(a.share(), 0.5), truths),
    "two_samples.mean_by_group": Case(lambda a: two_samples.mean_by_group(a.number(), a.member()), finite),
    "two_samples.moved": Case(
        lambda a: two_samples.moved(a.share(), a.share(a.m if a.kind != "even" else 0))[2:], share_or_nan
    ),
    "two_samples.total_variation": Case(lambda a: two_samples.total_variation(a.count(), a.count()), share),
    "two_samples.same_shares_p": Case(lambda a: two_samples.same_shares_p(a.count(), a.count()), share),
    "two_samples.expected_accuracy": Case(
        lambda a: two_samples.expected_accuracy(a.share(), a.share(a.m), a.flag(a.m)), share
    ),
    "two_samples.outside": Case(
        lambda a: two_samples.outside(a.number(a.n, a.k), a.number(2 + a.m, a.k)), truths
    ),
}  # fmt: skip
ELSEWHERE = {"ema.EmaTeacher.set_extra_state": "is called by torch with what get_extra_state gave it"}


def takes_arrays() -> Iterator[str]:
    """Yield the public functions of the core with a parameter that is an array, or that holds arrays."""
    trees = {path.split("/")[1][:-3]: tree for path, tree in TREES.items() if path.startswith("core/")}
    types = {"Tensor", "Array", "ndarray"}
    for tree in trees.values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                fields = [ast.unparse(each.annotation) for each in node.body if isinstance(each, ast.AnnAssign)]
                if any(mentions(field, {"Tensor", "Array", "ndarray"}) for field in fields):
                    types.add(node.name)
    for module, tree in trees.items():
        for node in tree.body:
            name = f"{module}.{node.name}" if isinstance(node, ast.ClassDef) else module
            for each in node.body if isinstance(node, ast.ClassDef) else [node]:
                if name.startswith(f"{module}._"):
                    continue
                if not isinstance(each, ast.FunctionDef) or each.name.startswith("_"):
                    continue
                given = [*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs, each.args.vararg]
                if any(a is not None and a.annotation and mentions(ast.unparse(a.annotation), types) for a in given):
                    yield f"{name}.{each.name}"


def mentions(annotation: str, types: set[str]) -> bool:
    names = {n.id for n in ast.walk(ast.parse(annotation)) if isinstance(n, ast.Name)}
    attributes = {n.attr for n in ast.walk(ast.parse(annotation)) if isinstance(n, ast.Attribute)}
    return bool((names | attributes) & types)


def test_every_function_of_the_core_that_takes_arrays_has_a_case():
    assert set(takes_arrays()) == CASES.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("name", CASES)
@attempts(25, 2000)
@pytest.mark.filterwarnings("ignore:.*clusters were asked for")
def test_awkward_arrays_give_sound_figures(name, attempts):
    case = CASES[name]

    @settings(max_examples=attempts)
    @given(drawn)
    def attempt(arrays: Drawn) -> None:
        assert case.is_sound(case.call(arrays))

    attempt()
