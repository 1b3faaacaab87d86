"""Run a graph with ONNX Runtime or OpenVINO. Neither loads custom operators here, so a graph computes and no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, get_args

import numpy as np

from tdumpra.errors import ArtifactError, MissingExtraError
from tdumpra.foreign import reading
from tdumpra.runtime.exported import Graph

Engine = Literal["onnx", "openvino"]
ENGINES: tuple[str, ...] = get_args(Engine)

Arrays = Mapping[str, np.ndarray]


class Session(Protocol):
    """A graph that is ready to run."""

    def __call__(self, **inputs: np.ndarray) -> Arrays:
        """Return the graph's outputs by their names."""


def open_session(graph: Graph, engine: Engine, threads: int) -> Session:
    """Make a graph ready to run on so many threads, or say why it cannot be."""
    if engine == "onnx" and graph.format != "onnx":
        raise ArtifactError(f"{graph.path} is in OpenVINO's own format: use --engine openvino, or export to onnx")
    opened: type[_OnnxSession] | type[_OpenVinoSession] = _OnnxSession if engine == "onnx" else _OpenVinoSession
    session = opened(graph, threads)
    _check_inputs(graph, session.inputs())
    return session


class _OnnxSession:
    def __init__(self, graph: Graph, threads: int) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError("onnxruntime", "onnx", "running an exported model") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4  # what goes wrong is raised too
        self._path = graph.path
        with reading(graph.path, "ONNX graph", ArtifactError):
            self._session = onnxruntime.InferenceSession(graph.data, options, providers=["CPUExecutionProvider"])
            self._names = [each.name for each in self._session.get_outputs()]

    def inputs(self) -> dict[str, list[Any]]:
        return {each.name: [each.type, *each.shape] for each in self._session.get_inputs()}

    def __call__(self, **inputs: np.ndarray) -> Arrays:
        with reading(self._path, "ONNX graph", ArtifactError):
            return dict(zip(self._names, self._session.run(None, inputs), strict=True))


class _OpenVinoSession:
    def __init__(self, graph: Graph, threads: int) -> None:
        try:
            import openvino
        except ImportError:
            raise MissingExtraError("openvino", "openvino", "the engine openvino") from None
        # Without the hint many processors compute in bfloat16, and labels move.
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self._path = graph.path
        with reading(graph.path, "OpenVINO graph", ArtifactError):
            core = openvino.Core()
            read = [graph.data] if graph.weights is None else [graph.data, openvino.Tensor(_array(graph.weights))]
            self._compiled = core.compile_model(core.read_model(*read), "CPU", options)

    def inputs(self) -> dict[str, list[Any]]:
        kinds = {"u8": "tensor(uint8)", "f32": "tensor(float)"}
        found = {}
        for each in self._compiled.inputs:
            sides = [None if side.is_dynamic else side.get_length() for side in each.get_partial_shape()]
            kind = each.get_element_type().get_type_name()
            names = each.get_names()  # what OpenVINO found to be the same has several
            found[min(names & {"pixels", "logits"} or names)] = [kinds.get(kind, kind), *sides]
        return found

    def __call__(self, **inputs: np.ndarray) -> Arrays:
        with reading(self._path, "OpenVINO graph", ArtifactError):
            outputs = self._compiled(inputs, share_inputs=False).items()
            return {name: np.array(values) for port, values in outputs for name in port.get_names()}


def _array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8)


def _check_inputs(graph: Graph, found: Mapping[str, list[Any]]) -> None:
    """Refuse a graph that takes anything else than its metadata promise."""
    framing = graph.description.transform.framing
    wanted: dict[str, list[Any]] = {"pixels": ["tensor(uint8)", framing.height, framing.width, 3]}
    if graph.description.role == "retrieval":
        wanted["logits"] = ["tensor(float)", len(graph.description.class_names)]
    # the batch, which comes after the type, may have any size or name
    if {name: [kind, *sides] for name, (kind, _, *sides) in found.items()} != wanted:
        raise ArtifactError(f"{graph.path} takes other inputs than its metadata say: {dict(found)}")
