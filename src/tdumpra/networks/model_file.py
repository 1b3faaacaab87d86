"""The model file: networks with their preprocessing, bank, thresholds, small pictures, its record and its history."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from tdumpra.artifacts import Artifact, fingerprint, prefixed, read_artifact, unprefixed, write_artifact
from tdumpra.data.images.framing import EvalTransform
from tdumpra.errors import ArtifactError, OtherKindError, UntrustedCodeError
from tdumpra.foreign import reading
from tdumpra.method import lineage
from tdumpra.method.decision import Decision
from tdumpra.method.record import Record
from tdumpra.method.schema import check_tensor
from tdumpra.networks.build import Encoding, NetworkError, NewHead, SeveralViews, build_network, refuse_larger_backbone
from tdumpra.networks.settings import VIEWS, NetworkConfig, Precision
from tdumpra.runtime.exported import is_exported
from tdumpra.toml import from_plain
from tdumpra.values import check_choice, check_count, check_list, check_table, check_text

if TYPE_CHECKING:
    from tdumpra.core.linear_head import LinearHead

KIND, SCHEMA = "model", 3

OWN_FACTORIES = frozenset({"tdumpra.texture_network:texture_network"})  # code that any model file may name

_REMEDY = {  # by the kind of file that was given instead
    "dual-path classifier": ": it was made from saved arrays and has no network to look at images with. Load it with "
    "DualPathClassifier.load and hand it probabilities and embeddings of your own model, or make a model of images "
    "with  tdumpra run",
    "bank": ": name model.safetensors, which lies beside it once the run was tuned",
}
_HEAD = ("adapted_head.weight", "adapted_head.bias")  # among the weights of an adapted classifier
_MOST_SIDE = 4096  # pixels of a network's input, of the frame before it, and of the picture of an exemplar
_MOST_WIDTH = 65_536  # of an embedding


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Encoder:
    """A network with its weights and the preprocessing that they were trained with."""

    network: NetworkConfig
    transform: EvalTransform
    state: Mapping[str, Tensor]
    views: int = 1  # of each image, averaged
    precision: Precision = "float32"  # of the tables on which everything was tuned

    @property
    def fingerprint(self) -> str:
        """Return a hash that changes when a weight or the preprocessing does."""
        parts: list[bytes | str] = [
            self.transform.fingerprint,
            str(self.network.identity),
            str(self.views),
            self.precision,
        ]
        for name, tensor in sorted(self.state.items()):
            parts += [name, tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()]
        return fingerprint(*parts)

    def build(self, n_classes: int, device: torch.device, *, trusted: Collection[str] = ()) -> nn.Module:
        """Build the network and load its weights. An encoder of another run may have other classes.

        A model file may come from a stranger, and a backbone ``package.module:function`` is code to import and call.
        Only the factories of tdumpra itself and those in ``trusted`` are called.
        """
        name = self.network.backbone
        if ":" in name and name not in OWN_FACTORIES and name not in trusted:
            raise UntrustedCodeError(
                f"the model asks to import and call {name!r}, which was not done: a model file may come from anyone. "
                f"If you trust that code, name it: --trust-code {name}  or  Predictor.load(path, trusted=[{name!r}])"
            )
        if "classifier.weight" in self.state and not self.network.finished:
            n_classes = len(self.state["classifier.weight"])
        if ":" not in name:  # gigabytes, asked for by a file of kilobytes
            refuse_larger_backbone(self.network, n_classes, sum(tensor.numel() for tensor in self.state.values()))
        network = build_network(self.network, n_classes, load=False).network
        head = {key: tensor for key, tensor in self.state.items() if key in _HEAD}
        state = {key: tensor for key, tensor in self.state.items() if key not in _HEAD}
        if not self.network.as_it_is:
            present = {key.split(".")[0] for key in state}
            for unused in {"classifier", "projection"} - present:
                setattr(network, unused, None)
        try:
            network.load_state_dict(state)
        except RuntimeError as error:
            raise NetworkError(
                f"the model's weights do not fit {name!r}, which builds another network now than when "
                "they were trained: restore its code, or train again"
            ) from error
        built: nn.Module = network if self.views == 1 else SeveralViews(network, self.views)
        return (NewHead(built, *(head[key] for key in _HEAD)) if head else built).eval().to(device)

    @property
    def head(self) -> LinearHead | None:
        """Return the linear layer from pooled features to logits; ``None`` where a factory made the network."""
        from tdumpra.core.linear_head import LinearHead  # loads SciPy, which prediction can do without

        own = ("classifier.weight", "classifier.bias")
        for names in (_HEAD, () if self.network.as_it_is else own):
            if names and all(name in self.state for name in names):
                return LinearHead(*(self.state[name].float().numpy() for name in names))
        return None

    def with_head(self, weight: Any, bias: Any) -> Encoder:
        """Let another linear layer on the pooled features give the logits; an earlier one of this kind is replaced."""
        head = (torch.as_tensor(each).float() for each in (weight, bias))
        return replace(self, state={**self.state, **dict(zip(_HEAD, head, strict=True))})

    @property
    def without_adapted_head(self) -> Encoder:
        """Return the network as it was before a head of its own took the classifier's place."""
        return replace(self, state={name: tensor for name, tensor in self.state.items() if name not in _HEAD})

    def without(self, head: Literal["classifier", "projection"]) -> Encoder:
        """Drop an unused head. A finished or frozen network stays as it is."""
        if self.network.as_it_is:
            return self
        return replace(self, state={name: t for name, t in self.state.items() if not name.startswith(f"{head}.")})


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Model:
    """The contents of ``model.safetensors``."""

    decision: Decision
    class_names: tuple[str, ...]
    classifier: Encoder
    retrieval: Encoder | None  # None: the classifier's own embeddings are matched, in one pass
    thumbnails: Mapping[str, Tensor]  # exemplar id -> (h, w, 3) uint8; empty where privacy forbids them
    identity: Mapping[str, str]
    record: Record | None = None  # None where privacy forbids it, and in older files
    lineage: tuple[lineage.Entry, ...] = ()  # empty in older files
    evaluation: Mapping[str, Any] | None = None  # in brief, of the model as it was first made; None in older files

    @property
    def networks_fingerprint(self) -> str:
        """Return a hash that changes when an output of the networks might."""
        return fingerprint(*(each.fingerprint for each in (self.classifier, self.retrieval) if each is not None))

    def write(self, path: Path) -> None:
        """Write one sealed file."""
        decision = self.decision.to_artifact()
        tensors = prefixed("decision", decision.tensors)
        encoders: dict[str, Any] = {}
        for role, encoder in {"classifier": self.classifier, "retrieval": self.retrieval}.items():
            if encoder is None:
                continue
            tensors |= prefixed(role, encoder.state)
            encoders[role] = {
                "network": asdict(encoder.network), "transform": encoder.transform.to_dict(), "views": encoder.views,
                "precision": encoder.precision,
            }  # fmt: skip
        tensors |= prefixed("thumbnail", self.thumbnails)
        record = Artifact({}, {}) if self.record is None else self.record.to_artifact()
        tensors |= prefixed("record", record.tensors)
        meta = {
            "decision": decision.meta,
            "class_names": self.class_names,
            "encoders": encoders,
            "identity": dict(self.identity),
            "record": record.meta or None,
            "lineage": lineage.to_json(self.lineage),
            "evaluation": None if self.evaluation is None else dict(self.evaluation),
        }
        write_artifact(path, kind=KIND, schema=SCHEMA, tensors=tensors, meta=meta)

    def build(self, device: torch.device, *, trusted: Collection[str] = ()) -> tuple[nn.Module, nn.Module | None]:
        """Build the networks, and refuse those that do not fit the classes and the bank."""
        n_classes, width = self.decision.columns, self.decision.bank.width
        classifier = self.classifier.build(n_classes, device, trusted=trusted)
        given = _blank_pass(classifier, self.classifier, device)
        _check_columns("classifier", "logits", given.logits, n_classes)
        retrieval = None
        if self.retrieval is not None:
            retrieval = self.retrieval.build(n_classes, device, trusted=trusted)
            given = _blank_pass(retrieval, self.retrieval, device)
        _check_columns("network that matches prototypes", "embeddings", given.z, width)
        return classifier, retrieval

    @classmethod
    def read(cls, path: str | Path) -> Model:
        """Read a model file."""
        if is_exported(Path(path)):
            raise ArtifactError(
                f"{path} is an exported model, for  tdumpra predict:  name the model.safetensors behind it"
            )
        try:
            tensors, meta = read_artifact(path, kind=KIND, schema=SCHEMA)
        except OtherKindError as error:
            raise ArtifactError(f"{error}{_REMEDY.get(error.found, '')}") from error

        with reading(path, "tdumpra model", ArtifactError):
            decision = Decision.from_artifact(Artifact(unprefixed("decision", tensors), meta["decision"]))
            encoders = check_table(meta["encoders"], "encoders")
            names = check_list(meta["class_names"], "class_names", decision.bank.n_classes)
            identity = check_table(meta["identity"], "identity")
            bank, kept = decision.bank, Artifact(unprefixed("record", tensors), meta.get("record") or {})
            return cls(
                decision=decision,
                class_names=tuple(check_text(name, "a class") for name in names),
                classifier=_read_encoder("classifier", encoders["classifier"], tensors),
                retrieval=_read_encoder("retrieval", encoders["retrieval"], tensors)
                if "retrieval" in encoders
                else None,
                thumbnails=_read_thumbnails(unprefixed("thumbnail", tensors)),
                identity={key: check_text(value, f"identity.{key}") for key, value in identity.items()},
                record=Record.from_artifact(kept, n_classes=bank.n_classes, width=bank.width) if kept.meta else None,
                lineage=lineage.from_json(meta.get("lineage", [])),
                evaluation=check_table(meta["evaluation"], "evaluation") if meta.get("evaluation") else None,
            )


@torch.inference_mode()
def _blank_pass(network: nn.Module, encoder: Encoder, device: torch.device) -> Encoding:
    """Return what a network gives for one blank image of the size that it will see."""
    size = encoder.transform.size
    try:
        encoding: Encoding = network(torch.zeros(1, 3, size, size, device=device))
    except RuntimeError as error:
        raise NetworkError(f"the model's network cannot take images of {size} px: {error}") from error
    return encoding


def _check_columns(network: str, what: str, found: Tensor, expected: int) -> None:
    if found.shape[1] != expected:
        raise NetworkError(
            f"the model does not fit itself: its {network} gives {what} of {found.shape[1]} columns, not {expected}"
        )


def _read_encoder(role: str, said: Any, tensors: Mapping[str, Tensor]) -> Encoder:
    """Check what a file says of a network: from here on its sizes decide how much memory is asked for."""
    table = check_table(said, f"encoders.{role}")
    network = from_plain(check_table(table["network"], "network"), NetworkConfig)
    transform = EvalTransform.from_dict(check_table(table["transform"], "transform"))
    views, precision = table["views"], table["precision"]
    check_count(views, "views")
    if views not in VIEWS:
        raise ValueError(f"views must be one of {', '.join(map(str, VIEWS))}, not {views}")
    check_choice(precision, "precision", get_args(Precision))
    for name, size, most in (
        ("network.image_size", network.image_size, _MOST_SIDE),
        ("network.embedding", network.embedding, _MOST_WIDTH),
        ("transform.size", transform.size, _MOST_SIDE),
        ("transform.framing.height", transform.framing.height, _MOST_SIDE),
        ("transform.framing.width", transform.framing.width, _MOST_SIDE),
    ):
        if size > most:
            raise ValueError(f"{name} must be at most {most}, not {size}")
    state = unprefixed(role, tensors)
    if not state:
        raise ValueError(f"there are no weights of the {role}")
    if any(key in state for key in _HEAD):
        weight = check_tensor(state, _HEAD[0], (None, None))
        check_tensor(state, _HEAD[1], (len(weight),))
    if "classifier.weight" in state and not network.finished:
        check_tensor(state, "classifier.weight", (None, None), finite=False)  # predictions tell
    return Encoder(network=network, transform=transform, state=state, views=views, precision=precision)


def _read_thumbnails(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    for name in tensors:
        picture = check_tensor(tensors, name, (None, None, 3), "uint8")
        if max(picture.shape) > _MOST_SIDE:
            raise ValueError(f"the picture of {name!r} has a side of {max(picture.shape)} pixels")
    return tensors
