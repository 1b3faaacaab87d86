"""Build networks that give logits and an embedding: for joint training, or from a finished classifier."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock, get_ident
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tdumpra.core.rowwise import normalise
from tdumpra.data.images.framing import IMAGENET_MEAN, IMAGENET_STD
from tdumpra.errors import TdumpraError
from tdumpra.networks.settings import NetworkConfig, Precision
from tdumpra.networks.weights import load_backbone_weights, load_classifier_weights

Colour = tuple[float, float, float]


class NetworkError(TdumpraError):
    """A network cannot be built, or its input or output is not usable."""


class Encoding(NamedTuple):
    """The output of every network for a batch of images."""

    logits: Float[Tensor, "n c"]
    z: Float[Tensor, "n d"]  # rows of length one, float32
    features: Float[Tensor, "n f"]  # pooled, as the classifier's head gets them, float32


class _ExactFloat32:
    """Keep a GPU from rounding factors to eleven bits, as long as any thread asks for it."""

    def __init__(self) -> None:
        cudnn: Any = torch.backends.cudnn  # its type stubs lack the parts
        self._switches: list[Any] = [cudnn.conv, torch.backends.cuda.matmul]
        self._lock, self._asking, self._before = Lock(), 0, ["", ""]

    def __enter__(self) -> None:
        with self._lock:
            if self._asking == 0:
                self._before = [switch.fp32_precision for switch in self._switches]
                self._set(["ieee", "ieee"])
            self._asking += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._asking -= 1
            if self._asking == 0:
                self._set(self._before)

    def _set(self, formats: list[str]) -> None:
        for switch, format_ in zip(self._switches, formats, strict=True):
            switch.fp32_precision = format_


_exact_float32 = _ExactFloat32()


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """Compute in this precision; ``float32`` is exact on a GPU too."""
    exact = _exact_float32 if precision == "float32" and device.type == "cuda" else nullcontext()
    with exact, torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
        yield


class DualHeadNetwork(nn.Module):
    """A backbone with a linear classifier and a projection head on its pooled features.

    An unused head may be ``None``: its output then has no columns.
    """

    classifier: nn.Module | None
    projection: nn.Module | None

    def __init__(self, backbone: nn.Module, n_features: int, n_classes: int, embedding: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = nn.Linear(n_features, n_classes)
        self.projection = nn.Sequential(
            nn.Linear(n_features, n_features), nn.ReLU(inplace=True), nn.Linear(n_features, embedding)
        )

    def forward(self, images: Float[Tensor, "n 3 h w"]) -> Encoding:
        """Return logits and unit embeddings. The classifier and the norm are float32, also under autocast."""
        pooled = _pooled(self.backbone(images))
        nothing = pooled.new_empty(pooled.shape[0], 0, dtype=torch.float32)
        projected = None if self.projection is None else self.projection(pooled)
        with torch.autocast(images.device.type, enabled=False):
            features = pooled.float()
            logits = nothing if self.classifier is None else self.classifier(features)
            return Encoding(logits, nothing if projected is None else normalise(projected), features)


class AttachedClassifier(nn.Module):
    """A finished classifier: its own logits, and the input of its last linear layer as the embedding."""

    def __init__(self, classifier: nn.Module, image_size: int) -> None:
        super().__init__()
        self.classifier = classifier
        self._head = _last_linear(classifier, image_size)
        self._captured: dict[int, Tensor] = {}  # by thread: several may predict at a time
        head = dict(classifier.named_modules())[self._head]
        head.register_forward_pre_hook(lambda _, inputs: self._captured.update({get_ident(): inputs[0]}))

    def forward(self, images: Float[Tensor, "n 3 h w"]) -> Encoding:
        """Return logits and normalised penultimate features."""
        logits = self.classifier(images)
        features = self._captured.pop(get_ident()).flatten(1)
        with torch.autocast(images.device.type, enabled=False):
            return Encoding(logits.float(), normalise(features), features.float())


class FrozenEncoder(nn.Module):
    """A pretrained backbone as the space of a bank. It knows no classes: all logits are zero."""

    def __init__(self, backbone: nn.Module, n_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.n_classes = n_classes

    def forward(self, images: Float[Tensor, "n 3 h w"]) -> Encoding:
        """Return normalised pooled features."""
        features = _pooled(self.backbone(images))
        with torch.autocast(images.device.type, enabled=False):
            logits = features.new_zeros(features.shape[0], self.n_classes).float()
            return Encoding(logits, normalise(features), features.float())


class SeveralViews(nn.Module):
    """Average a network's outputs over mirrored and turned views of each image.

    Two views: the image and its mirror image; four: upside down too; eight: all of these with rows and columns
    exchanged. Probabilities are averaged, and so are features, and embeddings, back onto the sphere.
    """

    def __init__(self, network: nn.Module, views: int) -> None:
        super().__init__()
        self.network = network
        self.views = views

    def forward(self, images: Float[Tensor, "n 3 h w"]) -> Encoding:
        """Return logarithms of the mean probabilities, and the mean direction."""
        views = [images, images.flip(3), images.flip(2), images.flip(2, 3)]
        views += [view.transpose(2, 3) for view in views]
        seen = [self.network(view) for view in views[: self.views]]
        with torch.autocast(images.device.type, enabled=False):
            log_p = torch.stack([each.logits.float().log_softmax(1) for each in seen]).logsumexp(0)
            z = torch.stack([each.z for each in seen]).mean(0)
            features = torch.stack([each.features for each in seen]).mean(0)
            return Encoding(log_p - math.log(self.views), normalise(z) if z.shape[1] else z, features)


class NewHead(nn.Module):
    """A network whose logits come from another linear layer on its pooled features: it was adapted to a new place."""

    def __init__(self, network: nn.Module, weight: Float[Tensor, "c f"], bias: Float[Tensor, " c"]) -> None:
        super().__init__()
        self.network = network
        self.head = nn.Linear(weight.shape[1], weight.shape[0])
        self.head.load_state_dict({"weight": weight, "bias": bias})

    def forward(self, images: Float[Tensor, "n 3 h w"]) -> Encoding:
        """Return the network's features and embedding, and the head's logits, which are float32 under autocast too."""
        seen: Encoding = self.network(images)
        with torch.autocast(images.device.type, enabled=False):
            return seen._replace(logits=self.head(seen.features))


class BuiltNetwork(NamedTuple):
    """A network, and the mean and deviation of the colours that its weights expect."""

    network: nn.Module
    mean: Colour
    std: Colour


def build_network(config: NetworkConfig, n_classes: int, *, load: bool = True) -> BuiltNetwork:
    """Build a backbone with two heads, and load the weights that ``config`` names, unless ``load`` is false.

    With ``config.finished`` it is a trained classifier, with ``config.frozen`` a backbone without heads.
    """
    weights = config.weights if load else "none"
    network: nn.Module
    if config.finished:
        created = _create(config, n_classes)
        load_classifier_weights(created, weights)
        width = _probe(created, config.image_size, "the classifier").shape[1]
        if width != n_classes:
            raise NetworkError(f"the classifier gives {width} logits, and the data have {n_classes} classes")
        network = AttachedClassifier(created, config.image_size)
    else:
        created = _create(config, 0)
        load_backbone_weights(created, config.backbone, weights, create=lambda: _create(config, 0, pretrained=True))
        n_features = _probe(created, config.image_size, f"the backbone {config.backbone!r}").shape[1]
        if config.frozen:
            network = FrozenEncoder(created, n_classes)
        else:
            network = DualHeadNetwork(created, n_features, n_classes, config.embedding)
    expected = getattr(created, "pretrained_cfg", None) or {}
    mean = config.mean or tuple(expected.get("mean", IMAGENET_MEAN))
    std = config.std or tuple(expected.get("std", IMAGENET_STD))
    return BuiltNetwork(network, cast(Colour, mean), cast(Colour, std))


def refuse_larger_backbone(config: NetworkConfig, n_classes: int, numbers: int) -> None:
    """Refuse a backbone of timm with more weights than these ``numbers``; it is laid out without memory for them.

    The RegNets of older versions of timm compute with numbers on the way, and cannot be: they pass.
    """
    try:
        with torch.device("meta"):
            layout = _create(config, n_classes if config.finished else 0)
    except (NotImplementedError, NetworkError) as error:
        if isinstance(error, NotImplementedError) or isinstance(error.__cause__, NotImplementedError):
            return
        raise
    needed = sum(each.numel() for each in layout.state_dict().values())
    if needed > numbers:
        raise NetworkError(f"{config.backbone} has {needed:,} weights, and the model holds {numbers:,}")


def _create(config: NetworkConfig, num_classes: int, *, pretrained: bool = False) -> nn.Module:
    if ":" in config.backbone:
        return _from_factory(config.backbone, num_classes)
    import timm  # takes seconds to import, and most commands build no network

    if not timm.is_model(config.backbone.split(".")[0]):
        near = difflib.get_close_matches(config.backbone, timm.list_models(), n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "timm.list_models() lists what there is"
        raise NetworkError(f"unknown backbone {config.backbone!r}: {hint}")
    arguments: dict[str, Any] = {"pretrained": pretrained, "num_classes": num_classes}
    try:
        default = timm.get_pretrained_cfg_value(config.backbone, "input_size")
    except RuntimeError as error:  # the part after the point names no pretrained weights
        name, _, tag = config.backbone.partition(".")
        known = timm.list_pretrained(f"{name}.*")
        raise NetworkError(f"timm knows no weights {tag!r} of {name}; it has {', '.join(known) or 'none'}") from error
    if default is not None and default[-1] != config.image_size:
        try:  # transformers are built for one image size
            return timm.create_model(config.backbone, img_size=config.image_size, **arguments)
        except TypeError:
            pass  # a convolutional network takes any size, and no such argument
        except (AssertionError, ValueError, RuntimeError) as error:
            raise NetworkError(f"{config.backbone} cannot take images of {config.image_size} px: {error}") from error
    return timm.create_model(config.backbone, **arguments)


def _from_factory(path: str, num_classes: int) -> nn.Module:
    """Call ``package.module:function`` with ``num_classes``; zero asks for pooled features."""
    module_name, _, function_name = path.partition(":")
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise NetworkError(f"the network factory {path!r} cannot be imported: {error}") from error
    network = factory(num_classes=num_classes)
    if not isinstance(network, nn.Module):
        raise NetworkError(f"the network factory {path!r} must return an nn.Module, not {type(network).__name__}")
    return network


@torch.no_grad()
def _probe(module: nn.Module, image_size: int, name: str) -> Tensor:
    """Return the module's pooled output for an image of noise; refuse a module that cannot take that size."""
    was_training = module.training
    module.eval()
    noise = torch.rand(1, 3, image_size, image_size, generator=torch.Generator().manual_seed(0))
    try:
        output = module(noise)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise NetworkError(f"{name} cannot take images of {image_size} px: {error}") from error
    finally:
        module.train(was_training)
    if not isinstance(output, Tensor) or output.ndim not in (2, 4):
        found = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise NetworkError(f"{name} must give features (n, f) or (n, f, h, w), not {found}")
    return _pooled(output)


def _pooled(features: Tensor) -> Tensor:
    return features.mean((2, 3)) if features.ndim == 4 else features


@torch.no_grad()
def _last_linear(classifier: nn.Module, image_size: int) -> str:
    """Return the name of the linear layer whose output is the classifier's output."""
    outputs: dict[str, Tensor] = {}

    def remember(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda _, __, output: outputs.update({name: output})

    layers = [
        (name, module) for name, module in classifier.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)
    ]
    hooks = [module.register_forward_hook(remember(name)) for name, module in layers]
    logits = _probe(classifier, image_size, "the classifier")
    for handle in hooks:
        handle.remove()
    for name, output in reversed(outputs.items()):
        if output.numel() == logits.numel() and torch.equal(output.flatten(1), logits):
            return name
    raise NetworkError("no linear layer of the classifier gives its logits, so it has no penultimate features to match")
