"""Photograph a lesion's layers: skin, light, hair and camera, none of which depends on the class."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray
from scipy import ndimage

from tdumpra.data.synthetic.lesion import Layers
from tdumpra.data.synthetic.texture import Field, axis, blobs, scatter, smooth_noise, step

Colour = NDArray[np.float64]  # (3,) or (size, size, 3), linear in the camera's response, 1 is white

# Skin around the lesions of HAM10000: median (206, 159, 167) of 255, a spread of about 20 that is mostly shared by the
# three channels, and red against blue as its second direction. Absorption of melanin and blood by channel was fitted
# by eye to its nevi and haemangiomas.
_SKIN = np.array([0.85, 0.66, 0.69])
_MELANIN = np.array([0.48, 0.95, 1.22])
_BLOOD = np.array([0.14, 1.00, 0.72])
_BLUE = np.array([0.37, 0.38, 0.49])
_WHITE = np.array([0.93, 0.84, 0.84])


class Skin(NamedTuple):
    """A patient's skin: the same in every photograph of a lesion."""

    colour: Colour
    mottling: float
    hairiness: float
    freckles: int


def draw_skin(rng: np.random.Generator) -> Skin:
    """Draw the skin of one lesion."""
    tone, warmth = rng.normal(0, 0.06), rng.normal(0, 0.05)
    colour = _SKIN + tone + warmth * np.array([0.5, -0.2, -1.0])
    hairiness = rng.choice([0.0, 2.0, 7.0], p=[0.62, 0.28, 0.10])
    return Skin(colour, rng.uniform(0.3, 1.0), hairiness, int(rng.choice([0, 3, 9], p=[0.7, 0.2, 0.1])))


def photograph(layers: Layers, skin: Skin, rng: np.random.Generator, size: int) -> UInt8[np.ndarray, "size size 3"]:
    """Take one photograph: turn and place the lesion, light it, put hair and gel over it, and expose."""
    seen = Layers(*_place(layers, rng, size))
    light, brown, flush = _skin(skin, rng, size)
    density = (seen.melanin + brown)[..., None] * _MELANIN + (seen.blood + flush)[..., None] * _BLOOD
    picture = np.exp(-density) * skin.colour * light[..., None]
    picture += seen.blue[..., None] * (_BLUE - picture)
    picture += seen.white[..., None] * (_WHITE - picture)
    _add_hair(picture, skin, rng)
    _add_gel(picture, rng)
    return _expose(picture, rng)


def _place(layers: Layers, rng: np.random.Generator, size: int) -> list[Field]:
    """Rotate, zoom and shift the layers; a pixel whose source lies outside the frame gets nothing."""
    angle, zoom = rng.uniform(0, 2 * np.pi), np.exp(rng.uniform(-0.12, 0.22))
    shift = rng.uniform(-0.08, 0.08, 2) * size
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) / zoom
    middle = np.full(2, (size - 1) / 2)
    offset = middle - turn @ (middle + shift)
    return [ndimage.affine_transform(layer, turn, offset, order=1, mode="constant") for layer in layers]


def _skin(skin: Skin, rng: np.random.Generator, size: int) -> tuple[Field, Field, Field]:
    """Return relief, and the skin's own densities of pigment and blood."""
    wide, patches, pores, grain = (smooth_noise(rng, cells, size) for cells in (3, 11, 24, 44))
    flush = 0.07 * skin.mottling * (0.3 * wide + 0.6 * patches + 0.7 * pores)
    brown = 0.035 * skin.mottling * (smooth_noise(rng, 6, size) + smooth_noise(rng, 17, size))
    if skin.freckles:
        spots = scatter(rng, skin.freckles, (0.03, 0.08), size, within=1.3) + 0.15 * patches + 0.1 * pores
        brown = brown + 0.28 * step(spots, 0.25, 1.1)
    return 1 + 0.012 * pores + 0.022 * grain, brown, flush


def _add_hair(picture: Colour, skin: Skin, rng: np.random.Generator) -> None:
    """Add dark arcs, most of them combed one way."""
    size = len(picture)
    x, y = axis(size), axis(size)[:, None]
    comb = rng.uniform(0, np.pi)
    shade = rng.uniform(0.05, 0.35)
    cover = np.zeros((size, size))
    for _ in range(rng.poisson(skin.hairiness)):
        angle = comb + rng.normal(0, 0.45)
        cos, sin = np.cos(angle), np.sin(angle)
        along, aside = cos * x + sin * y, cos * y - sin * x
        bend, where = rng.normal(0, 0.25), rng.uniform(-1, 1)
        start, length, width = rng.uniform(-1.4, 0.4), rng.uniform(0.6, 2.0), rng.uniform(0.008, 0.015)
        line = np.exp(-0.5 * ((aside - where - bend * along**2) / width) ** 2)
        tips = np.clip(5 * np.minimum(along - start, start + length - along), 0, 1)
        cover = np.maximum(cover, line * tips)
    picture += 0.85 * cover[..., None] * (shade * np.array([1.0, 0.85, 0.8]) - picture)


def _add_gel(picture: Colour, rng: np.random.Generator) -> None:
    """Add air bubbles and glints of the contact fluid."""
    size = len(picture)
    x, y = axis(size), axis(size)[:, None]
    for _ in range(rng.poisson(0.12)):
        cx, cy, radius = *rng.uniform(-0.95, 0.95, 2), rng.uniform(0.05, 0.13)
        distance = np.hypot(x - cx, y - cy)
        ring = np.exp(-0.5 * ((distance - radius) / 0.014) ** 2)
        picture += (0.14 * ring + 0.02 * (distance < radius))[..., None]
    count = rng.poisson(3.0)
    if count:
        x, y = rng.uniform(-1, 1, (2, count))
        glints = blobs(x, y, rng.uniform(0.006, 0.016, count), rng.uniform(0.1, 0.3, count), size)
        picture += glints[..., None]


def _expose(picture: Colour, rng: np.random.Generator) -> UInt8[np.ndarray, "size size 3"]:
    """Apply uneven light, vignette, white balance, focus and sensor noise, in that order."""
    size = len(picture)
    x, y = axis(size), axis(size)[:, None]
    slope = rng.normal(0, 0.05, 2)
    falloff = rng.uniform(0.02, 0.14)
    light = 1 + slope[0] * x + slope[1] * y - falloff * (x**2 + y**2) ** 1.5
    edge = rng.uniform(1.12, 1.36) if rng.random() < 0.10 else 2.0  # a round aperture, in some cameras
    light = light * step(-np.hypot(x, y), -edge - 0.05, -edge + 0.03)
    balance = np.exp(rng.normal(0, 0.025, 3) + rng.normal(0, 0.04))
    picture = picture * light[..., None] * balance
    focus = rng.uniform(0.002, 0.010) * size / 2  # in pixels
    picture = ndimage.gaussian_filter(picture, (focus, focus, 0), truncate=3)
    picture = picture + rng.normal(0, rng.uniform(0.004, 0.014), picture.shape)
    return np.asarray(np.clip(picture * 255 + 0.5, 0, 255).astype(np.uint8))
