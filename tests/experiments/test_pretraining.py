"""Weights of the paper's backbones: by tag, by file, and those that are not to be had."""

from __future__ import annotations

import pytest

from tdumpra.experiments import paper
from tdumpra.experiments.pretraining import parse_weights, pretrained_network, pretraining, refuse_missing_weights
from tdumpra.networks import build, weights
from tdumpra.networks.build import BuiltNetwork
from tdumpra.runs.config import Config, NetworkConfig

BACKBONES = {each.name: each for each in paper.BACKBONES}
TIMM = NetworkConfig(weights="timm")


def network_of(name: str, given: str | None = None, network: NetworkConfig = TIMM) -> tuple[str, str]:
    found = pretrained_network(BACKBONES[name], network, parse_weights([given] if given else []))
    return found.backbone, found.weights


def test_the_defaults_are_weights_of_imagenet_1k_alone():
    import timm

    for each in paper.BACKBONES:
        assert each.timm in timm.list_pretrained(f"{each.architecture}.*")
        assert each.timm.endswith("_in1k")
        assert not any(word in each.timm for word in ("in12k", "in21k", "in22k"))
        assert timm.get_pretrained_cfg_value(each.timm, "num_classes") == 1000


@pytest.mark.parametrize("given", ["Swin-B=ms_in22k_ft_in1k", "swin-b=swin_base_patch4_window7_224.ms_in22k_ft_in1k"])
def test_by_tag(given):
    assert network_of("Swin-B", given) == ("swin_base_patch4_window7_224.ms_in22k_ft_in1k", "timm")
    assert network_of("ViT-B", given) == ("vit_base_patch16_224.augreg_in1k", "timm")


def test_by_file_and_none():
    assert network_of("ViT-B", "ViT-B=a=b.pth") == ("vit_base_patch16_224.augreg_in1k", "a=b.pth")
    assert network_of("ViT-B", "ViT-B=none")[1] == "none"
    assert network_of("ViT-B", network=NetworkConfig(weights="none"))[1] == "none"  # the configuration's word


def test_a_configuration_speaks_for_its_own_backbone():
    own = NetworkConfig(backbone="resnet101", weights="resnet.pth")
    assert network_of("ResNet-101", network=own) == ("resnet101", "resnet.pth")
    assert network_of("ResNet-101", "ResNet-101=tv_in1k", own) == ("resnet101.tv_in1k", "timm")
    assert network_of("ViT-B", network=own) == ("vit_base_patch16_224.augreg_in1k", "timm")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ViT-B", "takes NAME=TAG or NAME=FILE"),
        ("ViT-B=", "takes NAME=TAG or NAME=FILE"),
        ("ViT-X=none", "the paper has no ViT-X; did you mean 'ViT-B'"),
        ("ViT-B=ms_in1k", "which has .*augreg_in1k"),
    ],
)
def test_mistakes(given, message):
    with pytest.raises(ValueError, match=message):
        parse_weights([given])


def test_what_the_table_says():
    def told(backbone: str, weights: str) -> str:
        return pretraining(Config(network=NetworkConfig(backbone=backbone, weights=weights)))

    assert told("resnet101.tv_in1k", "timm") == "resnet101.tv_in1k"
    assert told("convnext_tiny", "timm") == "convnext_tiny.in12k_ft_in1k"  # timm's default, which is more than 1k
    assert told("resnet101", "folder/mine.pth") == "file mine.pth"
    assert told("resnet101", "none") == "none"


def test_all_weights_that_cannot_be_had_are_named_at_once(monkeypatch):
    def offline(network: NetworkConfig, n_classes: int) -> BuiltNetwork | None:
        if network.weights == "timm":
            raise weights.HubError("no network")
        return None

    monkeypatch.setattr(build, "build_network", offline)
    given = parse_weights(["ViT-B=vit.pth"])
    networks = {each.name: pretrained_network(each, TIMM, given) for each in paper.BACKBONES}
    with pytest.raises(weights.WeightsError) as told:
        refuse_missing_weights(networks)
    message = str(told.value)
    assert all((each.name in message) == (each.name != "ViT-B") for each in paper.BACKBONES)
    assert "--weights ConvNeXt-Tiny=FILE" in message  # which parse_weights takes
    refuse_missing_weights({"ViT-B": networks["ViT-B"]})


def test_a_file_that_does_not_exist_is_told_with_its_backbone(tmp_path):
    network = pretrained_network(BACKBONES["EfficientNet-B0"], TIMM, {"EfficientNet-B0": str(tmp_path / "no.pth")})
    with pytest.raises(weights.WeightsError, match=r"EfficientNet-B0: the weights file .*no\.pth does not exist"):
        refuse_missing_weights({"EfficientNet-B0": network})


def test_without_the_hub_the_real_error_is_caught(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(weights, "_is_reachable", lambda address: False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    network = pretrained_network(BACKBONES["EfficientNet-B0"], TIMM, {})
    with pytest.raises(weights.WeightsError, match=r"--weights EfficientNet-B0=FILE"):
        refuse_missing_weights({"EfficientNet-B0": network})
