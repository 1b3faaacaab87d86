"""The generative model: exact posteriors, calibrated labels, the promised marginals. Nothing is rendered here."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, multivariate_normal

from tdumpra.data.synthetic.latent import draw_lesions, mixture
from tdumpra.data.synthetic.modes import BRIDGES, CLASS_NAMES, CLASS_SHARES, MODES, Traits

SIGMA = 0.08
MEANS = {f"{mode.label} {mode.name}": np.array(mode.traits) for mode in MODES}


@pytest.fixture(scope="module")
def lesions():
    return draw_lesions(20_000, seed=3)


def reference_posterior(traits, ambiguous):
    """Bayes' rule, component by component, from the tables alone."""
    left = dict(CLASS_SHARES)
    joint = dict.fromkeys(CLASS_NAMES, 0.0)

    def density(mean):
        return multivariate_normal.pdf(traits, mean, SIGMA**2)

    for first, second, share in BRIDGES:
        for t in (0.35, 0.5, 0.65):
            weight = ambiguous * share / 3
            for name, part in ((first, 1 - t), (second, t)):
                joint[name.split()[0]] += weight * part * density((1 - t) * MEANS[first] + t * MEANS[second])
                left[name.split()[0]] -= weight * part
    for mode in MODES:
        joint[mode.label] += left[mode.label] * mode.share * density(np.array(mode.traits))
    return np.array(list(joint.values())) / sum(joint.values())


def test_the_posterior_is_bayes_rule(lesions):
    hard = np.argsort(lesions.posterior.max(1))[:5]
    for row in [0, 1, 2, *hard]:
        expected = reference_posterior(lesions.traits[row], ambiguous=0.2)
        np.testing.assert_allclose(lesions.posterior[row], expected, atol=1e-12)


def test_the_middle_of_a_bridge_is_a_coin_toss():
    # The steps at 0.35 and 0.65 stand symmetrically about the middle and lean either way by as much; the modes
    # themselves are 6.9 σ away, so exp(-6.9²/2) = 5e-11 of their density is left.
    middle = (MEANS["mel superficial"] + MEANS["nv reticular"]) / 2
    p = mixture(0.2).posterior(middle[None])[0]
    assert p[CLASS_NAMES.index("mel")] == pytest.approx(0.5, abs=1e-4)
    assert p[CLASS_NAMES.index("nv")] == pytest.approx(0.5, abs=1e-4)


def test_posteriors_are_distributions(lesions):
    np.testing.assert_allclose(lesions.posterior.sum(1), 1, atol=1e-12)
    assert lesions.posterior.min() >= 0


def calibration_chi_square(p, labels):
    """Hosmer-Lemeshow, class by class over ten bins: about χ² with as many degrees of freedom as bins were filled."""
    statistic, bins = 0.0, 0
    for c in range(p.shape[1]):
        which = np.digitize(p[:, c], np.linspace(0.05, 0.95, 9))
        for b in np.unique(which):
            here = which == b
            variance = (p[here, c] * (1 - p[here, c])).sum()
            if variance > 3:
                statistic += ((labels[here] == c) - p[here, c]).sum() ** 2 / variance
                bins += 1
    return statistic, bins


def test_labels_are_drawn_from_the_posterior(lesions):
    statistic, bins = calibration_chi_square(lesions.posterior, lesions.labels)
    assert bins > 20
    assert chi2.sf(statistic, bins) > 1e-3


def test_the_calibration_test_can_fail(lesions):
    sharper = lesions.posterior**2
    statistic, bins = calibration_chi_square(sharper / sharper.sum(1, keepdims=True), lesions.labels)
    assert chi2.sf(statistic, bins) < 1e-9


def test_bayes_accuracy_is_what_the_posterior_expects(lesions):
    right = (lesions.posterior.argmax(1) == lesions.labels).mean()
    expected = lesions.posterior.max(1).mean()
    assert expected == pytest.approx(0.92, abs=0.005)  # the figure that the documentation states
    assert right == pytest.approx(expected, abs=0.006)  # three standard errors


@given(st.floats(0, 0.4))
def test_class_shares_do_not_depend_on_the_ambiguous_share(ambiguous):
    mix = mixture(ambiguous)
    np.testing.assert_allclose(mix.weights @ mix.classes, list(CLASS_SHARES.values()), atol=1e-12)
    assert (mix.weights > 0).all()
    assert mix.weights[mix.is_bridge].sum() == pytest.approx(ambiguous)


def test_shares_of_the_tables_add_up():
    assert sum(CLASS_SHARES.values()) == pytest.approx(1)
    assert sum(share for *_, share in BRIDGES) == pytest.approx(1)
    for name in CLASS_NAMES:
        assert sum(mode.share for mode in MODES if mode.label == name) == pytest.approx(1)


@pytest.mark.parametrize("ambiguous", [0.0, 0.1, 0.2, 0.4])
def test_the_ambiguous_share_is_the_stated_one(ambiguous):
    drawn = draw_lesions(5_000, seed=1, ambiguous=ambiguous)
    on_bridge = mixture(ambiguous).is_bridge[drawn.components]
    assert on_bridge.mean() == pytest.approx(ambiguous, abs=0.005)
    assert (drawn.posterior.max(1) < 0.9).mean() == pytest.approx(ambiguous, abs=0.015)  # and it is what one sees


@pytest.mark.parametrize("seed", range(20))
def test_no_class_vanishes_from_a_small_data_set(seed):
    assert (np.bincount(draw_lesions(145, seed=seed).labels, minlength=7) >= 2).all()


def test_a_lesion_does_not_depend_on_how_many_are_drawn():
    few, many = draw_lesions(7, seed=5), draw_lesions(40, seed=5)
    np.testing.assert_array_equal(few.traits, many.traits[:7])
    np.testing.assert_array_equal(few.labels, many.labels[:7])


def test_seeds_differ():
    assert not np.array_equal(draw_lesions(10, seed=0).traits, draw_lesions(10, seed=1).traits)


def test_one_prototype_per_class_is_not_enough(lesions):
    """Nearest class mean against nearest mode, on traits read without error."""

    def nearest(points):
        return ((lesions.traits[:, None] - points) ** 2).sum(-1).argmin(1)

    class_means = np.stack([lesions.traits[lesions.labels == c].mean(0) for c in range(7)])
    mode_class = np.array([CLASS_NAMES.index(mode.label) for mode in MODES])
    single = (nearest(class_means) == lesions.labels).mean()
    several = (mode_class[nearest(np.array([mode.traits for mode in MODES]))] == lesions.labels).mean()
    assert single < 0.78
    assert several > 0.90


def test_traits_stay_in_order():
    assert Traits._fields[0] == "melanin"  # the rows of `Lesions.traits` are read by position
    assert all(0 <= value <= 1 for mode in MODES for value in mode.traits)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n": 0}, ValueError, "n must be at least 1, not 0"),
        ({"n": 5, "seed": -1}, ValueError, "seed must be at least 0, not -1"),
        ({"n": 5, "ambiguous": 0.41}, ValueError, "ambiguous must lie between 0 and 0.4, not 0.41"),
        ({"n": 5, "ambiguous": "some"}, TypeError, "ambiguous must be a number, not 'some'"),
    ],
)
def test_bad_arguments_get_a_sentence(arguments, error, message):
    with pytest.raises(error, match=message):
        draw_lesions(**arguments)
