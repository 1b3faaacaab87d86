"""A lesion's optical layers in its own frame: what its traits and its individual shape do to light.

Pigment and blood absorb, so they are optical densities that multiply up; haze, scar and keratin scatter, so they are
opacities that cover. Two photographs of one lesion share these layers and differ in everything else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tdumpra.data.synthetic.modes import Traits
from tdumpra.data.synthetic.texture import (
    Field,
    axis,
    blobs,
    branching_curves,
    honeycomb,
    scatter,
    smooth_noise,
    step,
)


class Layers(NamedTuple):
    """Four maps over [-1, 1]², zero outside the lesion."""

    melanin: Field  # optical density of brown pigment
    blood: Field  # optical density of blood
    blue: Field  # opacity of blue-grey haze (pigment that lies deep)
    white: Field  # opacity of white matter: scar, cysts, keratin


class _Ground(NamedTuple):
    """Maps that all structures of one lesion share."""

    x: Field
    y: Field
    inside: Field  # soft mask
    depth: Field  # below the border: 0 there, about 1 in the middle
    coarse: Field  # noise of three grains
    medium: Field
    fine: Field
    rays: Field  # -1 to 1 around the lesion, many times


def paint_lesion(traits: Traits, rng: np.random.Generator, size: int) -> Layers:
    """Paint the layers of a lesion with these traits; ``rng`` gives it its individual shape and texture.

    Every lesion draws every structure, present or not: its random numbers, and with them its shape, do not depend on
    its traits.
    """
    ground = _outline(traits, rng, size)
    dots = step(scatter(rng, 80, (0.018, 0.034), size, within=0.62) + 0.12 * ground.fine, 0.3, 0.85)
    lakes = step(scatter(rng, 34, (0.05, 0.095), size, within=0.52) + 0.08 * ground.medium, 0.35, 0.85)
    return Layers(
        melanin=ground.inside * _melanin(traits, rng, ground, dots),
        blood=ground.inside * _blood(traits, rng, ground, lakes),
        blue=ground.inside * _blue(traits, rng, ground, dots, lakes),
        white=ground.inside * _white(traits, rng, ground),
    )


def _outline(traits: Traits, rng: np.random.Generator, size: int) -> _Ground:
    coarse, medium, fine = (smooth_noise(rng, cells, size) for cells in (5, 13, 38))
    radius = rng.uniform(0.42, 0.60)
    squeeze = rng.uniform(0.72, 1.0) ** 0.5
    across, down = np.meshgrid(axis(size), axis(size))
    x, y = across * squeeze, down / squeeze
    distance = np.maximum(np.hypot(x, y), 1e-9)  # an odd size has a pixel at the very centre
    direction = (x + 1j * y) / distance
    rim = np.ones((size, size))
    harmonic = direction
    for k, phase in zip(range(2, 7), rng.uniform(0, 2 * np.pi, 5), strict=True):
        harmonic = harmonic * direction  # e^{ikθ}
        rim += (0.02 + 0.24 * traits.irregular) / k * (harmonic * np.exp(1j * phase)).real
    rays = np.cos(rng.integers(20, 28) * np.angle(direction) + 1.2 * coarse + 1.1 * medium)
    rim += 0.07 * traits.streaks * rays * (1 + 0.5 * coarse)
    ragged = (0.02 + 0.14 * traits.irregular) * (0.6 * coarse + 0.4 * medium) + 0.035 * fine
    depth = rim - distance / radius + ragged
    softness = 0.05 + 0.23 * (1 - traits.sharp)
    frame = step(np.maximum(np.abs(across), np.abs(down)), 0.85, 0.95)  # nothing reaches the edge of the layers
    inside = step(depth, -softness, softness) * (1 - frame)
    return _Ground(x, y, inside, depth, coarse, medium, fine, rays)


def _melanin(traits: Traits, rng: np.random.Generator, ground: _Ground, dots: Field) -> Field:
    x, y, _, depth, coarse, medium, fine, rays = ground
    lean = rng.uniform(0, 2 * np.pi)
    tilt = 2 * (np.cos(lean) * x + np.sin(lean) * y)
    uneven = traits.variegation * (0.55 * coarse + 0.3 * medium + 0.35 * tilt)
    base = (0.10 + 1.65 * traits.melanin**1.5) * np.exp(uneven + 0.13 * coarse + 0.15 * medium + 0.15 * fine)
    base *= 0.62 + 0.5 * np.clip(depth, 0, 1)  # thicker in the middle

    warp = 0.045 * smooth_noise(rng, 8, len(x))
    holes = honeycomb(x + warp, y + 0.03 * medium, rng.uniform(0.095, 0.125))
    mesh = 1 - step(holes + 0.05 * fine, 0.05, 0.65)
    base *= 1 + traits.network * (0.75 + 0.25 * np.tanh(coarse)) * (1.35 * mesh - 0.6)

    clods = 0.7 * traits.globules * dots * step(depth, -0.05, 0.25)
    streaks = 0.28 * traits.streaks * (1 + rays) * (1 - step(depth, 0.05, 0.38))
    return np.asarray(base + clods + streaks)


def _blood(traits: Traits, rng: np.random.Generator, ground: _Ground, lakes: Field) -> Field:
    size = len(lakes)
    flush = traits.blood * (0.55 + 0.15 * ground.coarse + 0.11 * ground.medium + 0.09 * ground.fine)
    vx, vy, width = branching_curves(rng, 4)
    tree = np.minimum(blobs(vx, vy, 0.006 + 0.011 * width, 0.35 + 0.4 * width, size), 1.0)
    points = step(scatter(rng, 100, (0.013, 0.021), size, within=0.6), 0.2, 0.9)
    lake = lakes * (1.0 + 0.2 * ground.coarse + 0.15 * ground.medium)
    return flush + 0.8 * traits.vessels * tree + 0.75 * traits.dots * points + 1.2 * traits.lacunae * lake


def _blue(traits: Traits, rng: np.random.Generator, ground: _Ground, dots: Field, lakes: Field) -> Field:
    size = len(dots)
    haze = step(smooth_noise(rng, 3, size) + 0.25 * ground.medium, -1.4, 0.9)
    ovoids = step(scatter(rng, 8, (0.05, 0.10), size, within=0.42) + 0.08 * ground.medium, 0.25, 0.8)
    purple = lakes * step(smooth_noise(rng, 4, size), -0.6, 1.4)
    covers = (
        0.75 * traits.veil * (0.35 + 0.65 * haze),
        0.75 * traits.nests * ovoids,
        0.8 * traits.globules * traits.veil * dots,  # granules that lie deep are grey, not brown
        0.5 * traits.lacunae * purple,
    )
    return np.asarray(np.clip(np.maximum.reduce(covers) * (1 + 0.12 * ground.fine), 0, 1))


def _white(traits: Traits, rng: np.random.Generator, ground: _Ground) -> Field:
    size = len(ground.x)
    milia = step(scatter(rng, 24, (0.018, 0.036), size, within=0.5), 0.3, 0.9) * step(ground.depth, 0.05, 0.25)
    grain = smooth_noise(rng, 30, size)
    flakes = step(0.8 * grain + 0.35 * ground.medium + 0.6 * ground.fine, -0.1, 2.0)
    scar = step(ground.depth + 0.12 * ground.medium + 0.07 * ground.fine, 0.35, 1.0)
    clear = (1 - 0.7 * traits.cysts * milia) * (1 - 0.9 * traits.scale * flakes) * (1 - 0.65 * traits.centre * scar)
    return 1 - clear
