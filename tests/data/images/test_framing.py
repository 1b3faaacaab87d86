from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from tdumpra.data.images.framing import EvalTransform, Framing
from tdumpra.errors import BrokenImageError


def gradient(height: int, width: int) -> np.ndarray:
    """Red grows to the right, green downwards: a colour tells where in the picture it came from."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([255 * x / (width - 1), 255 * y / (height - 1), 0 * x], 2).astype(np.uint8)


def test_stretch_keeps_the_whole_picture():
    framed = Framing(height=50, width=40).apply(gradient(100, 200))
    assert framed.shape == (50, 40, 3)
    assert framed[0, 0].max() < 5
    assert framed[-1, -1, :2].min() > 250


def test_crop_keeps_the_proportions_and_cuts_the_longer_side():
    framed = Framing(height=50, width=50, fit="crop").apply(gradient(100, 200))
    assert np.abs(framed[0, [0, -1], 0].astype(int) - (64, 191)).max() <= 3  # the middle half of the width
    assert framed[0, 0, 1] < 5


def test_a_picture_of_the_right_size_is_left_alone():
    pixels = gradient(32, 48)
    np.testing.assert_array_equal(Framing(height=32, width=48).apply(pixels), pixels)


@pytest.mark.parametrize("shape", [(60, 80), (200, 300), (24, 24)])
def test_the_resize_is_pillows_to_within_two_grey_levels(shape):
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    expected = np.asarray(Image.fromarray(pixels).resize((40, 50), Image.Resampling.BICUBIC))
    framed = Framing(height=50, width=40).apply(pixels)
    assert np.abs(framed.astype(int) - expected).max() <= 2


def test_read_only_and_turned_pixels_are_framed_too():
    pixels = gradient(60, 80)
    pixels.flags.writeable = False
    expected = Framing(height=30, width=30).apply(pixels)
    np.testing.assert_array_equal(
        Framing(height=30, width=30).apply(np.ascontiguousarray(pixels[:, ::-1])[:, ::-1]), expected
    )


@pytest.mark.parametrize("mask_scale", [1, 2])
def test_the_lesion_fills_the_frame_up_to_its_margin(mask_scale):
    mask = np.zeros((100, 200), np.uint8)
    mask[40:60, 100:120] = 255
    framing = Framing(height=40, width=40, lesion_margin=0.5)
    framed = framing.apply(gradient(100, 200), mask[::mask_scale, ::mask_scale])
    # 20 wide, 10 more on each side: columns 90…130 of 200, rows 30…70 of 100
    assert np.abs(framed[0, [0, -1], 0].astype(int) - (115, 165)).max() <= 2
    assert np.abs(framed[[0, -1], 0, 1].astype(int) - (77, 179)).max() <= 3


def test_a_lesion_at_the_edge_is_framed_inside_the_picture():
    mask = np.zeros((100, 200), np.uint8)
    mask[0:20, 190:200] = 1
    framed = Framing(height=40, width=40, lesion_margin=0.2).apply(gradient(100, 200), mask)
    assert framed[-1, -1, 0] >= 253
    assert framed[0, 0, 1] <= 2


@pytest.mark.parametrize("where", [(2, 2), (399, 499), (0, 250)])
@pytest.mark.parametrize("fit", ["stretch", "crop"])
def test_a_lesion_smaller_than_a_pixel(where, fit):
    mask = np.zeros((400, 500), np.uint8)
    mask[where] = 255
    framed = Framing(height=16, width=20, fit=fit, lesion_margin=0.1).apply(gradient(40, 50), mask)
    assert framed.shape == (16, 20, 3)


def test_no_mask_or_an_empty_one_keeps_the_whole_frame():
    framing, pixels = Framing(height=40, width=40, lesion_margin=0.2), gradient(100, 200)
    whole = Framing(height=40, width=40).apply(pixels)
    np.testing.assert_array_equal(framing.apply(pixels), whole)
    np.testing.assert_array_equal(framing.apply(pixels, np.zeros((100, 200), np.uint8)), whole)


def test_a_broken_mask_is_named_as_such(tmp_path):
    (tmp_path / "mask.png").touch()
    with pytest.raises(BrokenImageError, match=r"lesion mask: .*empty"):
        Framing(lesion_margin=0.1).mask_of(tmp_path / "mask.png")
    assert Framing().mask_of(tmp_path / "mask.png") is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"height": 0}, "height"), ({"fit": "squash"}, "squash"), ({"lesion_margin": -0.1}, "lesion_margin")],
)
def test_framings_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Framing(**arguments)


def test_normalisation_is_the_only_change_where_the_size_fits():
    transform = EvalTransform(framing=Framing(height=16, width=16), size=16, mean=(0.5, 0.4, 0.3), std=(0.5, 0.2, 0.1))
    images = torch.randint(0, 256, (3, 16, 16, 3), dtype=torch.uint8, generator=torch.manual_seed(0))
    expected = (images.double() / 255 - torch.tensor([0.5, 0.4, 0.3])) / torch.tensor([0.5, 0.2, 0.1])
    torch.testing.assert_close(transform(images), expected.permute(0, 3, 1, 2).float(), atol=1e-5, rtol=1e-5)


def test_a_transform_survives_json_and_keeps_its_fingerprint():
    transform = EvalTransform(framing=Framing(height=192, width=256, lesion_margin=0.1), size=160)
    restored = EvalTransform.from_dict(json.loads(json.dumps(transform.to_dict())))
    assert restored == transform
    assert restored.fingerprint == transform.fingerprint
    assert EvalTransform(size=161).fingerprint != EvalTransform(size=160).fingerprint


def test_a_description_with_other_keys_or_another_decoder_is_refused():
    values = EvalTransform().to_dict()
    with pytest.raises(ValueError, match="sise"):
        EvalTransform.from_dict({**values, "sise": 3})
    with pytest.raises(ValueError, match="decoder version 999"):
        EvalTransform.from_dict({**values, "decoder": 999})


def test_how_masks_are_read_is_part_of_frames_around_lesions_alone(monkeypatch):
    framings = Framing(), Framing(lesion_margin=0.1)
    before = [framing.fingerprint for framing in framings]
    monkeypatch.setattr("tdumpra.data.images.framing.MASK_VERSION", 99)
    after = [framing.fingerprint for framing in framings]
    assert after[0] == before[0]
    assert after[1] != before[1]
