"""The augmentation of a whole batch at once, on any device, each image with parameters of its own.

Cropping, resizing and flipping are one linear map along each axis, so they are two matrix products per image; the
matrices hold torchvision's antialiased bilinear weights. Brightness, contrast and saturation all blend the image with
something grey, so one blend serves every image whichever of the three is its turn. kornia's equivalent reaches 0.8 of
the speed (``benchmarks/augment.py``) and resizes without antialiasing, so that it is no dependency.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from tdumpra.data.augment import CONTRAST, HUE, NEUTRAL, SATURATION, AugmentParams

_LUMA = (0.2989, 0.587, 0.114)  # ITU-R BT.601, as torchvision has it


def apply_batch(images: UInt8[Tensor, "n 3 h w"], params: AugmentParams, size: int) -> Float32[Tensor, "n 3 size size"]:
    """Augment ``images`` on their device; colours come out in 0…1."""
    if len(images) != len(params):
        raise ValueError(f"{len(params)} rows of parameters for {len(images)} images")
    with torch.autocast(images.device.type, enabled=False):  # half-precision products would cost whole grey levels
        x = _crop_resize_flip(images, params, size)
        x = _jitter(x, params)
        gray = np.flatnonzero(params.grayscale)
        if len(gray):
            rows = _to(gray, x.device)
            x[rows] = _luma(x[rows]).expand(-1, 3, -1, -1)
    return x


def _crop_resize_flip(images: Tensor, params: AugmentParams, size: int) -> Tensor:
    device = images.device
    top, left, height, width = _to(params.box, device).unbind(1)
    down = _resize_weights(top, height, _to(params.vertical, device), images.shape[2], size)  # (n, size, h)
    across = _resize_weights(left, width, _to(params.horizontal, device), images.shape[3], size)  # (n, size, w)
    across = (across / 255).transpose(1, 2)  # the products bring 0…255 to 0…1 on their way
    x = torch.stack([channel.float() @ across for channel in images.unbind(1)], 1)  # (n, 3, h, size)
    return torch.stack([down @ channel for channel in x.unbind(1)], 1)


def _resize_weights(
    start: Int64[Tensor, " n"], length: Int64[Tensor, " n"], flip: Tensor, source: int, size: int
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


def _jitter(x: Float32[Tensor, "n 3 h w"], params: AugmentParams) -> Float32[Tensor, "n 3 h w"]:
    if (params.amount == NEUTRAL).all():
        return x
    for operation in params.order.T:  # each image's first operation, then each one's second, ...
        amount = np.take_along_axis(params.amount, operation[:, None], axis=1)[:, 0]
        x = _blend(x, operation, np.where(operation == HUE, 1.0, amount))
        turned = np.flatnonzero((operation == HUE) & (amount != 0))
        if len(turned):
            rows = _to(turned, x.device)
            x[rows] = _turn_hue(x[rows], _column(amount[turned], x.device))
    return x


def _blend(x: Float32[Tensor, "n 3 h w"], operation: np.ndarray, factor: np.ndarray) -> Float32[Tensor, "n 3 h w"]:
    """``factor`` of the image, the rest of black, of its mean grey, or of its own grey: whichever is the row's turn.

    A factor of one returns the row as it was, to the last bit but one.
    """
    luma = _luma(x)
    own = _column(operation == SATURATION, x.device)
    mean = _column(operation == CONTRAST, x.device) * luma.mean((2, 3), keepdim=True)
    return torch.lerp(torch.addcmul(mean, own, luma), x, _column(factor, x.device)).clamp_(0, 1)


def _turn_hue(x: Float32[Tensor, "n 3 h w"], turn: Float32[Tensor, "n 1 1 1"]) -> Float32[Tensor, "n 3 h w"]:
    """Through HSV and back. Value and chroma stay; each channel is value − chroma · a clipped triangle of the hue."""
    value, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    chroma = value - least
    red, green, blue = x.unsqueeze(2).unbind(1)
    safe = torch.where(chroma > 0, chroma, 1)
    hue = torch.where(  # in sixths of the circle
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    offset = x.new_tensor([5.0, 3.0, 1.0]).view(1, 3, 1, 1)
    k = (hue + 6 * turn + offset) % 6
    return value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


def _luma(x: Float32[Tensor, "n 3 h w"]) -> Float32[Tensor, "n 1 h w"]:
    red, green, blue = x.unsqueeze(2).unbind(1)
    return _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue


def _column(values: np.ndarray, device: torch.device) -> Float32[Tensor, "n 1 1 1"]:
    return _to(values.astype(np.float32), device).view(-1, 1, 1, 1)


def _to(values: np.ndarray, device: torch.device) -> Tensor:
    """To the device without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
