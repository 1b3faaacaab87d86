r"""The statistics of the synthetic lesions: which appearances exist, and the class probabilities of each.

A lesion's appearance is a vector of traits :math:`a` (how much pigment, how much network, ...). It is drawn first, from
a Gaussian mixture; its class is drawn after it, from the posterior:

.. math::
    p(a) = \sum_k w_k \, \mathcal N(a; \mu_k, \sigma^2 I), \qquad
    p(y \mid a) = \frac{1}{p(a)} \sum_k w_k \, \mathcal N(a; \mu_k, \sigma^2 I) \, B_{ky}

Component :math:`k` is either a *mode*, one typical look of one class (:math:`B_k` is one-hot), or a step on a *bridge*
between two look-alike modes, where both classes occur. The weights :math:`w` are such that the class marginals are
exactly ``CLASS_SHARES``, whatever the ambiguous share. Everything else in a picture (shape, skin, rotation, light,
hair, noise) is drawn without regard to the class, so the posterior given the pixels is this one, blurred only by how
well the traits can be read from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from tdumpra.checks import check_count, check_unit_interval
from tdumpra.data.synthetic.modes import AMBIGUOUS_MAX, BRIDGES, CLASS_NAMES, CLASS_SHARES, MODES

_SIGMA = 0.08  # spread of each trait around its component; bridges stand three to six of these from their modes
_BRIDGE_STEPS = (0.35, 0.5, 0.65)  # how far from the first mode to the second; also the second class's share there
_GOLDEN = (5**0.5 - 1) / 2
_COMPONENTS, _TRAITS = 0, 1  # the streams of this module; rendering uses others


class Lesions(NamedTuple):
    """A sample of lesions: appearance, exact class posterior given it, and the class drawn from that posterior."""

    traits: NDArray[np.float64]  # (n, len(Traits._fields)); a trait may fall a little outside [0, 1]
    posterior: NDArray[np.float64]  # (n, 7)
    labels: NDArray[np.int64]  # (n,)
    components: NDArray[np.int64]  # (n,) rows of the mixture


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """The mixture of the module's formula, as arrays."""

    names: tuple[str, ...]  # "nv reticular" for a mode, "mel superficial ~ nv reticular" for a step of a bridge
    weights: NDArray[np.float64]  # w, (K,)
    means: NDArray[np.float64]  # μ, (K, traits)
    classes: NDArray[np.float64]  # B, (K, 7)

    @property
    def is_bridge(self) -> NDArray[np.bool_]:
        """Return whether each component stands between two classes."""
        return np.asarray(self.classes.max(1) < 1)

    def posterior(self, traits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the exact p(class | traits) for each row."""
        squared = ((traits[:, None, :] - self.means) ** 2).sum(-1)  # (n, K)
        log_joint = np.log(self.weights) - squared / (2 * _SIGMA**2)
        responsibility = np.exp(log_joint - logsumexp(log_joint, axis=1, keepdims=True))
        p = responsibility @ self.classes
        return np.asarray(p / p.sum(1, keepdims=True))


@lru_cache(maxsize=16)
def mixture(ambiguous: float) -> Mixture:
    """Return the mixture in which a share ``ambiguous`` of all lesions lies on a bridge."""
    mode_means = {f"{m.label} {m.name}": np.array(m.traits) for m in MODES}
    one_hot = dict(zip(CLASS_NAMES, np.eye(len(CLASS_NAMES)), strict=True))

    names, weights, means, classes = [], [], [], []
    for first, second, share in BRIDGES:
        for t in _BRIDGE_STEPS:
            names.append(f"{first} ~ {second}")
            weights.append(ambiguous * share / len(_BRIDGE_STEPS))
            means.append((1 - t) * mode_means[first] + t * mode_means[second])
            classes.append((1 - t) * one_hot[first.split()[0]] + t * one_hot[second.split()[0]])
    typical = np.array(list(CLASS_SHARES.values())) - np.array(weights) @ np.array(classes)
    for mode in MODES:
        names.append(f"{mode.label} {mode.name}")
        weights.append(mode.share * typical[CLASS_NAMES.index(mode.label)])
        means.append(mode_means[names[-1]])
        classes.append(one_hot[mode.label])
    live = np.array(weights) > 0  # without ambiguity there are no bridges
    return Mixture(
        names=tuple(name for name, kept in zip(names, live, strict=True) if kept),
        weights=np.array(weights)[live],
        means=np.array(means)[live],
        classes=np.array(classes)[live],
    )


def stream(seed: int, *place: int) -> np.random.Generator:
    """Return a generator for one place in the data set, whatever was drawn before."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *place])))


class Appearance(NamedTuple):
    """One lesion as it is drawn: component, traits, and the uniform number that will decide its class."""

    component: int
    traits: NDArray[np.float64]  # a trait may fall a little outside [0, 1]
    lot: float


def appearance(lesion: int, *, seed: int, mix: Mixture) -> Appearance:
    """Draw lesion number ``lesion`` of data set ``seed``, without drawing the others.

    The component comes from the golden-ratio sequence ``u + lesion·φ mod 1`` rather than from independent draws. Each
    lesion still has the mixture's distribution (``u`` is uniform), but any run of lesions holds nearly the expected
    number of every component, so that a rare class does not vanish from a small data set by bad luck.
    """
    position = (stream(seed, _COMPONENTS).random() + lesion * _GOLDEN) % 1.0
    cumulative = np.cumsum(mix.weights)
    component = int(np.searchsorted(cumulative[:-1], position * cumulative[-1], side="right"))
    own = stream(seed, _TRAITS, lesion)
    lot = own.random()
    return Appearance(component, own.normal(mix.means[component], _SIGMA), lot)


def draw_lesions(n: int, *, seed: int = 0, ambiguous: float = 0.2) -> Lesions:
    """Draw lesions ``0 … n-1`` of data set ``seed``: some ten thousand a second, since nothing is rendered.

    Given the appearances, the classes are independent draws from the posteriors: what a calibration test needs.
    """
    check_count(n, "n")
    check_count(seed, "seed", least=0)
    check_unit_interval(ambiguous, "ambiguous", upper=AMBIGUOUS_MAX)
    mix = mixture(float(ambiguous))
    drawn = [appearance(lesion, seed=seed, mix=mix) for lesion in range(n)]
    traits = np.stack([d.traits for d in drawn])
    posterior = mix.posterior(traits)
    lots = np.array([d.lot for d in drawn])
    labels = (posterior.cumsum(1)[:, :-1] <= lots[:, None]).sum(1)
    return Lesions(traits, posterior, labels, np.array([d.component for d in drawn]))
