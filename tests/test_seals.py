"""Keyed seals: only the same bytes under the same key pass."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path

import pytest

from tdumpra.errors import ArtifactError, InputFileError
from tdumpra.seals import LEAST_KEY, read_key, seal_file, verify_file

KEY = bytes(range(32))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(range(256)) * 5000)  # more than one block
    return path


def test_a_sealed_file_passes_and_is_unchanged(model):
    before = model.read_bytes()
    place = seal_file(model, KEY)
    assert place == model.with_name("model.safetensors.seal")
    verify_file(model, KEY)
    assert model.read_bytes() == before


def test_the_seal_is_a_plain_hmac(model):
    seal_file(model, KEY)
    said = json.loads(model.with_name("model.safetensors.seal").read_text())
    expected = hmac.digest(KEY, b"tdumpra seal 1\0" + model.read_bytes(), hashlib.sha256).hex()
    assert said == {"algorithm": "HMAC-SHA256", "file": "model.safetensors", "seal": expected}


@pytest.mark.parametrize("position", [0, 700_000, -1])
def test_one_flipped_bit_is_refused(model, position):
    seal_file(model, KEY)
    data = bytearray(model.read_bytes())
    data[position] ^= 1
    model.write_bytes(data)
    with pytest.raises(ArtifactError, match="not sealed with this key, or was changed"):
        verify_file(model, KEY)


def test_another_key_and_another_files_seal_are_refused(model, tmp_path):
    seal_file(model, KEY)
    with pytest.raises(ArtifactError, match="not sealed with this key"):
        verify_file(model, KEY[::-1])
    other = tmp_path / "other"
    other.write_bytes(b"other")
    with pytest.raises(ArtifactError, match="has no seal"):
        verify_file(other, KEY)
    other.with_name("other.seal").write_bytes(model.with_name("model.safetensors.seal").read_bytes())
    with pytest.raises(ArtifactError, match="not sealed"):
        verify_file(other, KEY)


@pytest.mark.parametrize(
    "seal", [b"", b"{}", b"[" * 5000, b'{"seal": 5}', b'{"seal": ""}', b'{"seal": "\xc3\xa9"}', b"\xff\xfe"]
)
def test_a_seal_that_is_none(model, seal):
    model.with_name("model.safetensors.seal").write_bytes(seal)
    with pytest.raises(ArtifactError):
        verify_file(model, KEY)


def test_keys_that_are_none(tmp_path):
    with pytest.raises(InputFileError, match="cannot read the key"):
        read_key(tmp_path / "none")
    (tmp_path / "short").write_bytes(b"x" * (LEAST_KEY - 1))
    with pytest.raises(InputFileError, match="15 bytes, and 16 are the least"):
        read_key(tmp_path / "short")


def test_the_commands(tdumpra, model, tmp_path):
    (tmp_path / "key").write_bytes(KEY)
    assert tdumpra("verify", model, "--key", tmp_path / "key").code == 2
    assert tdumpra("seal", model, "--key", tmp_path / "key").code == 0
    assert "was sealed with this key" in tdumpra("verify", model, "--key", tmp_path / "key").out
    model.write_bytes(b"exchanged")
    done = tdumpra("verify", model, "--key", tmp_path / "key")
    assert done.code == 2
    assert "not sealed with this key" in done.err
    assert tdumpra("seal", tmp_path / "none", "--key", tmp_path / "key").code == 2
