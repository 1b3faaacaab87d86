"""Files that tdumpra writes: atomic, versioned, and refused if a single byte has changed.

safetensors has no checksum of its own: a flipped bit in a weight loads silently. Every artefact therefore carries
the SHA-256 of its own bytes, header included, taken while the checksum's own 64 characters read as zeros. The same
seal serves JSON. Nothing here can execute what it reads: there is no pickle on any path.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tdumpra.errors import ArtifactError, OtherKindError
from tdumpra.foreign import cannot_read, reading, refuse_endless
from tdumpra.limits import refuse_above
from tdumpra.writing import Bytes, write_bytes, write_together

if TYPE_CHECKING:
    from torch import Tensor

_BLANK = "0" * 64
_SEAL = re.compile(rb'"checksum": ?"([0-9a-f]{64})"')
_SEAL_FIELDS = {"kind", "schema", "checksum"}
_READ_AT_ONCE = 2**23  # bytes of a file that is only named by its contents
_TYPES = {  # as safetensors calls them
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_HEADER_LENGTH = 8  # safetensors: a little-endian uint64, then that many bytes of JSON


class Artifact(NamedTuple):
    """The contents of an artefact: tensors by name, and everything else as JSON values."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``tensors`` under the names ``prefix.NAME``."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def unprefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what :func:`prefixed` named, under the names before."""
    return {name[len(prefix) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}


def write_artifact(
    path: str | Path, *, kind: str, schema: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> None:
    """Write ``tensors`` and ``meta`` to one sealed safetensors file: equal contents are equal bytes.

    The library would make a second copy of everything, and shuffle the header; tensors go from where they lie to the
    file, largest numbers first, so that all are aligned.
    """
    import torch  # here, so that files without tensors can be written without it

    own = {"kind": kind, "schema": str(schema), "checksum": _BLANK, "meta": json.dumps(meta, allow_nan=False)}
    header: dict[str, dict[str, Any]] = {"__metadata__": own}
    parts: list[memoryview] = []
    end = 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
        tensor = tensors[name].detach().cpu().contiguous()
        parts.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
        place = [end, end := end + parts[-1].nbytes]
        kind_of = _TYPES.get(str(tensor.dtype).removeprefix("torch."))
        if kind_of is None:
            raise ArtifactError(
                f"cannot write {path}: {name} is of the type {tensor.dtype}, which no file of ours holds"
            )
        header[name] = {"dtype": kind_of, "shape": list(tensor.shape), "data_offsets": place}
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    write_together({Path(path): _sealed([len(text).to_bytes(_HEADER_LENGTH, "little") + text, *parts])})


def read_artifact(path: str | Path, *, kind: str, schema: int) -> Artifact:
    """Read what :func:`write_artifact` wrote, or say in one sentence why it cannot be used."""
    data = _read_bytes(path)
    header_end = _header_end(path, data[:_HEADER_LENGTH], len(data), kind)
    head = data[:header_end]
    _check_seal(path, head, [memoryview(data)[header_end:]], kind)
    with reading(path, f"tdumpra {kind} file", ArtifactError):
        meta = _meta(path, head, kind, schema)
        import safetensors.torch

        return Artifact(safetensors.torch.load(data), meta)


def read_meta(path: str | Path, *, kind: str, schema: int) -> dict[str, Any]:
    """Read the values of a sealed file, which is found whole, and none of its tensors: these may be gigabytes."""
    size = _size(path)
    try:
        with Path(path).open("rb") as file:
            first = file.read(_HEADER_LENGTH)
            head = first + file.read(_header_end(path, first, size, kind) - _HEADER_LENGTH)
            _check_seal(path, head, iter(lambda: file.read(_READ_AT_ONCE), b""), kind)
    except OSError as error:
        raise cannot_read(path, error, ArtifactError) from error
    with reading(path, f"tdumpra {kind} file", ArtifactError):
        return _meta(path, head, kind, schema)


def _header_end(path: str | Path, first: bytes, size: int, kind: str) -> int:
    """Return where the header of a safetensors file ends, by its first eight bytes."""
    end = _HEADER_LENGTH + int.from_bytes(first, "little")
    if end <= size:  # false of fewer than 8 bytes
        return end
    # The length of a header may begin like a pickle, but is below 16 MiB: its upper bytes are zero.
    if (first[:1] == b"\x80" and any(first[3:])) or first[:2] == b"PK":
        raise ArtifactError(f"{path} is a pickle or zip archive, not a tdumpra {kind} file; it was not opened")
    raise ArtifactError(f"{path} is truncated, or is no tdumpra {kind} file")


def _meta(path: str | Path, head: bytes, kind: str, schema: int) -> dict[str, Any]:
    header = json.loads(head[_HEADER_LENGTH:])["__metadata__"]
    _check_identity(path, header, kind, schema)
    meta = json.loads(header["meta"])
    if not isinstance(meta, dict):
        raise TypeError(f"its values must be an object, not {meta!r}")
    return meta


def write_json(path: str | Path, *, kind: str, schema: int, content: Mapping[str, Any]) -> None:
    """Write ``content`` as sealed JSON. A number that does not exist (NaN, infinity) becomes ``null``."""
    if reserved := _SEAL_FIELDS & content.keys():
        raise ValueError(f"{min(reserved)!r} is a field of the seal and cannot be content")
    sealed = {"kind": kind, "schema": schema, "checksum": _BLANK, **jsonable(content)}
    write_bytes(path, _seal((_in_lines(sealed) + "\n").encode()))


def read_json(path: str | Path, *, kind: str, schema: int) -> dict[str, Any]:
    """Read what :func:`write_json` wrote; the seal is checked and taken off."""
    data = _read_bytes(path)
    _check_seal(path, data, [], kind)
    with reading(path, f"tdumpra {kind} file", ArtifactError):
        content: dict[str, Any] = json.loads(data)
        _check_identity(path, content, kind, schema)
    return {name: value for name, value in content.items() if name not in _SEAL_FIELDS}


def read_seal(path: str | Path, *, kind: str) -> str:
    """Return the checksum that an artefact carries of its own bytes, once these are found whole."""
    data = _read_bytes(path)
    return _check_seal(path, data, [], kind)


def fingerprint(*parts: bytes | str | Path) -> str:
    """Return a short name for exactly these contents: the first 16 hexadecimal digits of their SHA-256.

    A path stands for the bytes of that file, which is read some megabytes at a time.
    """
    return fingerprint_of(parts)


def fingerprint_of(parts: Iterable[bytes | str | Path]) -> str:
    """Return the :func:`fingerprint` of parts that need not lie in memory together."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with part.open("rb") as file:
                digest.update(os.fstat(file.fileno()).st_size.to_bytes(8, "little"))
                while data := file.read(_READ_AT_ONCE):
                    digest.update(data)
            continue
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))  # so that ("ab", "c") is not ("a", "bc")
        digest.update(data)
    return digest.hexdigest()[:16]


def jsonable(value: Any) -> Any:
    """Return ``value`` in JSON's own types; numbers that JSON does not have (NaN, infinity) become ``None``."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if {*map(type, value)} == {float}:  # replicates, by the hundred thousand
            # what is not finite makes the sum so, too
            return [*value] if math.isfinite(sum(value)) else [each if math.isfinite(each) else None for each in value]
        return [jsonable(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch, arrays and scalars
        return jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _in_lines(value: Any, margin: str = "") -> str:
    """Return JSON for people: a line for each entry of an object, one line for a list of plain values."""
    inner = f"{margin}  "
    if isinstance(value, dict) and value:
        entries = [f"{_in_a_line(key)}: {_in_lines(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(inner + each for each in entries) + f"\n{margin}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + _in_lines(item, inner) for item in value) + f"\n{margin}]"
    return _in_a_line(value)


def _in_a_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _seal(data: bytes) -> bytes:
    return b"".join(_sealed([data]))


def _sealed(parts: Sequence[Bytes]) -> list[Bytes]:
    """Return the parts of a file, the first with the checksum of them all in its blank field."""
    first, *others = parts
    found = _SEAL.search(first)
    if found is None or found[1] != _BLANK.encode():
        raise ValueError("an artefact needs a blank checksum field before it is sealed")
    digest = _digest(parts)
    return [first[: found.start(1)], digest.encode(), first[found.end(1) :], *others]


def _digest(*parts: Iterable[Bytes]) -> str:
    digest = hashlib.sha256()
    for part in chain(*parts):
        digest.update(part)
    return digest.hexdigest()


def _check_seal(path: str | Path, head: bytes, others: Iterable[Bytes], kind: str) -> str:
    """Return the checksum that the first part of a file carries, once it is that of all its parts."""
    found = _SEAL.search(head)
    if found is None:
        raise ArtifactError(f"{path} is not a tdumpra {kind} file, or is truncated: it carries no checksum")
    whole = memoryview(head)  # slices of it are no copies
    digest = _digest([whole[: found.start(1)], _BLANK.encode(), whole[found.end(1) :]], others)
    if digest.encode() != found[1]:
        raise ArtifactError(f"{path} was altered or cut short after it was written (its checksum does not match)")
    return digest


def _check_identity(path: str | Path, header: Mapping[str, Any], kind: str, schema: int) -> None:
    if header["kind"] != kind:
        raise OtherKindError(str(path), header["kind"], kind)
    if int(header["schema"]) != schema:
        raise ArtifactError(
            f"{path} has {kind} schema version {header['schema']}, where this tdumpra reads {schema}: make it again"
        )


def _read_bytes(path: str | Path) -> bytes:
    _size(path)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise cannot_read(path, error, ArtifactError) from error


def _size(path: str | Path) -> int:
    """Return the bytes of a file that may be read: it has an end, and is within the limit."""
    refuse_endless(path, ArtifactError)
    try:
        size = Path(path).stat().st_size
    except OSError as error:
        raise cannot_read(path, error, ArtifactError) from error
    if reason := refuse_above("artifact_bytes", size, "bytes"):
        raise ArtifactError(f"{path}: {reason}")
    return size
