"""Augment a whole batch at once, on any device, each image with parameters of its own.

Cropping, resizing and flipping are one linear map along each axis, so they are two matrix products per image; the
matrices hold torchvision's antialiased bilinear weights. Brightness, contrast and saturation all blend the image with
something grey, so one blend serves every image whichever of the three is its turn. kornia's equivalent reaches 0.8 of
the speed (``benchmarks/augment.py``) and resizes without antialiasing, so that it is no dependency.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, UInt8
from torch import Tensor

from tdumpra.data.batches.augment import CONTRAST, HUE, NEUTRAL, SATURATION, AugmentParams

_LUMA = (0.2989, 0.587, 0.114)  # ITU-R BT.601, as torchvision has it


def apply_batch(
    images: UInt8[Tensor, "n 3 h w"],
    params: AugmentParams,
    size: int,
    *,
    colours: Colours | None = None,
    compiled: bool = False,
) -> Float32[Tensor, "n 3 size size"]:
    """Augment ``images`` on their device: channels last in memory, in 0…1 or normalised by ``colours``.

    A GPU works in float16, whose steps near white are an eighth of a grey level: finer than the 8-bit images that CPU
    workers pass from operation to operation, and half the memory traffic. A CPU works in float32. ``compiled`` fuses
    the operations into a few kernels, which takes the compiler a while at the first batch.
    """
    if len(images) != len(params):
        raise ValueError(f"{len(params)} rows of parameters for {len(images)} images")
    run = _compiled() if compiled else _augment
    with torch.autocast(images.device.type, enabled=False):  # bfloat16 products would cost whole grey levels
        return run(images, _OnDevice.send(params, images.device, every_row=compiled), size, colours)


class Colours(NamedTuple):
    """Mean and standard deviation of each channel, on the device."""

    mean: Float32[Tensor, "3 1 1"]
    std: Float32[Tensor, "3 1 1"]


class _OnDevice(NamedTuple):
    """The parameters where the images are. They travel in two pieces: small copies would cost more than the work."""

    box: Float[Tensor, "n 4"]
    horizontal: Bool[Tensor, " n"]
    vertical: Bool[Tensor, " n"]
    gray: Bool[Tensor, " n"]
    columns: Float[Tensor, "4 4 n 1 1 1"]  # by place in the order: factor, contrast, saturation, turn of the hue
    rows: tuple[Int64[Tensor, " m"], ...] | None  # whose hue is turned, by place; at last those that turn grey

    @classmethod
    def send(cls, params: AugmentParams, device: torch.device, *, every_row: bool) -> _OnDevice:
        """Send them. With ``every_row``, operations work on all rows and keep some: a compiler wants fixed shapes."""
        amount = np.take_along_axis(params.amount, params.order, axis=1)  # (n, 4): by place in the order
        is_hue = params.order == HUE
        turn = np.where(is_hue, amount, 0.0)
        numbers = np.concatenate(
            [
                params.box,
                params.horizontal[:, None],
                params.vertical[:, None],
                params.grayscale[:, None],
                np.where(is_hue, 1.0, amount),
                params.order == CONTRAST,
                params.order == SATURATION,
                turn,
            ],
            axis=1,
        )
        table = _to(numbers.astype(np.float32), device)  # whole numbers up to 2^24 stay exact
        columns = table[:, 7:].to(_dtype(device)).view(len(params), 4, 4, 1, 1, 1).permute(1, 2, 0, 3, 4, 5)
        rows = None
        if not every_row:
            jittered = not (params.amount == NEUTRAL).all()
            turned = [np.flatnonzero(turn[:, place]) for place in range(4)] if jittered else []
            lists = [*turned, np.flatnonzero(params.grayscale)]
            rows = torch.split(_to(np.concatenate(lists), device), [len(each) for each in lists])
        return cls(table[:, :4], table[:, 4] > 0, table[:, 5] > 0, table[:, 6] > 0, columns, rows)


def _augment(images: Tensor, params: _OnDevice, size: int, colours: Colours | None) -> Tensor:
    x = _jitter(_crop_resize_flip(images, params, size), params)
    if params.rows is None:
        x = torch.where(params.gray[:, None, None, None], _luma(x), x)
    elif len(gray := params.rows[-1]):
        x[gray] = _luma(x[gray]).expand(-1, 3, -1, -1)
    x = x.to(torch.float32, memory_format=torch.channels_last)
    return x if colours is None else (x - colours.mean) / colours.std


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(_augment, dynamic=False)


def _crop_resize_flip(images: Tensor, params: _OnDevice, size: int) -> Tensor:
    top, left, height, width = params.box.unbind(1)
    n, _, rows, columns = images.shape
    dtype = _dtype(images.device)
    down = _resize_weights(top, height, params.vertical, rows, size).to(dtype)  # (n, size, h)
    across = _resize_weights(left, width, params.horizontal, columns, size).to(dtype).transpose(1, 2)  # (n, w, size)
    x = (images.to(dtype) / 255).reshape(n, 3 * rows, columns) @ across
    return down[:, None] @ x.view(n, 3, rows, size)


def _resize_weights(
    start: Float[Tensor, " n"], length: Float[Tensor, " n"], flip: Bool[Tensor, " n"], source: int, size: int
) -> Float32[Tensor, "n size source"]:
    """Row i holds the weights of the source pixels in output pixel i.

    A triangle over each output pixel's centre, as wide as the output pixel but never narrower than a source pixel: on
    shrinking it averages, on enlarging it interpolates. Pixels outside the crop count nothing; each row sums to one.
    """
    position = torch.arange(size, device=start.device)
    position = torch.where(flip[:, None], size - 1 - position, position)  # (n, size)
    scale = (length / size)[:, None]
    centre = start[:, None] + (position + 0.5) * scale
    pixel = torch.arange(source, device=start.device)
    distance = (pixel + 0.5 - centre[:, :, None]).abs() / scale.clamp(min=1)[:, :, None]
    inside = (pixel >= start[:, None]) & (pixel < (start + length)[:, None])  # (n, source)
    weights = (1 - distance).clamp(min=0) * inside[:, None, :]
    return weights / weights.sum(2, keepdim=True)


def _jitter(x: Float[Tensor, "n 3 h w"], params: _OnDevice) -> Float[Tensor, "n 3 h w"]:
    """Apply each image's first operation, then each one's second, ... A factor of one changes nothing."""
    places = range(4) if params.rows is None else range(len(params.rows) - 1)
    for place in places:
        factor, contrast, saturation, turn = params.columns[:, place]
        luma = _luma(x)
        grey = torch.addcmul(contrast * luma.mean((2, 3), keepdim=True), saturation, luma)
        x = torch.lerp(grey, x, factor).clamp_(0, 1)
        if params.rows is None:
            x = torch.where(turn != 0, _turn_hue(x, turn), x)
        elif len(rows := params.rows[place]):
            x[rows] = _turn_hue(x[rows], turn[rows])
    return x


def _turn_hue(x: Float[Tensor, "n 3 h w"], turn: Float[Tensor, "n 1 1 1"]) -> Float[Tensor, "n 3 h w"]:
    """Turn the hue in HSV. Value and chroma stay; each channel is value − chroma · a clipped triangle of the hue."""
    value, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    chroma = value - least
    red, green, blue = x.unsqueeze(2).unbind(1)
    safe = torch.where(chroma > 0, chroma, 1)
    hue = torch.where(  # in sixths of the circle
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    turned = hue + 6 * turn
    k = torch.cat([turned + 5, turned + 3, turned + 1], 1) % 6  # red, green, blue
    return value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


def _luma(x: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 1 h w"]:
    red, green, blue = x.unsqueeze(2).unbind(1)
    return torch.add(torch.add(_LUMA[0] * red, green, alpha=_LUMA[1]), blue, alpha=_LUMA[2])


def _dtype(device: torch.device) -> torch.dtype:
    return torch.float16 if device.type == "cuda" else torch.float32


def _to(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy to the device without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
