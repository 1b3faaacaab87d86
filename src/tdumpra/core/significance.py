r"""Tests of whether a difference could be chance, and what they can show. No test resamples.

Letters: :math:`d_t` is what group t gains (fixed minus broken predictions), :math:`s_t` how many images it counts for,
B the most that any group counts for, so that :math:`-B \le d_t`; :math:`\alpha` is the level, :math:`\lambda_t` a stake
and :math:`W_t` the capital of a bettor.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import betainc, betaincinv, ndtr  # scipy.stats has it all, and takes seconds to load

_MULTIPLIED_OUT = 2000  # groups; the distribution of more takes seconds
Array = Any  # of any shape; a number where there are no runs


def mcnemar_exact(fixed: int, broken: int) -> float:
    """Return the two-sided p-value of McNemar's exact test of ``fixed`` against ``broken``; 1 where both are 0."""
    more = max(fixed, broken)  # both tails are alike, and meet where the two counts are
    return min(1.0, 2 * float(_binomial_above(more - 1, fixed + broken, 0.5))) if fixed != broken else 1.0


def clopper_pearson_upper(events: float, trials: float, *, level: float = 0.95) -> float:
    """Return the one-sided upper confidence bound of a rate with ``events`` in ``trials``; 1 without trials.

    Counts may be fractions: rows that are alike count for fewer than they are.
    """
    return float(betaincinv(events + 1, trials - events, level)) if events < trials else 1.0


def sign_flip_test(
    differences: Int[np.ndarray, " groups"], *, alternative: Literal["two-sided", "greater"] = "two-sided"
) -> float:
    r"""Return the p-value of the sign-flip test of whole-number differences, one for each independent group.

    The null hypothesis is symmetry: each group's difference (fixed minus broken predictions, summed over its images
    and seeds) is as likely :math:`-d` as :math:`d`. The distribution of the sum over all :math:`2^G` flips is the
    product of the polynomials :math:`(x^{d} + x^{-d}) / 2`, which is multiplied out: under symmetry the p-value is
    exact. Differences of 0 and 1 are symmetric whenever their mean is zero. Larger ones need not be: where breaks come
    in larger groups than fixes, small p-values come too often. :func:`betting_test` has no such condition.
    """
    sizes = np.abs(differences[differences != 0]).astype(np.int64)
    total = int(sizes.sum())
    if len(sizes) > _MULTIPLIED_OUT:
        return _sign_flip_by_size(sizes, int(differences.sum()), alternative)
    chance = np.zeros(2 * total + 1)  # chance[total + s] is the probability of the sum s
    chance[total] = 1.0
    for size in sizes:
        chance = (np.roll(chance, size) + np.roll(chance, -size)) / 2  # no mass ever reaches the wrapped ends
    observed = int(differences.sum())
    if alternative == "greater":
        return min(1.0, float(chance[total + observed :].sum()))
    sums = np.abs(np.arange(-total, total + 1))
    return min(1.0, float(chance[sums >= abs(observed)].sum()))


def _sign_flip_by_size(
    sizes: Int[np.ndarray, " groups"], observed: int, alternative: Literal["two-sided", "greater"]
) -> float:
    r"""Return the same p-value for many groups, in a time that does not grow with their square.

    Under symmetry the groups of one size add up to that size times twice a binomial number less their count. Where
    all sizes are alike the binomial tail is exact. Otherwise the sum is nearly normal: its skewness is zero, so that
    the error is of the order of one over the number of groups; half a step of the sum's lattice is taken off.
    """
    reached = abs(observed) if alternative == "two-sided" else observed
    if sizes.min() == sizes.max():
        fewest = (reached // int(sizes[0]) + len(sizes)) // 2
        tail = float(_binomial_above(fewest - 1, len(sizes), 0.5))
    else:
        step = 2 * int(np.gcd.reduce(sizes))
        tail = float(ndtr(-(reached - step / 2) / np.sqrt((sizes.astype(np.float64) ** 2).sum())))
    return min(1.0, (2 if alternative == "two-sided" else 1) * tail)


def betting_stakes(
    gains: Float[np.ndarray, "*runs groups"],
    *,
    squares: float | Float[np.ndarray, "*runs"],
    bound: float,
    level: float,
) -> Float[np.ndarray, "*runs groups"]:
    r"""Return the stake on each of n groups, in the given order: what it takes to reach :math:`1/\alpha` in time.

    .. math:: \lambda_t = \min\left(\frac{1}{B}, \sqrt{\frac{2 \log(1 / (\alpha W_{t-1}))}{V (n - t + 1) / n}}\right),
        \qquad W_t = W_{t-1} (1 + \lambda_t d_t), \qquad W_0 = 1

    A stake depends on the groups before it alone. V, ``squares``, is the sum of squares to expect of all groups. Once
    the capital :math:`W` has reached :math:`1/\alpha`, the goal is ten times as much, so that clear cases get a small
    p-value. (Recalculated targets: Voráček and Orabona, 2025.)
    """
    stakes = np.empty(gains.shape)
    n = gains.shape[-1]
    capital, goal = np.zeros(gains.shape[:-1]), np.full(gains.shape[:-1], np.log(1 / level))  # logarithms
    for t in range(n):
        stakes[..., t] = np.minimum(1 / bound, np.sqrt(2 * (goal - capital) / (squares * (n - t) / n)))
        capital = capital + _log_growth(gains[..., t], stakes[..., t])
        goal = np.where(capital >= goal, capital + np.log(10), goal)
    return stakes


def betting_test(
    gains: Float[np.ndarray, "*runs groups"], stakes: Float[np.ndarray, "*runs groups"]
) -> Float[np.ndarray, "*runs"] | np.float64:
    r"""Return the p-value of "a group is expected to gain nothing, or to lose": :math:`E[d_t] \le 0`.

    .. math:: p = \min\left(1, \min_t W_t^{-1}\right), \qquad W_t = \prod_{i \le t} (1 + \lambda_i d_i)

    Start with a capital of one and bet on one group after the other. Under the null hypothesis no bet is expected to
    win, so that the capital ever reaches :math:`1/\alpha` with a chance of at most :math:`\alpha` (Ville's inequality).
    This holds for any number of groups and any distribution with :math:`d_t \ge -B`, however skewed, if groups are
    drawn independently, their order has nothing to do with their gains, and :math:`\lambda_t \le 1/B` is fixed before
    group t.
    """
    p_values: np.ndarray = np.exp(-_log_peak(gains, stakes))
    return p_values


def loss_upper_bound(
    gains: Float[np.ndarray, " groups"],
    sizes: Float[np.ndarray, " groups"],
    stakes: Float[np.ndarray, " groups"],
    *,
    level: float,
) -> float:
    r"""Return the one-sided upper confidence bound of the loss per image, between 0 and 1.

    It is the smallest :math:`\delta` at which :func:`betting_test` of :math:`d_t + \delta s_t` rejects at ``level``: a
    loss of :math:`\delta` or more would be :math:`E[d_t + \delta s_t] \le 0`. The stakes are the same for each.
    """
    aim, low, high = np.log(1 / level), 0.0, 1.0
    if _log_peak(gains + sizes, stakes) < aim:
        return 1.0
    if _log_peak(gains, stakes) >= aim:
        return 0.0
    for _ in range(50):  # the capital grows with delta
        middle = (low + high) / 2
        low, high = (low, middle) if _log_peak(gains + middle * sizes, stakes) >= aim else (middle, high)
    return high


def sign_test_power(groups: int, fixed: float, *, level: float) -> float:
    """Return the chance that the one-sided sign test rejects, if so many groups change and a share of them is fixed."""
    tails = _binomial_above(np.arange(groups + 1), groups, 0.5)
    needed = int(np.argmax(tails <= level * (1 + 1e-12))) + 1  # a tail that is the level may come out a little larger
    return float(_binomial_above(needed - 1, groups, fixed))


def _binomial_above(k: Any, n: int, p: float) -> Array:
    """Return the chance of more than ``k`` successes in ``n`` trials, each with the chance ``p``."""
    k = np.asarray(k)
    inside = np.clip(k, 0, n - 1)
    return np.where(k < 0, 1.0, np.where(k >= n, 0.0, betainc(inside + 1, n - inside, p)))


def betting_power(
    sizes: Float[np.ndarray, " changed"],
    groups: int,
    fixed: float,
    *,
    squares: float,
    bound: float,
    level: float,
    seed: int,
    runs: int = 500,
) -> float:
    """Return the chance that the betting test rejects, by simulation.

    So many groups change, by as many images as those of ``sizes``, and a share of them is fixed, the others broken.
    """
    draws = np.random.default_rng(seed).random((2, runs, groups))
    gains = sizes[(draws[0] * len(sizes)).astype(np.int64)] * np.where(draws[1] < fixed, 1, -1)
    stakes = betting_stakes(gains, squares=squares, bound=bound, level=level)
    return float((betting_test(gains, stakes) <= level).mean())


def _log_growth(gains: Array, stakes: Array) -> Array:
    with np.errstate(divide="ignore"):  # a capital that is lost stays lost
        growth: Array = np.log(np.maximum(1 + stakes * gains, 0.0))
    return growth


def _log_peak(gains: Array, stakes: Array) -> Array:
    peak: Array = np.cumsum(_log_growth(gains, stakes), axis=-1).max(axis=-1, initial=0.0)
    return peak


def holm(p_values: Float[np.ndarray, " m"], level: float) -> Bool[np.ndarray, " m"]:
    """Return which hypotheses Holm's method rejects: the chance of any false rejection is at most ``level``."""
    order = np.argsort(p_values, kind="stable")
    passes = p_values[order] <= level / np.arange(len(order), 0, -1)
    rejected = np.empty(len(order), dtype=bool)
    rejected[order] = np.logical_and.accumulate(passes)
    return rejected


def holm_adjusted(p_values: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """Return Holm's adjusted p-values: the lowest level at which Holm's method rejects each hypothesis."""
    order = np.argsort(p_values, kind="stable")
    stepped = np.maximum.accumulate(p_values[order] * np.arange(len(order), 0, -1))
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def fixed_sequence(p_values: Float[np.ndarray, " m"], level: float) -> Bool[np.ndarray, " m"]:
    """Return which hypotheses are rejected when tested in the given order, each at ``level``, until one is not.

    The order must be fixed beforehand; then the chance of one false rejection is at most ``level``.
    """
    rejected: np.ndarray = np.logical_and.accumulate(p_values <= level)
    return rejected
