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

from tdumpra.core.significance import (
    clopper_pearson_upper,
    fixed_sequence,
    holm,
    holm_adjusted,
    mcnemar_exact,
    sign_flip_test,
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
