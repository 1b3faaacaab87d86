"""Which trainings the paper's tables need. The command itself is tried in ``test_commands_experiments``."""

from __future__ import annotations

import pytest

from tdumpra.config import Config, NetworkConfig
from tdumpra.experiments import paper
from tdumpra.experiments.reproduce import entries


@pytest.mark.parametrize(
    ("weights", "taken"), [("none", "none"), ("timm", "timm"), ("lite", "timm"), ("a.safetensors", "timm")]
)
def test_each_backbone_with_and_without_the_method(weights, taken):
    found = entries(Config(name="x", network=NetworkConfig(weights=weights, image_size=96)))
    assert [entry.config.network.backbone for entry in found[::2]] == [each.timm for each in paper.BACKBONES]
    assert {entry.config.network.weights for entry in found} == {taken}
    assert {entry.config.network.image_size for entry in found} == {96}
    assert [entry.config.train.contrastive_weight > 0 for entry in found] == [False, True] * 5
    assert {entry.seeds for entry in found} == {(0, 1, 2)}
