"""What an exported file says of itself, and the seal over its bytes.

An exported model is a file of a format that other programs read: ONNX (``.onnx``), or OpenVINO's own (``.xml`` with its
weights in ``.bin``). Two entries of its metadata are ours: ``tdumpra_model``, a JSON object with everything but the
graph, and ``tdumpra_seal``, the SHA-256 of the file while these 64 characters read as zeros. Both are read from the
bytes, before anything else is made of them.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tdumpra.data.images.framing import EvalTransform
from tdumpra.values import check_choice, check_count, check_list, check_table, check_text

SCHEMA = 1
MODEL_KEY, SEAL_KEY = "tdumpra_model", "tdumpra_seal"
BLANK = "0" * 64

Precision = Literal["float32", "int8"]
Role = Literal["model", "classifier", "retrieval"]  # of a graph; a model of one network has one graph for all

_MOST_JSON = 2**24  # bytes
_MOST_SIDE = 4096  # pixels of a framed image
_SEAL = re.compile(rb'tdumpra_seal(?:\x12\x40| value=")([0-9a-f]{64})')
_IN_ONNX = re.compile(rb"tdumpra_model\x12([\x80-\xff]{0,3}[\x00-\x7f])")  # a length of at most 2^28
_IN_XML = re.compile(rb'<tdumpra_model value="([^"]*)"')
_HEX = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The metadata of one graph of an exported model."""

    role: Role
    class_names: tuple[str, ...]
    transform: EvalTransform  # of this graph's pixels: how files become its input, and what the graph does with it
    decision: Mapping[str, Any]  # thresholds, temperatures, weight: for people, the graph has its own
    model: str  # the fingerprint of the model that was exported
    identity: Mapping[str, str]  # further fingerprints: weights, data, split
    precision: Precision = "float32"
    files: Mapping[str, str]  # what belongs to it, "weights" or "retrieval", by the SHA-256 of its bytes
    notes: Mapping[str, Any]  # the version that wrote it, what was compared, how to run it: for people

    def to_json(self) -> str:
        """Return the text of the metadata's entry; :meth:`parse` reads it back."""
        content = {
            "schema": SCHEMA, "role": self.role, "class_names": self.class_names, "transform": self.transform.to_dict(),
            "decision": self.decision, "model": self.model, "identity": dict(self.identity),
            "precision": self.precision, "files": dict(self.files), "notes": self.notes,
        }  # fmt: skip
        return json.dumps(content, allow_nan=False)

    @classmethod
    def parse(cls, text: bytes) -> Description:
        """Check the metadata's entry; raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        said = check_table(json.loads(text), "its metadata")
        if said["schema"] != SCHEMA:
            raise ValueError(f"exports of version {said['schema']!r} are not read here, only {SCHEMA}: export it again")
        check_choice(said["role"], "role", get_args(Role))
        check_choice(said["precision"], "precision", get_args(Precision))
        transform = EvalTransform.from_dict(check_table(said["transform"], "transform"))
        if max(transform.framing.height, transform.framing.width) > _MOST_SIDE:
            raise ValueError(f"framing must be at most {_MOST_SIDE} pixels, not {transform.framing}")
        names = [check_text(name, "a class") for name in check_list(said["class_names"], "class_names")]
        check_count(len(names), "the number of classes", least=2)
        files = check_table(said["files"], "files")
        for name, digest in files.items():
            if not isinstance(digest, str) or not _HEX.fullmatch(digest):
                raise ValueError(f"files.{name} must be a SHA-256, not {digest!r}")
        return cls(
            role=said["role"], class_names=tuple(names), transform=transform,
            decision=check_table(said["decision"], "decision"), model=check_text(said["model"], "model"),
            identity={key: check_text(value, key) for key, value in check_table(said["identity"], "identity").items()},
            precision=said["precision"], files=files, notes=check_table(said["notes"], "notes"),
        )  # fmt: skip


def find_description(data: bytes) -> bytes | None:
    """Return the JSON of an exported file, or ``None`` if it has none."""
    if found := _IN_XML.search(data):
        return html.unescape(found[1].decode()).encode() if len(found[1]) <= _MOST_JSON else None
    if found := _IN_ONNX.search(data):
        length = sum((byte & 0x7F) << (7 * i) for i, byte in enumerate(found[1]))
        return data[found.end() : found.end() + length] if length <= _MOST_JSON else None
    return None


def seal(data: bytes) -> bytes:
    """Put the checksum of a file's bytes into its blank entry."""
    found = _SEAL.search(data)
    if found is None or found[1] != BLANK.encode():
        raise ValueError("an exported file needs a blank seal before it is sealed")
    return data[: found.start(1)] + hashlib.sha256(data).hexdigest().encode() + data[found.end(1) :]


def is_whole(data: bytes) -> bool:
    """Return whether a file's bytes are those that were sealed."""
    found = _SEAL.search(data)
    if found is None:
        return False
    digest = hashlib.sha256(data[: found.start(1)] + BLANK.encode() + data[found.end(1) :]).hexdigest()
    return digest.encode() == found[1]
