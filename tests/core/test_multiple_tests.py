"""Tests and bounds against statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from tdumpra.core.significance import clopper_pearson_upper, fixed_sequence, holm, mcnemar_exact, sign_flip_test


@pytest.mark.parametrize(("fixed", "broken"), [(0, 0), (3, 0), (10, 4), (4, 10), (60, 41), (7, 7)])
def test_mcnemar(fixed, broken):
    expected = mcnemar([[5, fixed], [broken, 9]], exact=True).pvalue if fixed + broken else 1.0
    assert mcnemar_exact(fixed, broken) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("events", "trials"), [(0, 10), (3, 50), (50, 50), (34, 1879)])
def test_clopper_pearson(events, trials):
    expected = proportion_confint(events, trials, alpha=0.1, method="beta")[1]  # two-sided 90 % is one-sided 95 %
    assert clopper_pearson_upper(events, trials) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("m", [1, 2, 7])
def test_holm(seed, m):
    p_values = np.random.default_rng(seed).random(m) * 0.1
    assert (holm(p_values, 0.05) == multipletests(p_values, alpha=0.05, method="holm")[0]).all()


def test_fixed_sequence_stops_at_the_first_that_fails():
    p_values = np.array([0.01, 0.05, 0.2, 0.001])
    assert fixed_sequence(p_values, 0.05).tolist() == [True, True, False, False]
    assert fixed_sequence(p_values[::-1], 0.05).tolist() == [True, False, False, False]


def test_nothing_to_test():
    assert not len(holm(np.array([]), 0.05))
    assert not len(fixed_sequence(np.array([]), 0.05))


def test_single_images_make_the_sign_flip_test_mcnemars():
    gained = np.array([1] * 12 + [-1] * 4 + [0] * 30)
    assert sign_flip_test(gained) == pytest.approx(mcnemar([[0, 12], [4, 0]], exact=True).pvalue, abs=1e-9)
