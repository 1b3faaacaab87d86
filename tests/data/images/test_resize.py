"""Without torch, an image is framed to the same pixels."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tdumpra.data.images.framing import Framing
from tdumpra.data.images.resize import resize, without_torch

SIDES = st.integers(1, 150)


def picture(seed: int, height: int, width: int, kind: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if kind == "edges":  # black and white, where a cubic overshoots most
        return (noise > 127).astype(np.uint8) * 255
    if kind == "smooth":
        return np.asarray(Image.fromarray(noise[:4, :4]).resize((width, height), Image.Resampling.BICUBIC))
    return noise


@settings(max_examples=300)
@given(SIDES, SIDES, SIDES, SIDES, st.sampled_from(["noise", "edges", "smooth"]))
def test_every_size_gives_the_pixels_of_torch(height, width, new_height, new_width, kind):
    pixels = picture(height * 151 + width, height, width, kind)
    assert np.array_equal(without_torch(pixels, new_height, new_width), resize(pixels, new_height, new_width))


@pytest.mark.parametrize("size", [(450, 600), (1024, 768), (3000, 37), (8, 2000), (224, 600), (450, 224), (223, 225)])
@pytest.mark.parametrize("kind", ["noise", "edges", "smooth"])
def test_sizes_of_photographs(size, kind):
    height, width = size
    pixels = picture(7, height, width, kind)
    assert np.array_equal(without_torch(pixels, 224, 224), resize(pixels, 224, 224))


def test_a_part_of_a_picture():
    """As a framing cuts it: neither contiguous nor writeable."""
    pixels = picture(3, 90, 120, "noise")
    pixels.flags.writeable = False
    part = pixels[10:70, 5:100]
    assert np.array_equal(without_torch(part, 32, 48), resize(part, 32, 48))


def test_the_reference_is_torch(monkeypatch):
    """``resize`` is torch's own kernel here, and what a framing applies."""
    pixels = picture(1, 60, 80, "noise")
    x = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    expected = torch.nn.functional.interpolate(x, (24, 24), mode="bicubic", antialias=True)[0].permute(1, 2, 0).numpy()
    assert np.array_equal(resize(pixels, 24, 24), expected)
    framed = Framing(height=24, width=24, fit="crop")
    with_torch = framed.apply(pixels)
    monkeypatch.setattr("tdumpra.data.images.framing.resize", without_torch)
    assert np.array_equal(framed.apply(pixels), with_torch)
