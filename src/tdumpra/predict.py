"""Predictions on images from one file: networks, preprocessing, bank and thresholds, bound together by checksums.

The teacher is lazy. The clause ``top probability < theta`` needs the student alone, so only rows below theta get the
second pass: cost 1 + their share. Labels and openings are those of the eager path outside a numerical band around the
thresholds, since kernels may round differently with the batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tdumpra.artifacts import Artifact, fingerprint, read_artifact, write_artifact
from tdumpra.config import NetworkConfig
from tdumpra.core.gate import GateSignals
from tdumpra.data.transform import EvalTransform
from tdumpra.decision import Decision
from tdumpra.errors import ArtifactError, BrokenImageError
from tdumpra.evidence import Evidence, explain
from tdumpra.network import build_network
from tdumpra.toml_tree import from_plain

KIND, SCHEMA = "model", 1
Mode = Literal["lazy", "eager"]
Classifier = Literal["student", "teacher"]


class Prediction(NamedTuple):
    """One image's outcome. ``signals`` and ``evidence`` are ``None`` where the second path was not asked."""

    path: str
    label: str
    probabilities: dict[str, float]
    opened: bool
    signals: dict[str, float] | None
    evidence: Evidence | None
    error: str | None = None  # why there is no prediction, where there is none


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Model:
    """What ``model.safetensors`` holds."""

    decision: Decision
    class_names: tuple[str, ...]
    network: NetworkConfig
    transform: EvalTransform
    space: str
    student: Mapping[str, Tensor]
    teacher: Mapping[str, Tensor] | None
    thumbnails: Mapping[str, Tensor]  # exemplar id -> (h, w, 3) uint8; empty where privacy forbids them
    identity: Mapping[str, str]

    def write(self, path: Path, *, half: bool = False) -> None:
        """Write one sealed file; ``half`` stores the weights in float16."""
        decision = self.decision.to_artifact()
        tensors = {f"decision.{name}": tensor for name, tensor in decision.tensors.items()}
        for role, state in (("student", self.student), ("teacher", self.teacher or {})):
            for name, tensor in state.items():
                small = half and tensor.dtype == torch.float32
                tensors[f"{role}.{name}"] = tensor.half() if small else tensor
        tensors |= {f"thumbnail.{name}": tensor for name, tensor in self.thumbnails.items()}
        meta = {
            "decision": decision.meta,
            "class_names": self.class_names,
            "network": asdict(self.network),
            "transform": self.transform.to_dict(),
            "space": self.space,
            "identity": {**self.identity, "encoder": encoder_fingerprint(self.student, self.teacher)},
        }
        write_artifact(path, kind=KIND, schema=SCHEMA, tensors=tensors, meta=meta)

    @classmethod
    def read(cls, path: str | Path) -> Model:
        """Read what :meth:`write` wrote."""
        artifact = read_artifact(path, kind=KIND, schema=SCHEMA)

        def part(prefix: str) -> dict[str, Tensor]:
            return {n[len(prefix) + 1 :]: t for n, t in artifact.tensors.items() if n.startswith(f"{prefix}.")}

        meta = artifact.meta
        try:
            transform = EvalTransform.from_dict(meta["transform"])
        except ValueError as error:
            raise ArtifactError(f"{path}: {error}") from error
        network = {key: value for key, value in meta["network"].items() if value is not None}
        return cls(
            decision=Decision.from_artifact(Artifact(part("decision"), meta["decision"])),
            class_names=tuple(meta["class_names"]),
            network=from_plain(network, NetworkConfig),
            transform=transform,
            space=meta["space"],
            student=part("student"),
            teacher=part("teacher") or None,
            thumbnails=part("thumbnail"),
            identity=meta["identity"],
        )


class Predictor:
    """Predicts images. Load one with :meth:`load`.

    Args:
        model: what ``model.safetensors`` holds.
        mode: ``lazy`` runs the second network only for rows below theta, ``eager`` for all.
        classifier: ``student`` for both networks, ``teacher`` for one pass in all: both posteriors from the teacher.
        device: where to compute; a GPU if there is one.
        precision: ``float32``, or ``bfloat16`` for faster and slightly different outputs.
    """

    def __init__(
        self,
        model: Model,
        *,
        mode: Mode = "lazy",
        classifier: Classifier = "student",
        device: str | torch.device | None = None,
        precision: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        if mode not in ("lazy", "eager"):
            raise ValueError(f"mode must be 'lazy' or 'eager', not {mode!r}")
        if classifier not in ("student", "teacher"):
            raise ValueError(f"classifier must be 'student' or 'teacher', not {classifier!r}")
        self.model, self.mode = model, mode
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.precision = precision
        matching = "teacher" if model.space == "teacher" and model.teacher is not None else "student"
        roles = {matching, matching if classifier == "teacher" else "student"}
        networks = {role: self._network(role) for role in roles}
        self._first = networks[matching if classifier == "teacher" else "student"]
        self._second = networks[matching]
        self.rows_seen = 0  # how many images the two networks saw: the lazy path's cost can be read off them
        self.rows_matched = 0

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Predictor:
        """From a file; options as in the class."""
        return cls(Model.read(path), **options)

    def predict(
        self, images: Sequence[str | Path], *, batch_size: int = 64, evidence: bool = False
    ) -> Iterator[Prediction]:
        """Predictions in order. A broken image gives a prediction with its ``error``, and the others go on."""
        for start in range(0, len(images), batch_size):
            yield from self._predict_batch([Path(image) for image in images[start : start + batch_size]], evidence)

    @torch.inference_mode()
    def decide(self, pixels: Tensor, *, eager: bool = False) -> _Rows:
        """Posterior, openings and signals of transformed images (n, 3, s, s); rows without signals are marked."""
        decision = self.model.decision
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16"):
            first = self._first(pixels)
        p = first.logits.double().softmax(1).cpu()
        self.rows_seen += len(p)
        p_cls = decision.classifier(p)
        ask = torch.ones(len(p), dtype=torch.bool)
        one_pass = self._first is self._second
        if self.mode == "lazy" and not eager and not one_pass:
            ask = p_cls.amax(1) < decision.thresholds.theta
        final, opened = p_cls.clone(), torch.zeros(len(p), dtype=torch.bool)
        rows = ask.nonzero().flatten()
        if not len(rows):
            return _Rows(final, opened, ask, None, None, p)
        if one_pass:
            z = first.z
        else:
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16"):
                z = self._second(pixels[rows.to(pixels.device)]).z
            self.rows_matched += len(rows)
        z = z.float().cpu()
        decided = decision.decide(p[rows], z)
        final[rows], opened[rows] = decided.p, decided.opened
        return _Rows(final, opened, ask, decided.signals, z, p)

    def _predict_batch(self, paths: list[Path], evidence: bool) -> Iterator[Prediction]:
        framed, errors = [], {}
        for i, path in enumerate(paths):
            try:
                framed.append(self.model.transform.read(path))
            except BrokenImageError as error:
                errors[i] = str(error)
        rows = None
        if framed:
            pixels = torch.from_numpy(np.stack(framed)).to(self.device)
            rows = self.decide(self.model.transform(pixels), eager=evidence)
        position = 0
        for i, path in enumerate(paths):
            if i in errors or rows is None:
                yield Prediction(str(path), "", {}, False, None, None, errors.get(i, "not read"))
                continue
            yield self._prediction(path, rows, position, evidence)
            position += 1

    def _prediction(self, path: Path, rows: _Rows, i: int, evidence: bool) -> Prediction:
        names = self.model.class_names
        signals, shown = None, None
        if rows.signals is not None and rows.z is not None and bool(rows.asked[i]):
            j = int(rows.asked[:i].sum())
            signals = {name: float(column[j]) for name, column in rows.signals._asdict().items()}
            if evidence:
                shown = explain(self.model.decision, rows.p_raw[i : i + 1], rows.z[j : j + 1], class_names=names)
        p = rows.p[i]
        return Prediction(
            path=str(path),
            label=names[int(p.argmax())],
            probabilities={name: float(value) for name, value in zip(names, p.tolist(), strict=True)},
            opened=bool(rows.opened[i]),
            signals=signals,
            evidence=shown,
        )

    def _network(self, role: str) -> nn.Module:
        model = self.model
        bare = NetworkConfig(**{**asdict(model.network), "weights": "none"})
        network = build_network(bare, len(model.class_names)).network
        state = model.student if role == "student" or model.teacher is None else model.teacher
        network.load_state_dict(
            {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
        )
        return network.eval().to(self.device)


class _Rows(NamedTuple):
    p: Tensor
    opened: Tensor
    asked: Tensor  # rows whose second path was run
    signals: GateSignals | None  # of those rows
    z: Tensor | None
    p_raw: Tensor


def encoder_fingerprint(student: Mapping[str, Tensor], teacher: Mapping[str, Tensor] | None) -> str:
    """Changes when any weight does."""
    parts = []
    for role, state in (("student", student), ("teacher", teacher or {})):
        for name, tensor in sorted(state.items()):
            data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            parts += [f"{role}.{name}", data]
    return fingerprint(*parts)
