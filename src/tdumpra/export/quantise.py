"""Quantise the network of a graph to eight bits, by the ranges that its values have on images for calibration.

What comes out is another model: labels near the thresholds move. Preprocessing and decision stay as they are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from tdumpra.errors import MissingExtraError
from tdumpra.export.onnx_file import ExportError, OnnxGraph, quiet

LEAST_IMAGES = 64  # fewer leave the ranges of rare values to chance
MOST_IMAGES = 512  # more change the ranges little, and all intermediate values are computed for each
_OPERATORS = ["Conv", "Gemm", "MatMul"]
_BATCH = 8


def quantise(graph: OnnxGraph, inputs: Mapping[str, np.ndarray]) -> OnnxGraph:
    """Return the graph with its network in int8; ``inputs`` are those of the images for calibration."""
    try:
        import onnx
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    except ImportError as error:
        raise MissingExtraError(str(error.name), "onnx", "quantising a model") from None

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.parts = _in_parts(inputs)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.parts, None)

    others = [node.name for node in graph.proto.graph.node if node.name not in graph.of_network]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "int8.onnx"
        try:
            with quiet():
                quantize_static(
                    graph.proto, place, Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
                    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, op_types_to_quantize=_OPERATORS,
                    nodes_to_exclude=others, extra_options={"ActivationSymmetric": False},
                )  # fmt: skip
                return OnnxGraph(onnx.load(place), graph.of_network)
        except (RuntimeError, ValueError, OSError) as error:
            raise ExportError(f"the graph cannot be quantised: {' '.join(str(error).split())[:300]}") from error


def _in_parts(inputs: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    n = len(inputs["pixels"])
    for start in range(0, n, _BATCH):
        yield {name: values[start : start + _BATCH] for name, values in inputs.items()}
