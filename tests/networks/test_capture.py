"""What a recording on a GPU must know of a network."""

from __future__ import annotations

import tiny_networks
import torch
from torch import nn

from tdumpra.networks.capture import PlainState


def test_what_a_network_counts_in_python_is_seen_and_put_back():
    network = nn.Sequential(tiny_networks.counting(3))
    plain = PlainState(network)
    network(torch.rand(2, 3, 16, 16))
    assert plain.has_changed()
    plain.put_back()
    assert not plain.has_changed()
    assert not hasattr(network[0], "count")
