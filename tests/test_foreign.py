"""Reading files that somebody else may have written: what is told of one that fails."""

import errno
import os
from pathlib import Path

import pytest

from tdumpra.artifacts import read_json, write_json
from tdumpra.errors import ArtifactError, UnreadableError
from tdumpra.foreign import reading


def _fails(code: int):
    def fail(*_: object) -> bytes:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ENOTCONN, errno.EHOSTUNREACH])
def test_a_disk_or_a_network_that_fails_says_nothing_of_the_file(tmp_path, monkeypatch, code):
    path = tmp_path / "file.json"
    write_json(path, kind="test", schema=1, content={})
    monkeypatch.setattr(Path, "read_bytes", _fails(code))
    with pytest.raises(UnreadableError, match="cannot read"):
        read_json(path, kind="test", schema=1)
    with pytest.raises(UnreadableError, match="cannot read"), reading(path, "table"):
        path.read_bytes()


def test_a_missing_file_and_offsets_that_lead_nowhere_are_told_of_the_file(tmp_path):
    with pytest.raises(ArtifactError, match="cannot read"):
        read_json(tmp_path / "missing.json", kind="test", schema=1)
    with pytest.raises(ArtifactError, match="damaged"), reading(tmp_path, "table", ArtifactError):
        _fails(errno.EINVAL)()
