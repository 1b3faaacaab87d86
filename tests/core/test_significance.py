import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from tdumpra.core import significance
from tdumpra.core.significance import (
    betting_power,
    betting_stakes,
    betting_test,
    clopper_pearson_upper,
    fixed_sequence,
    holm,
    holm_adjusted,
    loss_upper_bound,
    mcnemar_exact,
    sign_flip_test,
    sign_test_power,
)


class TestMcNemar:
    @pytest.mark.parametrize(("fixed", "broken"), [(0, 1), (5, 5), (7, 2), (2, 7), (30, 11), (0, 12)])
    def test_equals_the_binomial_sum(self, fixed, broken):
        n, k = fixed + broken, min(fixed, broken)
        tail = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
        assert mcnemar_exact(fixed, broken) == pytest.approx(min(1.0, 2 * tail))
        assert mcnemar_exact(fixed, broken) == pytest.approx(binomtest(fixed, n).pvalue)

    def test_by_hand(self):
        # 3 fixed, none broken: 2 x 1/8
        assert mcnemar_exact(3, 0) == pytest.approx(0.25)

    def test_no_change_is_no_evidence(self):
        assert mcnemar_exact(0, 0) == 1.0


class TestClopperPearson:
    @pytest.mark.parametrize(("events", "trials"), [(0, 10), (1, 10), (3, 50), (9, 10), (200, 1000)])
    @pytest.mark.parametrize("level", [0.9, 0.95])
    def test_equals_scipys_interval_and_its_own_definition(self, events, trials, level):
        upper = clopper_pearson_upper(events, trials, level=level)
        assert upper == pytest.approx(
            binomtest(events, trials, alternative="less").proportion_ci(level, method="exact").high
        )
        # at that rate, so few events have a chance of 1 - level
        assert binom.cdf(events, trials, upper) == pytest.approx(1 - level)

    def test_by_hand(self):
        # none in n: 1 - 0.05^(1/n); for 59 trials 0.0495 ("59 without failure show 95 % at 95 %")
        assert clopper_pearson_upper(0, 59) == pytest.approx(1 - 0.05 ** (1 / 59))

    @pytest.mark.parametrize(("events", "trials"), [(0, 0), (4, 4)])
    def test_no_bound_but_one(self, events, trials):
        assert clopper_pearson_upper(events, trials) == 1.0


def enumerate_flips(differences, alternative):
    """All 2^G signs."""
    observed, hits, flips = sum(differences), 0, 0
    for signs in itertools.product((-1, 1), repeat=len(differences)):
        total = sum(sign * value for sign, value in zip(signs, differences, strict=True))
        hits += total >= observed if alternative == "greater" else abs(total) >= abs(observed)
        flips += 1
    return hits / flips


class TestSignFlip:
    @given(st.lists(st.integers(-4, 4), max_size=9), st.sampled_from(["two-sided", "greater"]))
    def test_equals_all_flips(self, differences, alternative):
        found = sign_flip_test(np.array(differences, dtype=np.int64), alternative=alternative)
        assert found == pytest.approx(enumerate_flips(differences, alternative))

    @pytest.mark.parametrize("alternative", ["two-sided", "greater"])
    @pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
    def test_equals_all_flips_of_larger_groups(self, alternative, dtype):
        differences = np.random.default_rng(0).integers(-20, 25, size=12).astype(dtype)
        found = sign_flip_test(differences, alternative=alternative)
        assert found == pytest.approx(enumerate_flips(differences.tolist(), alternative))

    def test_by_hand(self):
        # +1 +1 +1: the sum 3 needs one flip of eight, or -3 another
        assert sign_flip_test(np.array([1, 1, 1]), alternative="greater") == pytest.approx(1 / 8)
        assert sign_flip_test(np.array([1, 1, 1])) == pytest.approx(2 / 8)

    def test_the_default_is_two_sided(self):
        assert sign_flip_test(np.array([-1, -1, -1])) == pytest.approx(2 / 8)
        assert sign_flip_test(np.array([-1, -1, -1]), alternative="greater") == 1.0

    def test_with_single_steps_it_is_mcnemars_test(self):
        for fixed, broken in [(9, 2), (4, 4), (1, 6)]:
            differences = np.array([1] * fixed + [-1] * broken + [0] * 5)
            assert sign_flip_test(differences) == pytest.approx(mcnemar_exact(fixed, broken))

    @pytest.mark.parametrize("differences", [[], [0, 0, 0]])
    def test_no_change_is_no_evidence(self, differences):
        assert sign_flip_test(np.array(differences, dtype=np.int64)) == 1.0

    def test_many_groups(self):
        differences = np.array([1] * 700 + [-1] * 600)
        assert sign_flip_test(differences) == pytest.approx(mcnemar_exact(700, 600))

    @given(st.lists(st.integers(-5, 5), min_size=1, max_size=12), st.integers(1, 4))
    def test_scale_and_order_do_not_matter(self, differences, factor):
        d = np.array(differences)
        assert sign_flip_test(d * factor) == pytest.approx(sign_flip_test(d[::-1]))


@pytest.mark.parametrize(("fixed", "broken"), [(0, 0), (3, 0), (10, 4), (4, 10), (60, 41), (7, 7)])
def test_mcnemar_equals_statsmodels(fixed, broken):
    expected = mcnemar([[5, fixed], [broken, 9]], exact=True).pvalue if fixed + broken else 1.0
    assert mcnemar_exact(fixed, broken) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("events", "trials"), [(0, 10), (3, 50), (50, 50), (34, 1879)])
def test_clopper_pearson_equals_statsmodels(events, trials):
    expected = proportion_confint(events, trials, alpha=0.1, method="beta")[1]  # two-sided 90 % is one-sided 95 %
    assert clopper_pearson_upper(events, trials) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("m", [1, 2, 7])
def test_holm_equals_statsmodels(seed, m):
    p_values = np.random.default_rng(seed).random(m) * 0.1
    assert (holm(p_values, 0.05) == multipletests(p_values, alpha=0.05, method="holm")[0]).all()


def test_fixed_sequence_stops_at_the_first_that_fails():
    p_values = np.array([0.01, 0.05, 0.2, 0.001])
    assert fixed_sequence(p_values, 0.05).tolist() == [True, True, False, False]
    assert fixed_sequence(p_values[::-1], 0.05).tolist() == [True, False, False, False]


def test_no_hypotheses():
    assert not len(holm(np.array([]), 0.05))
    assert not len(fixed_sequence(np.array([]), 0.05))


def test_the_sign_flip_test_of_single_images_equals_statsmodels_mcnemar():
    gained = np.array([1] * 12 + [-1] * 4 + [0] * 30)
    assert sign_flip_test(gained) == pytest.approx(mcnemar([[0, 12], [4, 0]], exact=True).pvalue, abs=1e-9)


class TestHolmAdjusted:
    def test_by_hand(self):
        # 4 x 0.01, then 3 x 0.02 = 0.06, then 2 x 0.03 = 0.06, then 0.5
        found = holm_adjusted(np.array([0.03, 0.01, 0.5, 0.02]))
        assert found.tolist() == pytest.approx([0.06, 0.04, 0.5, 0.06])
        assert holm_adjusted(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]

    @pytest.mark.parametrize("level", [0.01, 0.05, 0.2])
    def test_it_rejects_what_holm_rejects(self, level):
        rng = np.random.default_rng(0)
        for _ in range(50):
            p_values = rng.random(6) ** 3
            assert ((holm_adjusted(p_values) <= level) == holm(p_values, level)).all()


def naive_p_value(gains, squares, bound, level):
    """The bets one by one, in plain floats: p-value and stakes."""
    capital, goal, peak, stakes = 1.0, 1 / level, 1.0, []
    for t, gain in enumerate(gains):
        rest = squares * (len(gains) - t) / len(gains)
        wanted = math.sqrt(2 * math.log(goal / capital) / rest) if capital else math.inf
        stakes.append(min(1 / bound, wanted))
        capital *= max(0.0, 1 + stakes[-1] * gain)
        peak = max(peak, capital)
        if capital >= goal:
            goal = 10 * capital
    return 1 / peak, stakes


def p_value(gains, **terms) -> float:
    return float(betting_test(gains, betting_stakes(gains, **terms)))


class TestBetting:
    @pytest.mark.parametrize("seed", range(8))
    @pytest.mark.parametrize("bound", [1, 3, 10])
    def test_equals_the_naive_bets(self, seed, bound):
        rng = np.random.default_rng(seed)
        gains = rng.integers(-bound, bound + 1, size=(3, 40)) * (rng.random((3, 40)) < 0.4) + rng.integers(
            2, size=(3, 40)
        )
        gains = np.minimum(gains, bound).astype(float)
        terms = {"squares": 30.0, "bound": float(bound), "level": 0.05}
        stakes = betting_stakes(gains, **terms)
        for row, row_stakes, p in zip(gains, stakes, np.asarray(betting_test(gains, stakes)), strict=True):
            naive, naive_stakes = naive_p_value(row, **terms)
            assert p == pytest.approx(naive)
            assert row_stakes == pytest.approx(naive_stakes)

    def test_by_hand(self):
        # so few squares are expected that the bettor stakes the most that is allowed, 1/2: 1.5 x 1.5 x 0.5 x 2
        gains = np.array([1.0, 1.0, -1.0, 2.0])
        assert p_value(gains, squares=0.01, bound=2, level=0.05) == pytest.approx(1 / 2.25)
        # without a bound that matters, the first stake is sqrt(2 log 20 / 24)
        assert betting_stakes(np.ones(3), squares=24, bound=1, level=0.05)[0] == pytest.approx(
            math.sqrt(math.log(20) / 12)
        )

    @pytest.mark.parametrize("gains", [[], [0.0, 0.0], [-1.0, -1.0], [-3.0, 3.0, 3.0, 3.0]])
    def test_no_change_a_loss_and_ruin_are_no_evidence(self, gains):
        assert p_value(np.array(gains), squares=0.1, bound=3, level=0.05) == 1.0

    def test_a_stake_knows_only_what_came_before(self):
        gains = np.random.default_rng(0).integers(-2, 3, size=30).astype(float)
        other = np.where(np.arange(30) < 20, gains, -gains)
        stakes, of_other = (betting_stakes(each, squares=900, bound=2, level=0.05) for each in (gains, other))
        assert (stakes[:21] == of_other[:21]).all()
        assert not np.allclose(stakes[21:], of_other[21:])

    @given(st.lists(st.integers(-4, 4), min_size=1, max_size=12), st.floats(0.1, 8.0))
    def test_the_unit_does_not_matter(self, gains, unit):
        given_p = p_value(np.array(gains, dtype=float), squares=9, bound=4, level=0.05)
        scaled = p_value(unit * np.array(gains, dtype=float), squares=9 * unit**2, bound=4 * unit, level=0.05)
        assert scaled == pytest.approx(given_p, rel=1e-6)

    @pytest.mark.parametrize(("lost", "squares"), [(1, 4.0), (2, 8.0), (3, 2.0), (9, 30.0)])
    @pytest.mark.parametrize("level", [0.05, 0.2, 0.5])
    def test_the_level_holds_exactly(self, lost, squares, level):
        """All sequences of eight groups that gain 1 or lose more, so that the mean is zero, with their chances."""
        gains = np.array(list(itertools.product([1.0, -float(lost)], repeat=8)))
        chance = np.where(gains > 0, lost / (1 + lost), 1 / (1 + lost)).prod(axis=1)
        stakes = betting_stakes(gains, squares=squares, bound=lost, level=level)
        capital = (1 + stakes * gains).prod(axis=1)
        assert chance.sum() == pytest.approx(1)
        assert (chance * capital).sum() == pytest.approx(1)  # no bet is expected to win
        p_values = betting_test(gains, stakes)
        for aim in (0.01, 0.05, 0.1, 0.2, 0.5):
            assert chance[p_values <= aim].sum() <= aim + 1e-12

    def test_the_sign_flip_test_does_not_hold_it(self):
        """Fixes of one image, breaks of nine, mean zero: of eight groups it calls a gain proven far too often."""
        gains = np.array(list(itertools.product([1, -9], repeat=8)))
        chance = np.where(gains > 0, 0.9, 0.1).prod(axis=1)
        p_values = np.array([sign_flip_test(each, alternative="greater") for each in gains])
        assert chance[p_values <= 0.05].sum() > 0.4


class TestLossUpperBound:
    def bound(self, gains, sizes, level=0.05):
        stakes = betting_stakes(gains + 0.05 * sizes, squares=(gains**2).sum() + 1, bound=sizes.max(), level=level)
        return loss_upper_bound(gains, sizes, stakes, level=level), stakes

    def test_by_hand(self):
        # nothing lost in 60 single images at the full stake: (1 + delta)^60 = 20
        found, stakes = self.bound(np.zeros(60), np.ones(60))
        assert (stakes == 1).all()
        assert found == pytest.approx(20 ** (1 / 60) - 1)

    @pytest.mark.parametrize("seed", range(5))
    def test_it_is_where_the_test_begins_to_reject(self, seed):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(1, 4, size=80).astype(float)
        gains = -sizes * (rng.random(80) < 0.05)
        found, stakes = self.bound(gains, sizes)
        assert 0 < found < 1
        assert betting_test(gains + (found + 1e-9) * sizes, stakes) <= 0.05
        assert betting_test(gains + (found - 1e-6) * sizes, stakes) > 0.05

    def test_too_few_and_losses(self):
        assert self.bound(np.zeros(2), np.ones(2))[0] == 1.0
        assert self.bound(-np.ones(50), np.ones(50))[0] == 1.0
        assert self.bound(np.ones(50), np.ones(50))[0] == 0.0

    @pytest.mark.parametrize("lost_in", [1, 6])
    def test_the_true_loss_lies_below_it_as_often_as_promised(self, lost_in):
        """One in twenty images is lost, in single images or six at a time."""
        rng, runs, below = np.random.default_rng(0), 300, 0
        for _ in range(runs):
            sizes = np.where(rng.random(120) < 0.5, 1.0, 6.0)
            loses = (sizes == lost_in) & (rng.random(120) < 0.05 * 3.5 / (lost_in * 0.5))
            below += self.bound(-sizes * loses, sizes)[0] < 0.05
        assert below <= binom.ppf(0.999, runs, 0.05)


class TestPower:
    @pytest.mark.parametrize(("groups", "fixed"), [(0, 0.9), (3, 1.0), (5, 1.0), (40, 0.7), (200, 0.6)])
    def test_of_the_sign_test_equals_the_sum_over_outcomes(self, groups, fixed):
        def rejects(k):
            return sum(math.comb(groups, i) for i in range(k, groups + 1)) / 2**groups <= 0.05

        chances = [math.comb(groups, k) * fixed**k * (1 - fixed) ** (groups - k) for k in range(groups + 1)]
        expected = sum(chance for k, chance in enumerate(chances) if rejects(k))
        assert sign_test_power(groups, fixed, level=0.05) == pytest.approx(expected)

    def test_of_bets(self):
        def power(groups, fixed, bound=3):
            terms = {"squares": float(groups), "bound": bound, "level": 0.05, "seed": 0}
            return betting_power(np.ones(5), groups, fixed, **terms)

        assert power(3, 1.0) == 0.0  # (4/3)^3 is below 20
        assert power(11, 1.0) == 1.0  # (4/3)^11 is above it
        assert power(11, 1.0, bound=4) == 0.0
        assert power(40, 0.5) <= 0.05 + 0.03
        assert power(40, 0.6) < power(40, 0.7) < power(40, 0.8)
        assert power(80, 0.7) > power(40, 0.7)
        assert power(0, 0.7) == 0.0


@pytest.mark.parametrize("alternative", ["two-sided", "greater"])
@pytest.mark.parametrize("sizes", [(1,), (3,), (1, 2, 3)])
def test_many_groups_have_the_p_value_that_multiplying_out_gives(monkeypatch, sizes, alternative):
    rng = np.random.default_rng(0)
    differences = rng.choice(sizes, 900) * rng.choice([-1, 1], 900, p=[0.47, 0.53])
    multiplied_out = sign_flip_test(differences, alternative=alternative)
    monkeypatch.setattr(significance, "_MULTIPLIED_OUT", 100)
    assert sign_flip_test(differences, alternative=alternative) == pytest.approx(
        multiplied_out, rel=1e-9 if len(sizes) == 1 else 5e-3
    )
