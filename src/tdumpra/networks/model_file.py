"""The model file: networks with their preprocessing, bank, thresholds and small pictures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tdumpra.artifacts import Artifact, fingerprint, prefixed, read_artifact, unprefixed, write_artifact
from tdumpra.data.images.framing import EvalTransform
from tdumpra.errors import ArtifactError, OtherKindError, UntrustedCodeError
from tdumpra.method.decision import Decision
from tdumpra.networks.build import NetworkError, SeveralViews, build_network
from tdumpra.networks.settings import NetworkConfig, Precision
from tdumpra.toml import from_plain

KIND, SCHEMA = "model", 3

OWN_FACTORIES = frozenset({"tdumpra.texture_network:texture_network"})  # code that any model file may name

_REMEDY = {  # by the kind of file that was given instead
    "dual-path classifier": ": it was made from saved arrays and has no network to look at images with. Load it with "
    "DualPathClassifier.load and hand it probabilities and embeddings of your own model, or make a model of images "
    "with  tdumpra run",
    "bank": ": name model.safetensors, which lies beside it once the run was tuned",
}


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
        network = build_network(self.network, n_classes, load=False).network
        if not self.network.as_it_is:
            present = {name.split(".")[0] for name in self.state}
            for head in {"classifier", "projection"} - present:  # dropped because nobody uses it
                setattr(network, head, None)
        try:
            network.load_state_dict(self.state)
        except RuntimeError as error:
            raise NetworkError(
                f"the model's weights do not fit {name!r}, which builds another network now than when "
                "they were trained: restore its code, or train again"
            ) from error
        return (network if self.views == 1 else SeveralViews(network, self.views)).eval().to(device)

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
        meta = {
            "decision": decision.meta,
            "class_names": self.class_names,
            "encoders": encoders,
            "identity": dict(self.identity),
        }
        write_artifact(path, kind=KIND, schema=SCHEMA, tensors=tensors, meta=meta)

    @classmethod
    def read(cls, path: str | Path) -> Model:
        """Read a model file."""
        try:
            tensors, meta = read_artifact(path, kind=KIND, schema=SCHEMA)
        except OtherKindError as error:
            raise ArtifactError(f"{error}{_REMEDY.get(error.found, '')}") from error

        def encoder(role: str) -> Encoder:
            said = meta["encoders"][role]
            return Encoder(
                network=from_plain(said["network"], NetworkConfig),
                transform=EvalTransform.from_dict(said["transform"]),
                state=unprefixed(role, tensors),
                views=said["views"],
                precision=said["precision"],
            )

        try:
            return cls(
                decision=Decision.from_artifact(Artifact(unprefixed("decision", tensors), meta["decision"])),
                class_names=tuple(meta["class_names"]),
                classifier=encoder("classifier"),
                retrieval=encoder("retrieval") if "retrieval" in meta["encoders"] else None,
                thumbnails=unprefixed("thumbnail", tensors),
                identity=meta["identity"],
            )
        except (ValueError, TypeError) as error:
            raise ArtifactError(f"{path}: {error}") from error
        except KeyError as error:
            raise ArtifactError(f"{path} lacks {error}: it is no complete model") from error
