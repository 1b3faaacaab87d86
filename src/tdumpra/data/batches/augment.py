"""The paper's augmentation: random resized crop, flips, colour jitter, random grayscale.

What is done to an image is drawn first (:func:`draw`) and done afterwards, in either of two ways: :func:`apply_one`
calls torchvision for one image in a CPU worker, :func:`~tdumpra.data.batches.augment_batch.apply_batch` treats a
whole batch on any device. Because the draw is a function of (seed, epoch, image, view) alone, both see the same
crops and colours, and so does a run that was resumed or spread over several processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, UInt8
from torch import Tensor

from tdumpra.checks import check_unit_interval
from tdumpra.data.batches.counter_rng import uniforms

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # columns of AugmentParams.amount, entries of AugmentParams.order
NEUTRAL = np.array([1.0, 1.0, 1.0, 0.0])  # the amounts that change nothing

_ATTEMPTS = 10  # at a crop that fits into the image, as in torchvision's RandomResizedCrop
_SWITCHES, _AMOUNTS, _ORDER = _ATTEMPTS, _ATTEMPTS + 1, _ATTEMPTS + 2  # blocks of random numbers after the attempts
_BLOCKS = _ATTEMPTS + 3
_ORDERS = np.array(
    [[a, b, c, 6 - a - b - c] for a in range(4) for b in range(4) for c in range(4) if len({a, b, c}) == 3]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentConfig:
    """The paper names the operations and no numbers; these are those of supervised contrastive learning's authors.

    Each pair is a range from which one value is drawn evenly (the aspect ratio: evenly in its logarithm). A jitter of
    0.4 draws a factor from 0.6…1.4; a hue jitter of 0.1 a turn of at most a tenth of the colour circle either way.
    """

    crop_area: tuple[float, float] = (0.2, 1.0)  # share of the image that a crop covers
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)  # its width over its height
    horizontal_flip: float = 0.5
    vertical_flip: float = 0.0  # lesions have no up: 0.5 is a fair choice that the paper does not make
    jitter: float = 0.8  # the chance that the four below are applied, in random order
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    grayscale: float = 0.2

    def __post_init__(self) -> None:
        for name in ("horizontal_flip", "vertical_flip", "jitter", "brightness", "contrast", "saturation", "grayscale"):
            check_unit_interval(getattr(self, name), name)
        check_unit_interval(self.hue, "hue", upper=0.5)
        if not 0 < self.crop_area[0] <= self.crop_area[1] <= 1:
            raise ValueError(f"crop_area must be a range within 0…1, smallest first, not {self.crop_area}")
        if not 0 < self.crop_ratio[0] <= self.crop_ratio[1]:
            raise ValueError(f"crop_ratio must be a range of positive numbers, smallest first, not {self.crop_ratio}")


@dataclass(frozen=True, slots=True)
class AugmentParams:
    """Parameters of n images, applied in this order: crop and resize, flip, jitter, grayscale."""

    box: Int64[np.ndarray, "n 4"]  # top, left, height, width
    horizontal: Bool[np.ndarray, " n"]
    vertical: Bool[np.ndarray, " n"]
    amount: Float64[np.ndarray, "n 4"]  # factors of brightness, contrast, saturation; turn of the hue
    order: Int64[np.ndarray, "n 4"]  # which of the four comes first, second, ...
    grayscale: Bool[np.ndarray, " n"]

    def __len__(self) -> int:
        return int(self.box.shape[0])

    def __getitem__(self, rows: slice) -> AugmentParams:
        """Return the parameters of some of the images."""
        return AugmentParams(*(getattr(self, f.name)[rows] for f in fields(self)))


def draw(
    config: AugmentConfig,
    *,
    seed: int,
    epoch: int,
    index: Int64[np.ndarray, " n"],
    view: Int64[np.ndarray, " n"],
    height: int,
    width: int,
) -> AugmentParams:
    """Draw parameters for images ``index`` of ``height`` × ``width``. Each row depends on its own index and view only.

    A sampler that shows one image several times in an epoch gives each showing a ``view`` of its own.
    """
    u = uniforms(seed, epoch=epoch, index=index, stream=view, blocks=_BLOCKS)
    jittered = u[:, _SWITCHES, 2] < config.jitter
    reach = np.array([config.brightness, config.contrast, config.saturation, config.hue])
    amount = NEUTRAL + (2 * u[:, _AMOUNTS] - 1) * reach
    return AugmentParams(
        box=_crop_boxes(config, u[:, :_ATTEMPTS], height, width),
        horizontal=u[:, _SWITCHES, 0] < config.horizontal_flip,
        vertical=u[:, _SWITCHES, 1] < config.vertical_flip,
        amount=np.where(jittered[:, None], amount, NEUTRAL),
        order=_ORDERS[(u[:, _ORDER, 0] * len(_ORDERS)).astype(np.int64)],
        grayscale=u[:, _SWITCHES, 3] < config.grayscale,
    )


def apply_one(image: UInt8[Tensor, "3 h w"], params: AugmentParams, size: int) -> UInt8[Tensor, "3 size size"]:
    """Augment one image with torchvision, in the 8-bit arithmetic that is fastest on a CPU."""
    from torchvision.transforms.v2 import InterpolationMode  # takes seconds to load, and only training needs it
    from torchvision.transforms.v2 import functional as tv

    adjust: dict[int, Callable[[Tensor, float], Tensor]] = {
        BRIGHTNESS: tv.adjust_brightness,
        CONTRAST: tv.adjust_contrast,
        SATURATION: tv.adjust_saturation,
        HUE: tv.adjust_hue,
    }
    (box,), (amount,), (order,) = params.box.tolist(), params.amount.tolist(), params.order.tolist()
    x = tv.resized_crop(image, *box, [size, size], interpolation=InterpolationMode.BILINEAR, antialias=True)
    if params.horizontal[0]:
        x = tv.horizontal_flip(x)
    if params.vertical[0]:
        x = tv.vertical_flip(x)
    for operation in order:
        if amount[operation] != NEUTRAL[operation]:
            x = adjust[operation](x, amount[operation])
    if params.grayscale[0]:
        x = tv.rgb_to_grayscale(x, num_output_channels=3)
    return torch.as_tensor(x)


def _crop_boxes(
    config: AugmentConfig, u: Float64[np.ndarray, "n attempts 4"], height: int, width: int
) -> Int64[np.ndarray, "n 4"]:
    """Return the first of ten random boxes that fits, else the largest central one: torchvision's rule, row by row."""
    area = height * width * _between(u[..., 0], *config.crop_area)
    ratio = np.exp(_between(u[..., 1], *map(math.log, config.crop_ratio)))
    columns = np.rint(np.sqrt(area * ratio)).astype(np.int64)
    rows = np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (columns > 0) & (columns <= width) & (rows > 0) & (rows <= height)
    top = (u[..., 2] * (height - rows + 1)).astype(np.int64)
    left = (u[..., 3] * (width - columns + 1)).astype(np.int64)
    boxes = np.stack([top, left, rows, columns], axis=-1)  # (n, attempts, 4)
    first = boxes[np.arange(len(u)), fits.argmax(axis=1)]
    return np.where(fits.any(axis=1)[:, None], first, _central_box(config, height, width))


def _central_box(config: AugmentConfig, height: int, width: int) -> Int64[np.ndarray, " 4"]:
    narrowest, widest = config.crop_ratio
    rows, columns = height, width
    if width / height < narrowest:
        rows = round(width / narrowest)
    elif width / height > widest:
        columns = round(height * widest)
    return np.array([(height - rows) // 2, (width - columns) // 2, rows, columns])


def _between(u: Float64[np.ndarray, "n attempts"], low: float, high: float) -> Float64[np.ndarray, "n attempts"]:
    return low + u * (high - low)
