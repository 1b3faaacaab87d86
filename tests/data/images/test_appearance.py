from __future__ import annotations

import numpy as np

from tdumpra.data.images.appearance import Appearance, appearance


def test_colours_are_means_and_deviations_of_the_channels():
    pixels = np.zeros((1, 2, 2, 3), np.uint8)
    pixels[0, :, :, 0] = [[0, 255], [0, 255]]  # mean 1/2, deviation 1/2
    pixels[0, :, :, 2] = 51  # one fifth everywhere
    np.testing.assert_allclose(appearance(pixels).colours, [[0.5, 0, 0.2, 0.5, 0, 0]], atol=1e-6)


def test_the_name_of_pixels_changes_with_one_of_them_and_with_the_shape():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 6, 3), dtype=np.uint8)
    pixels[1] = pixels[0]
    pixels[2] = pixels[0]
    pixels[2, 3, 5, 2] ^= 1
    first, second, third = appearance(pixels).content
    assert first == second != third
    assert appearance(pixels.reshape(3, 6, 4, 3)).content[0] != first


def test_parts_join_to_the_whole():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    whole, joined = appearance(pixels), Appearance.join([appearance(pixels[:2]), appearance(pixels[2:])])
    np.testing.assert_array_equal(whole.colours, joined.colours)
    assert whole.content == joined.content
    assert len(Appearance.join([]).content) == 0
