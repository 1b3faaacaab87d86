"""Turn a graph of ONNX into OpenVINO's own format: a file of the graph and one of its weights."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tdumpra.errors import MissingExtraError
from tdumpra.export.onnx_file import ExportError, quiet
from tdumpra.runtime.description import BLANK, MODEL_KEY, SEAL_KEY, Description, seal


class OpenVinoFiles(NamedTuple):
    """The two files of a graph."""

    description: Description
    graph: bytes
    weights: bytes


def to_openvino(proto: Any, description: Description) -> OpenVinoFiles:
    """Convert a graph; its weights stay in float32, or in int8 where they are."""
    try:
        import openvino
    except ImportError:
        raise MissingExtraError("openvino", "openvino", "exporting to openvino") from None
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "graph.xml"
        try:
            with quiet():
                model = openvino.Core().read_model(proto.SerializeToString())
                openvino.save_model(model, place, compress_to_fp16=False)
                weights = place.with_suffix(".bin").read_bytes()
                described = replace(
                    description, files={**description.files, "weights": hashlib.sha256(weights).hexdigest()}
                )
                model.set_rt_info(described.to_json(), MODEL_KEY)
                model.set_rt_info(BLANK, SEAL_KEY)
                openvino.save_model(model, place, compress_to_fp16=False)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ExportError(f"OpenVINO cannot take the graph: {reason[:300]}") from error
        return OpenVinoFiles(described, seal(place.read_bytes()), weights)
