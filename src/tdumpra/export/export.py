"""Export a model: graphs, their comparison with the model, and files that are written only if the two agree."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import torch

from tdumpra import __version__
from tdumpra.artifacts import read_seal
from tdumpra.errors import ArtifactError
from tdumpra.export.compare import TOLERANCE, Comparison, Reference
from tdumpra.export.graph import blank, graphs_of
from tdumpra.export.images import Frames, calibration_frames, pictures_of
from tdumpra.export.onnx_file import OPSET, ExportError, OnnxGraph, to_bytes, to_onnx
from tdumpra.export.openvino_file import to_openvino
from tdumpra.export.quantise import quantise
from tdumpra.networks.model_file import KIND, Encoder, Model
from tdumpra.runtime import ExportedPredictor
from tdumpra.runtime.description import Description, Precision, Role
from tdumpra.runtime.exported import SUFFIXES, Format, Graph, read_exported, retrieval_path, weights_path
from tdumpra.runtime.sessions import Engine
from tdumpra.values import check_choice
from tdumpra.writing import write_together

ANOTHER_MODEL = (
    "it is another model than the one that was tuned: its temperature, bank and thresholds must be tuned again on its "
    "own outputs before anyone relies on it"
)


def check_format(name: str) -> Format:
    """Return the name of a format that models are exported to."""
    check_choice(name, "--to", get_args(Format))
    return cast(Format, name)


class Export(NamedTuple):
    """The files of an export, and how it compares with the model."""

    files: tuple[Path, ...]
    precision: Precision
    comparison: Comparison


def export_model(
    path: Path,
    to: Format,
    out: Path,
    *,
    images: Sequence[Path] = (),
    calibration: str | None = None,
    trusted: Collection[str] = (),
) -> Export:
    """Export the model file ``path`` to ``out``; nothing is written unless both predict alike.

    Args:
        path: the model.
        to: ``onnx`` or ``openvino``.
        out: the first file, ``*.onnx`` or ``*.xml``; a second network's graph and OpenVINO's weights lie beside it.
        images: files to compare on; by default the model's own pictures.
        calibration: a folder or data source ``KIND:PLACE``; with it, the networks are quantised to int8.
        trusted: names of factories that may build the model's networks.
    """
    if SUFFIXES.get(out.suffix) != to:
        suffix = next(suffix for suffix, format_ in SUFFIXES.items() if format_ == to)
        raise ValueError(f"an export to {to} is named *{suffix}, not {out.name!r}")
    model = Model.read(path)
    if model.decision.known is not None and model.retrieval is not None:
        added = ", ".join(model.class_names[model.decision.known :])
        raise ExportError(
            f"the bank knows classes that the classifier does not ({added}), which the graphs of two networks cannot "
            "say: export the model from before they were added"
        )
    encoders = _encoders(model)
    frames = None
    if calibration is not None:
        frames = calibration_frames(calibration, *(each.transform.framing for each in (encoders[0], encoders[-1])))
    if any(each.precision != "float32" for each in encoders):
        warnings.warn(
            "the model was tuned on outputs in bfloat16 and is exported in float32, and compared with itself in "
            "float32: what lies near a threshold may differ from before",
            stacklevel=2,
        )
    traced = _trace(model, trusted)
    about = _describe(model, read_seal(path, kind=KIND))
    with pictures_of(model) as (own, what):
        given = (images, "given images") if images else (own, what)
        reference = Reference(model, *given, trusted=trusted)
        comparison = reference.compare(_assemble(traced, about, to, out))
        if not comparison.agrees:
            raise ExportError(f"the export computes something else than the model, and was not written: {comparison}")
        if frames is not None:
            traced = _quantised(traced, _assemble(traced, about, "onnx", out.with_suffix(".onnx")), frames)
            about = [replace(each, precision="int8") for each in about]
            comparison = reference.compare(_assemble(traced, about, to, out))
    about = [replace(each, notes={**each.notes, "compared": comparison._asdict()}) for each in about]
    return Export(_write(_assemble(traced, about, to, out)), about[0].precision, comparison)


def compare_with(
    path: Path, exported: Path, images: Sequence[Path] = (), *, engine: Engine | Literal["auto"] = "auto",
    trusted: Collection[str] = (),
) -> Export:  # fmt: skip
    """Compare a model file with an export of it, run by ``engine``, on ``images`` or on the model's own pictures.

    Both are checked against their seals. An export of any other model is refused.
    """
    graphs, model = read_exported(exported), Model.read(path)
    if graphs[0].description.model != read_seal(path, kind=KIND):
        raise ArtifactError(f"{exported} was exported from another model than {path}")
    with pictures_of(model) as (own, what):
        given = (images, "given images") if images else (own, what)
        comparison = Reference(model, *given, trusted=trusted).compare(graphs, engine)
    return Export(tuple(graph.path for graph in graphs), graphs[0].description.precision, comparison)


def _encoders(model: Model) -> list[Encoder]:
    return [model.classifier, *([] if model.retrieval is None else [model.retrieval])]


def _trace(model: Model, trusted: Collection[str]) -> list[OnnxGraph]:
    cpu = torch.device("cpu")
    graphs = graphs_of(model, *model.build(cpu, trusted=trusted))
    traced = []
    for i, (graph, encoder) in enumerate(zip(graphs, _encoders(model), strict=True)):
        inputs = {"pixels": blank(encoder, 2)}
        if i == 1:
            inputs["logits"] = torch.zeros(2, len(model.class_names))
        traced.append(to_onnx(graph, inputs))
    return traced


def _describe(model: Model, sealed: str) -> list[Description]:
    """Return the metadata of each graph, as far as they are known before it is written."""
    roles: tuple[Role, ...] = ("model",) if model.retrieval is None else ("classifier", "retrieval")
    decision = model.decision.to_json()
    notes: dict[str, Any] = {
        "tdumpra": __version__, "opset": OPSET, "tolerance": TOLERANCE,
        "openvino": {"INFERENCE_PRECISION_HINT": "f32"},  # to be asked for, or it may compute in bfloat16
    }  # fmt: skip
    return [
        Description(
            role=role, class_names=model.class_names, transform=encoder.transform, decision=decision, model=sealed,
            identity={**model.identity, "encoder": encoder.fingerprint}, files={},
            notes={**notes, "views": encoder.views},
        )
        for role, encoder in zip(roles, _encoders(model), strict=True)
    ]  # fmt: skip


def _assemble(traced: Sequence[OnnxGraph], about: Sequence[Description], to: Format, out: Path) -> tuple[Graph, ...]:
    """Return the files of an export in memory, each bound to those that belong to it."""
    paths = (out, retrieval_path(out))
    exported: list[Graph] = []
    for graph, description, path in reversed(list(zip(traced, about, paths, strict=False))):
        if exported:
            digest = hashlib.sha256(exported[0].data).hexdigest()
            description = replace(description, files={"retrieval": digest})
        if to == "onnx":
            exported.insert(0, Graph(path, description, to_bytes(graph.proto, description), None))
        else:
            exported.insert(0, Graph(path, *to_openvino(graph.proto, description)))
    return tuple(exported)


def _quantised(traced: Sequence[OnnxGraph], exported: Sequence[Graph], frames: Frames) -> list[OnnxGraph]:
    inputs: list[dict[str, np.ndarray]] = [{"pixels": frames.first}]
    if len(traced) == 2:  # the second graph takes the logits of the first
        inputs.append({"pixels": frames.second, "logits": _logits(exported, frames)})
    return [quantise(graph, each) for graph, each in zip(traced, inputs, strict=True)]


def _logits(exported: Sequence[Graph], frames: Frames) -> np.ndarray:
    predictor = ExportedPredictor(exported)
    parts = range(0, len(frames.first), 16)
    return np.concatenate([predictor.decide(*(each[i : i + 16] for each in frames))["logits"] for i in parts])


def _write(exported: Sequence[Graph]) -> tuple[Path, ...]:
    files: dict[Path, bytes] = {}
    for graph in reversed(exported):  # the first file comes last: it is what the others belong to
        if graph.weights is not None:
            files[weights_path(graph.path)] = graph.weights
        files[graph.path] = graph.data
    write_together({path: [data] for path, data in files.items()})
    return tuple(reversed(files))
