"""The backbone of the demo: what it measures, and that it fits where backbones go."""

from __future__ import annotations

import math

import pytest
import torch

from tdumpra.networks.build import DualHeadNetwork, build_network
from tdumpra.networks.texture_network import TextureNetwork, texture_network
from tdumpra.runs.config import NetworkConfig

PATH = "tdumpra.texture_network:texture_network"


def pictures(n: int = 4, size: int = 64) -> torch.Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(3))


def test_an_even_picture_has_colour_and_no_texture():
    colour = torch.tensor([0.8, 0.5, 0.4])
    statistics = TextureNetwork().statistics(colour[:, None, None].expand(1, 3, 64, 64))[0]
    texture, rest = statistics[: 4 * 4 * 9], statistics[4 * 4 * 9 :]
    # -ln of (0.8, 0.5, 0.4) is (0.2231, 0.6931, 0.9163); depth is their mean, 0.6109
    assert texture.abs().max() < 1e-3
    assert rest[:3].tolist() == pytest.approx([math.sqrt(0.6109)] * 3, abs=1e-3)  # three rings, all the same
    red_blue = (0.2231 - 0.9163) / 2
    assert rest[3:6].tolist() == pytest.approx([-math.sqrt(-red_blue)] * 3, abs=1e-3)  # the sign is kept
    assert rest[9:12].tolist() == pytest.approx([0.6109] * 3, abs=1e-3)  # the root of its square


def test_a_finer_grain_shows_at_a_finer_scale():
    x = torch.arange(64)
    fine, coarse = ((0.5 + 0.2 * torch.sin(x * math.tau / period)).expand(1, 3, 64, 64) for period in (3, 24))
    depth_contrast = [TextureNetwork().statistics(image)[0].view(18, 9)[0:16:4, 0] for image in (fine, coarse)]
    assert depth_contrast[0].argmax() == 0
    assert depth_contrast[1].argmax() > 1


@pytest.mark.parametrize("size", [32, 48, 64, 96])
def test_a_picture_counts_for_itself_at_any_size(size):
    network = TextureNetwork().eval()
    images = pictures(size=size)
    together = network(images)
    assert together.shape == (4, 32)
    torch.testing.assert_close(network(images[2:3]), together[2:3])


def test_only_the_layer_learns():
    network = TextureNetwork()
    network(pictures()).sum().backward()
    assert {name for name, p in network.named_parameters() if p.grad is not None} == {
        "normalise.weight", "normalise.bias", "layer.weight", "layer.bias",
    }  # fmt: skip


def test_black_is_no_infinity():
    assert TextureNetwork().eval()(torch.zeros(1, 3, 64, 64)).isfinite().all()


def test_it_is_a_backbone_and_a_classifier():
    config = NetworkConfig(backbone=PATH, weights="none", embedding=8, image_size=64)
    built = build_network(config, 7)
    assert isinstance(built.network, DualHeadNetwork)
    encoding = built.network.eval()(pictures())
    assert encoding.logits.shape == (4, 7)
    assert encoding.z.norm(dim=1).tolist() == pytest.approx([1.0] * 4, abs=1e-5)
    assert texture_network(7).eval()(pictures()).shape == (4, 7)
