"""The weights that the paper's backbones start from: timm's by their tag, or a file's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tdumpra.errors import nearest
from tdumpra.experiments import paper
from tdumpra.experiments.paper import Backbone
from tdumpra.runs.config import Config, NetworkConfig

Weights = Mapping[str, str]  # by the paper's name of the backbone: a tag of timm's, a file, or "none"

_FILES = (".safetensors", ".pth", ".pt", ".bin")


def parse_weights(given: Sequence[str]) -> dict[str, str]:
    """Read ``NAME=TAG`` or ``NAME=FILE`` each; a tag must be one of timm's for that backbone."""
    backbones = {each.name.lower(): each for each in paper.BACKBONES}
    found = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value:
            raise ValueError(f"--weights takes NAME=TAG or NAME=FILE, as in  --weights ViT-B=vit.pth,  not {text!r}")
        if name.lower() not in backbones:
            known = [each.name for each in paper.BACKBONES]
            raise ValueError(f"--weights: the paper has no {name}{nearest(name, known)}; it has {', '.join(known)}")
        backbone = backbones[name.lower()]
        found[backbone.name] = value if value == "none" or _is_file(value) else _tag(backbone, value)
    return found


def _is_file(value: str) -> bool:
    return value.endswith(_FILES)


def _tag(backbone: Backbone, value: str) -> str:
    import timm  # takes seconds to import

    tag = value.removeprefix(f"{backbone.architecture}.")
    known = [name.split(".", 1)[1] for name in timm.list_pretrained(f"{backbone.architecture}.*")]
    if tag not in known:
        raise ValueError(
            f"--weights {backbone.name}={value}: neither a file ({', '.join(_FILES)}) nor a tag of timm's "
            f"{backbone.architecture}, which has {', '.join(known)}"
        )
    return tag


def pretrained_network(backbone: Backbone, network: NetworkConfig, weights: Weights) -> NetworkConfig:
    """Return the network of a row: what ``weights`` says, or the configuration where it names this backbone itself.

    Of a file's network the backbone keeps its tag, which says what colours the weights expect.
    """
    own = network.backbone.split(".")[0] == backbone.architecture and network.weights != "lite"
    if (value := weights.get(backbone.name)) is None:
        if own:
            return network
        value = "none" if network.weights == "none" else backbone.timm.split(".")[1]
    if value == "none" or _is_file(value):
        return replace(network, backbone=backbone.timm, weights=value)
    return replace(network, backbone=f"{backbone.architecture}.{value}", weights="timm")


def pretraining(config: Config) -> str:
    """Return what a network's weights were before training, for the table."""
    network = config.network
    if config.outputs:
        return "not known"
    if network.weights != "timm":
        return "none" if network.weights == "none" else f"file {Path(network.weights).name}"
    if "." in network.backbone:
        return network.backbone
    import timm

    default = timm.get_pretrained_cfg_value(network.backbone, "tag")
    return f"{network.backbone}.{default}"


def refuse_missing_weights(networks: Mapping[str, NetworkConfig]) -> None:
    """Build each network once, by the backbone's name: weights that are not to be had are told before any training."""
    from tdumpra.networks.build import build_network  # timm is loaded only where something is trained
    from tdumpra.networks.weights import HubError, WeightsError

    missing = []
    for name, network in networks.items():
        try:
            build_network(network, 2)
        except HubError:
            missing.append(name)
        except WeightsError as error:
            raise WeightsError(f"{name}: {error}") from error
    if missing:
        tags = ", ".join(f"{name} ({networks[name].backbone})" for name in missing)
        raise WeightsError(
            f"timm cannot get the weights of {tags}: connect to the network once, so that they are cached, or give a "
            f"file for each, as in  --weights {missing[0]}=FILE.safetensors"
        )
