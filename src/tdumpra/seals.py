"""Keyed seals: tell a file that someone with the key has sealed from any other.

The checksum inside an artefact finds accidents, and anyone can compute one. A keyed seal is an HMAC-SHA256 of all bytes
of a file under a secret key. It lies beside the file as ``NAME.seal``, so any kind of file can have one. Whoever can
check a seal can make one: the key is for those who trust each other.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from pathlib import Path

from tdumpra.errors import ArtifactError, InputFileError
from tdumpra.foreign import cannot_read, reading, refuse_endless
from tdumpra.writing import write_bytes

SUFFIX = ".seal"
LEAST_KEY = 16  # bytes
_PURPOSE = b"tdumpra seal 1\0"  # so that the same key elsewhere makes no seal here
_BLOCK = 2**20
_MOST_SEAL = 4096  # bytes of a seal's own file


def seal_file(path: Path, key: bytes) -> Path:
    """Write the seal of ``path`` beside it, and return where."""
    place = path.with_name(path.name + SUFFIX)
    content = {"algorithm": "HMAC-SHA256", "file": path.name, "seal": _compute(path, key)}
    write_bytes(place, (json.dumps(content, indent=2) + "\n").encode())
    return place


def verify_file(path: Path, key: bytes) -> None:
    """Raise ``ArtifactError`` unless the seal beside ``path`` was made of these bytes with this key."""
    place = path.with_name(path.name + SUFFIX)
    if not place.is_file():
        raise ArtifactError(f"{path} has no seal: {place.name} does not lie beside it")
    with reading(place, "seal", ArtifactError):
        with place.open("rb") as file:
            said = json.loads(file.read(_MOST_SEAL))["seal"]
        if not isinstance(said, str) or not re.fullmatch("[0-9a-f]{64}", said):
            raise ValueError("it holds no HMAC-SHA256")
    if not hmac.compare_digest(said, _compute(path, key)):
        raise ArtifactError(f"{path} was not sealed with this key, or was changed since")


def read_key(path: Path) -> bytes:
    """Return the bytes of a key's file."""
    refuse_endless(path)
    try:
        key = path.read_bytes()
    except OSError as error:
        raise InputFileError(f"cannot read the key {path}: {error.strerror or error}") from error
    if len(key) < LEAST_KEY:
        raise InputFileError(
            f"the key {path} has {len(key)} bytes, and {LEAST_KEY} are the least: make it of 32 random ones"
        )
    return key


def _compute(path: Path, key: bytes) -> str:
    refuse_endless(path)
    mac = hmac.new(key, _PURPOSE, hashlib.sha256)
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                mac.update(block)
    except OSError as error:
        raise cannot_read(path, error) from error
    return mac.hexdigest()
