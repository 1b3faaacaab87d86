"""Read the files of an exported model. They may come from anyone: sizes, seals and metadata are checked first."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tdumpra.errors import ArtifactError
from tdumpra.foreign import cannot_read, reading, refuse_endless
from tdumpra.limits import refuse_above
from tdumpra.runtime.description import Description, Role, find_description, is_whole

Format = Literal["onnx", "openvino"]
SUFFIXES: dict[str, Format] = {".onnx": "onnx", ".xml": "openvino"}

# The name of a file outside of the graph that ONNX may take weights from, in all the ways in which protobuf may write
# it: the length of the word, 8, may have further bytes behind it, and the field before it is written in too many ways
# to name them. Ours has no such word.
_OUTSIDE = re.compile(rb"(?:\x08|\x88[\x80-\xff]*[\x00-\x7f])location")


class Graph(NamedTuple):
    """One graph of an exported model, as it lies in its file."""

    path: Path
    description: Description
    data: bytes
    weights: bytes | None  # OpenVINO keeps them in a file of their own

    @property
    def format(self) -> Format:
        """Return which program's format it is in."""
        return SUFFIXES[self.path.suffix]


def is_exported(path: Path) -> bool:
    """Return whether a path is named like an exported model."""
    return path.suffix in SUFFIXES


def retrieval_path(path: Path) -> Path:
    """Return where the second graph of a model lies."""
    return path.with_name(f"{path.stem}.retrieval{path.suffix}")


def weights_path(path: Path) -> Path:
    """Return where OpenVINO keeps the weights of a graph."""
    return path.with_suffix(".bin")


def read_exported(path: Path) -> tuple[Graph, ...]:
    """Return the one or two graphs of an exported model; name its first file."""
    if not is_exported(path):
        raise ArtifactError(f"{path} is no exported model: these are named {' or '.join(f'*{s}' for s in SUFFIXES)}")
    first = _read_graph(path, ("model", "classifier"))
    if first.description.role == "model":
        return (first,)
    second = _read_graph(retrieval_path(path), ("retrieval",))
    if hashlib.sha256(second.data).hexdigest() != first.description.files.get("retrieval"):
        raise ArtifactError(f"{second.path} does not belong to {path}: export the model again")
    if second.description.class_names != first.description.class_names:
        raise ArtifactError(f"{second.path} and {path} name other classes: export the model again")
    return first, second


def _read_graph(path: Path, roles: Sequence[Role]) -> Graph:
    data = _read(path)
    with reading(path, "exported model", ArtifactError):
        text = find_description(data)
    if text is None:
        raise ArtifactError(f"{path} was not exported by tdumpra: it says nothing of classes and preprocessing")
    if not is_whole(data):
        raise ArtifactError(f"{path} was altered or cut short after it was written (its checksum does not match)")
    if _OUTSIDE.search(data):
        raise ArtifactError(
            f"{path} takes weights from another file, which exported models never do; it was not opened"
        )
    with reading(path, "exported model", ArtifactError):
        description = Description.parse(text)
    if description.role not in roles:
        remedy = "name the file of its classifier" if description.role == "retrieval" else "export the model again"
        raise ArtifactError(f"{path} is the {description.role} part of an exported model: {remedy}")
    if path.suffix == ".onnx":
        return Graph(path, description, data, None)
    weights = _read(weights_path(path))
    if hashlib.sha256(weights).hexdigest() != description.files.get("weights"):
        raise ArtifactError(f"{weights_path(path)} does not belong to {path}, or was altered: export the model again")
    return Graph(path, description, data, weights)


def _read(path: Path) -> bytes:
    refuse_endless(path, ArtifactError)
    try:
        if reason := refuse_above("artifact_bytes", path.stat().st_size, "bytes"):
            raise ArtifactError(f"{path}: {reason}")
        return path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error, ArtifactError) from error
