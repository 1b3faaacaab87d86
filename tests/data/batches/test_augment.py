from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from tdumpra.data.batches import augment_batch
from tdumpra.data.batches.augment import HUE, NEUTRAL, AugmentConfig, AugmentParams, apply_one, draw
from tdumpra.data.batches.augment_batch import apply_batch

N = 48
EVERYTHING = AugmentConfig(vertical_flip=0.5, jitter=1.0, grayscale=0.3)


def parameters(
    config: AugmentConfig = EVERYTHING, *, n: int = N, height: int = 60, width: int = 50, **where
) -> AugmentParams:
    where = {"seed": 0, "epoch": 0, "index": np.arange(n), "view": np.zeros(n, np.int64), **where}
    return draw(config, height=height, width=width, **where)


def same(a: AugmentParams, b: AugmentParams) -> bool:
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(AugmentParams))


def photographs(n: int = N, height: int = 60, width: int = 50) -> Tensor:
    """Noise over smooth shapes: every hue and saturation, with detail that a sloppy resize would lose."""
    generator = torch.Generator().manual_seed(0)
    smooth = torch.rand(n, 3, 4, 4, generator=generator) * 255
    smooth = torch.nn.functional.interpolate(smooth, (height, width), mode="bicubic")
    return (smooth + 40 * torch.randn(n, 3, height, width, generator=generator)).clamp(0, 255).to(torch.uint8)


def reference(image: Tensor, params: AugmentParams, size: int) -> Tensor:
    """One image through torchvision's functional transforms, in floating point."""
    adjust = [tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue]
    x = tv.to_dtype(image, torch.float32, scale=True)
    x = tv.resized_crop(x, *params.box[0].tolist(), [size, size], antialias=True)
    if params.horizontal[0]:
        x = tv.horizontal_flip(x)
    if params.vertical[0]:
        x = tv.vertical_flip(x)
    for operation in params.order[0]:
        x = adjust[operation](x, float(params.amount[0, operation]))
    return torch.as_tensor(tv.rgb_to_grayscale(x, 3) if params.grayscale[0] else x)


@pytest.mark.parametrize("size", [24, 40, 96])  # mostly shrinking, both, always enlarging
def test_the_batch_is_torchvision_image_by_image(size):
    images, params = photographs(), parameters()
    batch = apply_batch(images, params, size)
    for i in range(N):
        expected = reference(images[i], params[i : i + 1], size)
        torch.testing.assert_close(batch[i], expected, atol=2e-4, rtol=0)  # a twentieth of a grey level


@pytest.mark.parametrize("operation", range(4))
def test_each_jitter_alone_is_torchvisions(operation):
    images = photographs()
    params = parameters()
    amount = np.tile(NEUTRAL, (N, 1))
    amount[:, operation] = params.amount[:, operation]
    params = replace(params, amount=amount, grayscale=np.zeros(N, bool))
    batch = apply_batch(images, params, 40)
    for i in range(N):
        torch.testing.assert_close(batch[i], reference(images[i], params[i : i + 1], 40), atol=1e-4, rtol=0)


def test_a_hue_worked_out_by_hand():
    # pure red turned by a third of the circle is pure green, by a sixth backwards it is magenta
    red = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    red[:, 0] = 255
    params = replace(parameters(n=2, height=8, width=8), grayscale=np.zeros(2, bool), box=np.array([[0, 0, 8, 8]] * 2))
    params = replace(params, amount=np.array([[1, 1, 1, 1 / 3], [1, 1, 1, -1 / 6]]))
    turned = apply_batch(red, params, 8)[:, :, 3, 3]
    torch.testing.assert_close(turned, torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]), atol=1e-5, rtol=0)


def test_the_two_ways_differ_by_rounding_only():
    images, params = photographs(), parameters()
    batch = apply_batch(images, params, 40) * 255
    single = torch.stack([apply_one(images[i], params[i : i + 1], 40) for i in range(N)])
    difference = (batch - single).abs()
    assert difference.mean() < 2  # grey levels: in 8 bits torchvision cuts off the fraction after each operation
    assert difference.quantile(0.999) < 8


def test_nothing_drawn_is_nothing_done():
    config = AugmentConfig(crop_area=(1, 1), crop_ratio=(1, 1), horizontal_flip=0, jitter=0, grayscale=0)
    images = photographs(height=60, width=60)
    params = parameters(config, height=60, width=60)
    torch.testing.assert_close(apply_batch(images, params, 60), images / 255, atol=1e-6, rtol=0)
    assert torch.equal(apply_one(images[0], params[:1], 60), images[0])


def test_the_input_is_not_written_to_and_grey_stays_grey():
    images = photographs()[:, :1].expand(-1, 3, -1, -1).contiguous()
    before = images.clone()
    batch = apply_batch(images, parameters(), 40)
    assert torch.equal(images, before)
    assert (batch - batch[:, :1]).abs().max() < 1e-4


def test_autocast_does_not_reach_the_pixels():
    images, params = photographs(8), parameters(n=8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        batch = apply_batch(images, params, 40)
    assert batch.dtype == torch.float32
    assert torch.equal(batch, apply_batch(images, params, 40))


def test_memory_layout_does_not_matter():
    images, params = photographs(8), parameters(n=8)
    shuffled = images.to(memory_format=torch.channels_last)
    torch.testing.assert_close(apply_batch(shuffled, params, 40), apply_batch(images, params, 40))


def test_rows_must_match():
    with pytest.raises(ValueError, match="48 rows of parameters for 3 images"):
        apply_batch(photographs(3), parameters(), 40)


def test_a_row_depends_on_its_image_and_view_alone():
    everything = parameters()
    some = np.array([31, 4, 7])
    part = parameters(n=3, index=some, view=np.zeros(3, np.int64))
    for f in fields(AugmentParams):
        np.testing.assert_array_equal(getattr(part, f.name), getattr(everything, f.name)[some])


@pytest.mark.parametrize("other", [{"seed": 1}, {"epoch": 1}, {"view": np.ones(N, np.int64)}])
def test_seed_epoch_and_view_change_the_draw(other):
    assert same(parameters(), parameters())
    changed = parameters(**other)
    assert (changed.box != parameters().box).any(1).mean() > 0.9


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(8, 300),
    width=st.integers(8, 300),
    area=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted),
    ratio=st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)).map(sorted),
    seed=st.integers(0, 2**63),
)
def test_every_crop_lies_inside_the_image(height, width, area, ratio, seed):
    config = AugmentConfig(crop_area=tuple(area), crop_ratio=tuple(ratio))
    top, left, rows, columns = parameters(config, height=height, width=width, seed=seed).box.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (rows >= 1).all()
    assert (columns >= 1).all()
    assert (top + rows <= height).all()
    assert (left + columns <= width).all()


def test_draws_have_torchvisions_distribution():
    n, config = 4000, AugmentConfig()
    ours = parameters(config, n=n, height=192, width=256)
    torch.manual_seed(0)
    crop = v2.RandomResizedCrop(224, scale=config.crop_area, ratio=config.crop_ratio)
    image = torch.empty(3, 192, 256)
    drawn = [crop.make_params([image]) for _ in range(n)]
    theirs = np.array([[d["top"], d["left"], d["height"], d["width"]] for d in drawn])
    for column in range(4):
        np.testing.assert_allclose(
            np.quantile(ours.box[:, column], [0.1, 0.5, 0.9]), np.quantile(theirs[:, column], [0.1, 0.5, 0.9]), atol=6
        )
    assert abs(ours.horizontal.mean() - 0.5) < 0.03
    assert not ours.vertical.any()
    assert abs(ours.grayscale.mean() - 0.2) < 0.03
    assert abs((ours.amount != NEUTRAL).any(1).mean() - 0.8) < 0.03
    assert np.abs(ours.amount[:, :HUE] - 1).max() <= 0.4
    assert np.abs(ours.amount[:, HUE]).max() <= 0.1
    _, counts = np.unique(ours.order, axis=0, return_counts=True)
    assert len(counts) == 24
    assert counts.min() > n / 24 * 0.7


def test_an_image_too_long_for_the_ratio_falls_back_to_its_middle():
    params = parameters(AugmentConfig(crop_area=(1, 1)), height=10, width=100)
    assert params.box.tolist() == [[0, 43, 10, 13]] * N  # 13 = round(10 · 4/3), centred


@pytest.mark.parametrize(
    "wrong",
    [{"hue": 0.6}, {"grayscale": 1.1}, {"crop_area": (0.5, 0.2)}, {"crop_ratio": (0, 1)}],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AugmentConfig(**wrong)


def test_working_on_every_row_gives_what_working_on_some_gives(monkeypatch):
    """The shape that a compiler gets; nothing is compiled here."""
    monkeypatch.setattr(augment_batch, "_compiled", lambda: augment_batch._augment)
    images = photographs()
    for params in (parameters(), parameters(AugmentConfig(jitter=0.0)), parameters(AugmentConfig(grayscale=1.0))):
        some, every = (apply_batch(images, params, 40, compiled=compiled) for compiled in (False, True))
        torch.testing.assert_close(every, some, atol=1e-6, rtol=0)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # the compiler has advice
def test_a_gpu_compiles_the_augmentation():
    images, params = photographs().cuda(), parameters()
    difference = 255 * (apply_batch(images, params, 40, compiled=True) - apply_batch(images, params, 40)).abs()
    assert difference.mean() < 0.25, difference.mean()
    assert difference.quantile(0.999) < 2, difference.quantile(0.999)


@pytest.mark.gpu
def test_a_gpu_works_in_half_precision_within_the_rounding_of_eight_bits():
    """float16 has steps of an eighth of a grey level near white; six operations follow each other."""
    images, params = photographs(), parameters()
    difference = 255 * (apply_batch(images.cuda(), params, 40).cpu() - apply_batch(images, params, 40)).abs()
    assert difference.mean() < 0.25, difference.mean()
    assert difference.quantile(0.999) < 2, difference.quantile(0.999)
