"""A backbone that needs no pretrained weights and learns in seconds on a CPU: fixed statistics of texture, one layer.

A convolutional network that starts from nothing needs more images and steps than a demonstration has. This one looks at
what a beginner would be told to look at (how dark, how red, how coarse, how evenly spread), as numbers that no training
has to find, and learns what to make of them. It is named in a configuration as
``tdumpra.texture_network:texture_network``, with inputs from 0 to 1 (``mean = [0, 0, 0]``, ``std = [1, 1, 1]``).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

_LEVELS = 4  # of the pyramid: structures from one pixel to about a quarter of a picture of 64
_RINGS = (0.0, 0.45, 0.9)  # distances from the middle, half the picture being one: core, border, surroundings
_RING_WIDTH = 0.2
_DARKEST = 1 / 64  # below it the logarithm would mostly tell sensor noise
_CHANNELS = ((1 / 3, 1 / 3, 1 / 3), (1 / 2, 0.0, -1 / 2), (-1 / 4, 1 / 2, -1 / 4))  # depth, red–blue, green–magenta
_WIDTH = 32  # of the layer
_N_STATISTICS = len(_CHANNELS) * len(_RINGS) * (4 * _LEVELS + 2)


class TextureNetwork(nn.Module):
    """Statistics of an image's optical density, by scale and by distance from the middle, and a layer on them."""

    blur: Tensor
    mix: Tensor

    def __init__(self, num_classes: int = 0) -> None:
        super().__init__()
        binomial = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
        self.register_buffer("blur", torch.outer(binomial, binomial).repeat(len(_CHANNELS), 1, 1, 1))
        self.register_buffer("mix", torch.tensor(_CHANNELS))
        self.normalise = nn.BatchNorm1d(_N_STATISTICS)
        self.layer = nn.Linear(_N_STATISTICS, _WIDTH)
        self.head = nn.Linear(_WIDTH, num_classes) if num_classes else nn.Identity()

    def forward(self, images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n f"]:
        """Return features, or logits where there are classes."""
        with torch.no_grad():  # nothing before the first layer learns
            statistics = self.statistics(images)
        features: Tensor = self.head(torch.relu(self.layer(self.normalise(statistics))))
        return features

    def statistics(self, images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n s"]:
        """Return mean contrast, dark and light structure and slope at each scale, and what is left at the coarsest."""
        density = torch.einsum("kc,nchw->nkhw", self.mix, -images.clamp(min=_DARKEST).log())
        parts = []
        for _ in range(_LEVELS):
            padded = functional.pad(density, (2, 2, 2, 2), mode="reflect")
            # the same numbers: a CPU blurs a few channels eight times as fast where they lie side by side
            padded = padded.contiguous(memory_format=torch.channels_last)
            low = functional.conv2d(padded, self.blur, groups=len(_CHANNELS)).contiguous()
            band = density - low
            across, down = low[..., :-1, 1:] - low[..., :-1, :-1], low[..., 1:, :-1] - low[..., :-1, :-1]
            parts += [band.abs(), band.clamp(min=0) ** 2, band.clamp(max=0) ** 2, across**2 + down**2]
            density = low[..., ::2, ::2]
        parts += [density, density**2]
        pooled = torch.cat([_by_ring(part) for part in parts], 1)
        return pooled.sign() * pooled.abs().sqrt()


def texture_network(num_classes: int) -> nn.Module:
    """Build the network: the factory that configurations name."""
    return TextureNetwork(num_classes)


def _by_ring(field: Float[Tensor, "n k h w"]) -> Float[Tensor, "n kr"]:
    """Return means over soft rings around the middle."""
    height, width = field.shape[-2:]
    y, x = ((torch.arange(n, device=field.device) + 0.5) * (2 / n) - 1 for n in (height, width))
    distance = torch.hypot(y[:, None], x[None, :]).to(field.dtype)
    weights = torch.stack([torch.exp(-0.5 * ((distance - ring) / _RING_WIDTH) ** 2).flatten() for ring in _RINGS], 1)
    return (field.flatten(2) @ (weights / weights.sum(0))).flatten(1)
