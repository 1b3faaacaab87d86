"""Turn a graph into the bytes of an ONNX file, described and sealed."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tdumpra.errors import MissingExtraError, TdumpraError
from tdumpra.runtime.description import BLANK, MODEL_KEY, SEAL_KEY, Description, seal

OPSET = 20
_MOST_ROWS = 2**16  # of a batch; the exporter wants to know
_PURPOSE = "exporting a model"


class ExportError(TdumpraError):
    """A model cannot be exported, or what was exported computes something else."""


class OnnxGraph(NamedTuple):
    """A graph of ONNX before it is sealed."""

    proto: Any  # onnx.ModelProto
    of_network: tuple[str, ...]  # names of the nodes that belong to the network, not to preprocessing or decision


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what exporters and converters print about their own progress from the screen."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def to_onnx(graph: nn.Module, inputs: dict[str, Tensor]) -> OnnxGraph:
    """Export a graph with a batch of any size; ``inputs`` are examples of two rows."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(str(error.name), "onnx", _PURPOSE) from None
    batch = torch.export.Dim("n", min=1, max=_MOST_ROWS)
    try:
        with quiet(), torch.inference_mode():
            program = torch.onnx.export(
                graph, tuple(inputs.values()), dynamo=True, opset_version=OPSET, external_data=False, verbose=False,
                input_names=list(inputs), output_names=list(graph(*inputs.values())),
                dynamic_shapes=tuple({0: batch} for _ in inputs), custom_translation_table=_own_translations(),
            )  # fmt: skip
            assert program is not None
            proto = program.model_proto
    except Exception as error:  # the exporter wraps whatever a network's code does
        reason = " ".join(str(error).split())
        raise ExportError(f"the network cannot be turned into a graph: {reason[:300]}") from error
    fixed = [each.name for each in proto.graph.input if not each.type.tensor_type.shape.dim[0].dim_param]
    if fixed:
        raise ExportError(
            f"the network's code fixes the size of a batch of {fixed[0]}: write x.shape[0] where it has len(x)"
        )
    of_network = tuple(
        node.name
        for node in proto.graph.node
        if any(each.key == "namespace" and "/encode.network:" in each.value for each in node.metadata_props)
    )
    _strip(proto)
    return OnnxGraph(proto, of_network)


def _own_translations() -> dict[Any, Any]:
    """Return what the exporter has no words for, and the networks of tdumpra use."""
    from onnxscript import opset20 as op

    def hypot(x: Any, y: Any) -> Any:
        return op.Sqrt(op.Add(op.Mul(x, x), op.Mul(y, y)))

    return {torch.ops.aten.hypot.default: hypot}


def to_bytes(proto: Any, description: Description) -> bytes:
    """Return the sealed file of a graph."""
    for key, value in ((MODEL_KEY, description.to_json()), (SEAL_KEY, BLANK)):
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    try:
        return seal(proto.SerializeToString())
    except ValueError as error:  # protobuf's own, above two gibibytes
        raise ExportError(f"the network is larger than a file of ONNX may be: {error}") from error
    finally:
        del proto.metadata_props[:]  # the graph itself stays undescribed


def _strip(proto: Any) -> None:
    """Take out what the exporter says of its own work: source lines, and folders of the machine that it ran on."""
    proto.producer_name, proto.producer_version, proto.doc_string = "tdumpra", "", ""
    graph = proto.graph
    for part in (graph, *graph.node, *graph.value_info, *graph.initializer, *graph.input, *graph.output):
        part.doc_string = ""
        del part.metadata_props[:]
