"""Augment a whole batch at once, on any device, each image with parameters of its own.

Cropping, resizing and flipping are one linear map along each axis, so they are two matrix products per image; the
matrices hold torchvision's antialiased bilinear weights. Brightness, contrast and saturation all blend the image with
something grey, so one blend serves every image whichever of the three is its turn. kornia's equivalent reaches 0.8 of
the speed (``benchmarks/augment.py``) and resizes without antialiasing, so that it is no dependency.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, UInt8
from torch import Tensor

from tdumpra.data.batches.augment import CONTRAST, HUE, NEUTRAL, SATURATION, AugmentParams

_LUMA = (0.2989, 0.587, 0.114)  # ITU-R BT.601, as torchvision has it


def apply_batch(images: UInt8[Tensor, "n 3 h w"], params: AugmentParams, size: int) -> Float32[Tensor, "n 3 size size"]:
    """Augment ``images`` on their device; colours come out in 0…1, in memory as channels last.

    A GPU works in float16, whose steps near white are an eighth of a grey level: finer than the 8-bit images that CPU
    workers pass from operation to operation, and half the memory traffic. A CPU works in float32.
    """
    if len(images) != len(params):
        raise ValueError(f"{len(params)} rows of parameters for {len(images)} images")
    on_device = _OnDevice.send(params, images.device)
    with torch.autocast(images.device.type, enabled=False):  # bfloat16 products would cost whole grey levels
        x = _crop_resize_flip(images, on_device, size)
        if not (params.amount == NEUTRAL).all():
            x = _jitter(x, on_device)
        if len(on_device.gray):
            x[on_device.gray] = _luma(x[on_device.gray]).expand(-1, 3, -1, -1)
    return x.to(torch.float32, memory_format=torch.channels_last)


class _Turn(NamedTuple):
    """One step of the jitter for all images: each is either blended with grey or has its hue turned."""

    factor: Float[Tensor, "n 1 1 1"]  # of the image; the rest is something grey
    contrast: Float[Tensor, "n 1 1 1"]  # 1 where the grey is the image's mean
    saturation: Float[Tensor, "n 1 1 1"]  # 1 where it is each pixel's own
    turned: Int64[Tensor, " m"]  # images whose hue is turned
    hue: Float[Tensor, "m 1 1 1"]  # by how much of the circle


class _OnDevice(NamedTuple):
    """The parameters where the images are. They travel in two pieces: small copies would cost more than the work."""

    box: Float[Tensor, "n 4"]
    horizontal: Bool[Tensor, " n"]
    vertical: Bool[Tensor, " n"]
    turns: list[_Turn]
    gray: Int64[Tensor, " g"]

    @classmethod
    def send(cls, params: AugmentParams, device: torch.device) -> _OnDevice:
        amount = np.take_along_axis(params.amount, params.order, axis=1)  # (n, 4): by place in the order
        is_hue = params.order == HUE
        turned = [np.flatnonzero(is_hue[:, place] & (amount[:, place] != 0)) for place in range(4)]
        lists = [*turned, np.flatnonzero(params.grayscale)]
        *turned_rows, gray = torch.split(_to(np.concatenate(lists), device), [len(rows) for rows in lists])
        numbers = np.concatenate(
            [
                params.box,
                params.horizontal[:, None],
                params.vertical[:, None],
                np.where(is_hue, 1.0, amount),
                params.order == CONTRAST,
                params.order == SATURATION,
                amount,
            ],
            axis=1,
        )
        table = _to(numbers.astype(np.float32), device)  # whole numbers up to 2^24 stay exact
        dtype = torch.float16 if device.type == "cuda" else torch.float32
        columns = table[:, 6:].to(dtype).view(len(params), 4, 4, 1, 1, 1)  # (n, which, place, 1, 1, 1)
        turns = [
            _Turn(columns[:, 0, j], columns[:, 1, j], columns[:, 2, j], rows, columns[rows, 3, j])
            for j, rows in enumerate(turned_rows)
        ]
        return cls(table[:, :4], table[:, 4] > 0, table[:, 5] > 0, turns, gray)


def _crop_resize_flip(images: Tensor, params: _OnDevice, size: int) -> Tensor:
    top, left, height, width = params.box.unbind(1)
    n, _, rows, columns = images.shape
    dtype = torch.float16 if images.is_cuda else torch.float32
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
    for turn in params.turns:
        luma = _luma(x)
        grey = torch.addcmul(turn.contrast * luma.mean((2, 3), keepdim=True), turn.saturation, luma)
        x = torch.lerp(grey, x, turn.factor).clamp_(0, 1)
        if len(turn.turned):
            x[turn.turned] = _turn_hue(x[turn.turned], turn.hue)
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


def _to(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy to the device without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
