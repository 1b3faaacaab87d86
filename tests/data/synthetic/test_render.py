"""The brushes, and that each trait shows in the layer it belongs to."""

from __future__ import annotations

import numpy as np
import pytest

from tdumpra.data.synthetic.lesion import paint_lesion
from tdumpra.data.synthetic.modes import Traits
from tdumpra.data.synthetic.photograph import draw_skin, photograph
from tdumpra.data.synthetic.texture import axis, blobs, honeycomb, smooth_noise, step

PLAIN = Traits(melanin=0.3, blood=0.2, irregular=0.3, sharp=0.5)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_smooth_noise_has_unit_variance():
    values = np.stack([smooth_noise(rng(seed), 12, 48) for seed in range(60)])
    assert values.mean() == pytest.approx(0, abs=0.03)
    assert values.std() == pytest.approx(1, abs=0.03)


def test_smooth_noise_is_the_same_field_at_every_resolution():
    coarse, fine = smooth_noise(rng(), 5, 32), smooth_noise(rng(), 5, 96)
    np.testing.assert_allclose(coarse, fine[1::3, 1::3], atol=1e-12)  # pixel centres of 32 are every third of 96


@pytest.mark.parametrize("size", [32, 96, 300])
def test_blobs_are_a_sum_of_gaussians(size):
    x, y, radius, height = rng().uniform(0.05, 0.5, (4, 70))
    down, across = np.meshgrid(axis(size), axis(size), indexing="ij")
    expected = sum(
        h * np.exp(-((across - a) ** 2 + (down - b) ** 2) / (2 * r**2))
        for a, b, r, h in zip(x, y, radius, height, strict=True)
    )
    np.testing.assert_allclose(blobs(x, y, radius, height, size), expected, atol=1e-10)


def test_honeycomb_spans_mesh_and_holes():
    down, across = np.meshgrid(axis(200), axis(200), indexing="ij")
    cells = honeycomb(across, down, 0.3)
    assert cells.min() == pytest.approx(0, abs=0.01)
    assert cells.max() == pytest.approx(1, abs=0.01)
    # three plane waves at 0°, 120° and 240°, written out
    waves = sum(np.cos(2 * np.pi / 0.3 * (np.cos(a) * across + np.sin(a) * down)) for a in (0, 2.0944, 4.18879))
    np.testing.assert_allclose(cells, (waves + 1.5) / 4.5, atol=1e-3)


def test_step_runs_from_zero_to_one():
    np.testing.assert_allclose(step(np.array([-1.0, 0.2, 0.5, 0.8, 9.0]), 0.2, 0.8), [0, 0, 0.5, 1, 1])


@pytest.mark.parametrize(
    ("trait", "layer"),
    [
        ("melanin", "melanin"), ("network", "melanin"), ("globules", "melanin"), ("streaks", "melanin"),
        ("variegation", "melanin"), ("blood", "blood"), ("vessels", "blood"), ("dots", "blood"), ("lacunae", "blood"),
        ("veil", "blue"), ("nests", "blue"), ("cysts", "white"), ("scale", "white"), ("centre", "white"),
    ],
)  # fmt: skip
def test_each_trait_shows_in_its_layer(trait, layer):
    for seed in range(5):
        without = getattr(paint_lesion(PLAIN._replace(**{trait: 0.0}), rng(seed), 48), layer)
        with_it = getattr(paint_lesion(PLAIN._replace(**{trait: 1.0}), rng(seed), 48), layer)
        assert np.abs(with_it - without).max() > 0.2


def test_traits_do_not_change_the_random_numbers():
    """Else the shape, the skin and the hair would carry the class along."""
    states = []
    for traits in (Traits(), Traits(*[1.0] * len(Traits._fields))):
        generator = rng(7)
        paint_lesion(traits, generator, 48)
        states.append(generator.bit_generator.state)
    assert states[0] == states[1]


def test_layers_stay_inside_the_frame_and_their_range():
    full = Traits(*[1.0] * len(Traits._fields))
    for seed in range(25):
        layers = paint_lesion(full, rng(seed), 40)
        for layer in layers:
            assert np.isfinite(layer).all()
            assert layer[0].max() == layer[-1].max() == layer[:, 0].max() == layer[:, -1].max() == 0
        assert layers.blue.min() >= 0 <= layers.white.min()
        assert layers.blue.max() <= 1 >= layers.white.max()


def test_a_sharp_border_is_steeper():
    soft, sharp = (paint_lesion(PLAIN._replace(sharp=s), rng(3), 96).melanin for s in (0.0, 1.0))
    assert np.abs(np.diff(sharp)).max() > 1.3 * np.abs(np.diff(soft)).max()


def test_pigment_darkens_the_photograph():
    skin = draw_skin(rng())
    light, dark = (
        photograph(paint_lesion(PLAIN._replace(melanin=m), rng(1), 64), skin, rng(2), 64)[24:40, 24:40].mean()
        for m in (0.1, 0.9)
    )
    assert dark < light - 40
