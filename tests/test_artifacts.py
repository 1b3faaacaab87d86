import json
import math
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from tdumpra import artifacts
from tdumpra.artifacts import fingerprint, jsonable, read_artifact, read_json, read_meta, write_artifact, write_json
from tdumpra.errors import ArtifactError

REFUSED = r"y (is truncated, or is no|was altered or cut short after|is not a tdumpra \w+ file, or is truncated)"
TENSORS = {"a": torch.tensor([[1.0, -0.0], [math.nan, math.inf]]), "b": torch.tensor([True, False])}


def write(path, *, kind="bank", schema=3, tensors=TENSORS, meta=None):
    write_artifact(path, kind=kind, schema=schema, tensors=tensors, meta={"name": "ünï"} if meta is None else meta)
    return path


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def refuse_every_flipped_byte(data: bytes, path: Path, read: Callable[[Path], object]) -> None:
    for position in range(len(data)):
        for mask in (0x01, 0x20, 0xFF):
            altered = bytearray(data)
            altered[position] ^= mask
            path.write_bytes(altered)
            with pytest.raises(ArtifactError, match=REFUSED):
                read(path)


both = pytest.mark.parametrize("read", [read_artifact, read_meta])


class TestArtifact:
    def test_round_trip(self, tmp_path):
        found = read_artifact(write(tmp_path / "x.safetensors"), kind="bank", schema=3)
        assert found.meta == {"name": "ünï"}
        assert found.tensors.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert found.tensors[name].numpy().tobytes() == tensor.numpy().tobytes()

    def test_a_type_that_no_file_holds_is_refused(self, tmp_path):
        with pytest.raises(ArtifactError, match=r"phase is of the type torch\.complex64"):
            write_artifact(tmp_path / "a", kind="k", schema=1, tensors={"phase": torch.ones(2) + 0j}, meta={})
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64])
    def test_types_survive(self, tmp_path, dtype):
        path = write(tmp_path / "x", tensors={"t": torch.arange(6).reshape(2, 3).to(dtype)})
        found = read_artifact(path, kind="bank", schema=3).tensors["t"]
        assert found.dtype == dtype
        assert found.tolist() == [[0, 1, 2], [3, 4, 5]]

    def test_any_layout_and_shared_memory(self, tmp_path):
        base = torch.arange(12.0).reshape(3, 4).requires_grad_()
        tensors = {"turned": base.T, "part": base[1:, ::2], "tied": base, "again": base, "none": base[:0]}
        found = read_artifact(write(tmp_path / "x", tensors=tensors), kind="bank", schema=3).tensors
        assert {name: tensor.tolist() for name, tensor in found.items()} == {
            name: tensor.tolist() for name, tensor in tensors.items()
        }

    def test_other_programs_can_read_it(self, tmp_path):
        assert torch.equal(safetensors.torch.load_file(write(tmp_path / "x"))["b"], TENSORS["b"])

    def test_headers_of_every_length(self, tmp_path):
        # One of 32 header lengths ends in the byte with which a pickle begins.
        first = set()
        for length in range(0, 256, 4):
            path = write(tmp_path / "x", meta={"pad": "p" * length})
            first.add(path.read_bytes()[0])
            assert read_artifact(path, kind="bank", schema=3).meta == {"pad": "p" * length}
        assert 0x80 in first

    def test_a_header_length_that_reads_like_a_zip(self, tmp_path):
        # "PK" as a little-endian number is 19280.
        for length in range(18800, 19300):
            path = tmp_path / "x"
            if length % 8 == 0:
                write(path, tensors={}, meta={"pad": "p" * length})
                if path.read_bytes()[:2] == b"PK":
                    break
        else:
            pytest.fail("no length gave such a header")
        read_artifact(path, kind="bank", schema=3)

    def test_values_are_read_without_the_tensors(self, tmp_path):
        path = write(tmp_path / "x", tensors={"t": torch.zeros(2**23)}, meta={"name": "ünï"})  # 32 MiB
        tracemalloc.start()
        try:
            assert read_meta(path, kind="bank", schema=3) == {"name": "ünï"}
            assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
        finally:
            tracemalloc.stop()

    @both
    def test_every_flipped_byte_is_refused(self, tmp_path, read):
        data = write(tmp_path / "x", meta={}).read_bytes()
        refuse_every_flipped_byte(data, tmp_path / "y", lambda path: read(path, kind="bank", schema=3))

    @both
    def test_every_truncation_and_addition_is_refused(self, tmp_path, read):
        data = write(tmp_path / "x", meta={}).read_bytes()
        path = tmp_path / "y"
        for length in range(len(data)):
            path.write_bytes(data[:length])
            with pytest.raises(ArtifactError, match=REFUSED):
                read(path, kind="bank", schema=3)
        path.write_bytes(data + b"\0")
        with pytest.raises(ArtifactError, match=REFUSED):
            read(path, kind="bank", schema=3)

    @both
    def test_a_pickle_and_a_zip_are_not_opened(self, tmp_path, read):
        path = tmp_path / "model.pt"

        class Trap:
            def __reduce__(self):
                return (pytest.fail, ("the pickle was executed",))

        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            path.write_bytes(pickle.dumps(Trap(), protocol=protocol))
            with pytest.raises(
                ArtifactError, match="is a pickle or zip archive, not a tdumpra bank file; it was not op"
            ):
                read(path, kind="bank", schema=3)
        torch.save({"a": torch.ones(2)}, path)
        with pytest.raises(ArtifactError, match="pickle or zip"):
            read(path, kind="bank", schema=3)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a", "b")
        with pytest.raises(ArtifactError, match="pickle or zip"):
            read(path, kind="bank", schema=3)
        path.write_bytes(pickle.dumps([1], protocol=0))
        with pytest.raises(ArtifactError, match="truncated, or is no tdumpra bank file"):
            read(path, kind="bank", schema=3)

    @both
    def test_another_kind_and_another_version(self, tmp_path, read):
        path = write(tmp_path / "x")
        with pytest.raises(ArtifactError, match="x holds a tdumpra bank, where a model is needed"):
            read(path, kind="model", schema=3)
        with pytest.raises(ArtifactError, match="bank schema version 3, where this tdumpra reads 4: make it again"):
            read(path, kind="bank", schema=4)

    def test_a_plain_safetensors_file(self, tmp_path):
        path = tmp_path / "plain.safetensors"
        safetensors.torch.save_file({"a": torch.ones(2)}, path)
        with pytest.raises(ArtifactError, match="carries no checksum"):
            read_artifact(path, kind="bank", schema=3)

    def test_a_seal_among_the_tensors_is_no_seal(self, tmp_path):
        posing = torch.frombuffer(bytearray(b'"checksum": "' + b"0" * 64 + b'"'), dtype=torch.uint8)
        path = tmp_path / "x"
        path.write_bytes(
            artifacts._seal(safetensors.torch.save({"a": posing}, metadata={"kind": "bank", "schema": "3"}))
        )
        with pytest.raises(ArtifactError, match="carries no checksum"):
            read_artifact(path, kind="bank", schema=3)

    @pytest.mark.parametrize("data", [b"{}", b'{"checksum": "' + b"a" * 64 + b'"}'])
    def test_only_a_blank_seal_can_be_filled_in(self, data):
        with pytest.raises(ValueError, match="needs a blank checksum field before it is sealed"):
            artifacts._seal(data)

    @pytest.mark.parametrize("missing", ["kind", "schema", "meta"])
    def test_a_sealed_file_without_its_fields(self, tmp_path, missing):
        header = {"kind": "bank", "schema": "3", "checksum": "0" * 64, "meta": "{}"}
        del header[missing]
        path = tmp_path / "x"
        path.write_bytes(artifacts._seal(safetensors.torch.save({"a": torch.ones(1)}, metadata=header)))
        with pytest.raises(ArtifactError, match="not a readable tdumpra bank file"):
            read_artifact(path, kind="bank", schema=3)

    def test_missing_file_and_folder_in_its_place(self, tmp_path):
        with pytest.raises(ArtifactError, match=r"cannot read .*gone: No such file"):
            read_artifact(tmp_path / "gone", kind="bank", schema=3)
        with pytest.raises(ArtifactError, match=r"cannot read .*: Is a directory"):
            read_artifact(tmp_path, kind="bank", schema=3)

    def test_numbers_that_json_does_not_know_are_refused_in_meta(self, tmp_path):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write(tmp_path / "x", meta={"a": math.nan})
        assert names(tmp_path) == []


class TestJson:
    content = {"name": "ünï", "n": 3, "list": [1.5, None, True], "nested": {"a": {}}}  # noqa: RUF012

    def write(self, path, content=None):
        write_json(path, kind="evaluation", schema=2, content=self.content if content is None else content)
        return path

    def read(self, path):
        return read_json(path, kind="evaluation", schema=2)

    def test_round_trip_and_plain_json(self, tmp_path):
        path = self.write(tmp_path / "x.json")
        assert self.read(path) == self.content
        raw = json.loads(path.read_text())
        assert (raw["kind"], raw["schema"], raw["name"]) == ("evaluation", 2, "ünï")
        assert path.read_bytes().endswith(b"}\n")

    def test_what_is_no_number_becomes_null(self, tmp_path):
        content = {"a": math.nan, "b": [math.inf, -math.inf, 1.0], "c": np.float32("nan"), "d": torch.tensor(math.nan)}
        assert self.read(self.write(tmp_path / "x", content)) == {
            "a": None,
            "b": [None, None, 1.0],
            "c": None,
            "d": None,
        }

    def test_every_flipped_byte_and_truncation_is_refused(self, tmp_path):
        data = self.write(tmp_path / "x").read_bytes()
        path = tmp_path / "y"
        refuse_every_flipped_byte(data, path, self.read)
        for position in range(len(data)):
            path.write_bytes(data[:position])
            with pytest.raises(ArtifactError, match=REFUSED):
                self.read(path)

    def test_another_kind_and_another_version(self, tmp_path):
        path = self.write(tmp_path / "x")
        with pytest.raises(ArtifactError, match="x holds a tdumpra evaluation, where a gate is needed"):
            read_json(path, kind="gate", schema=2)
        with pytest.raises(ArtifactError, match="evaluation schema version 2, where this tdumpra reads 1"):
            read_json(path, kind="evaluation", schema=1)

    @pytest.mark.parametrize("name", ["kind", "schema", "checksum"])
    def test_content_cannot_pose_as_the_seal(self, tmp_path, name):
        with pytest.raises(ValueError, match=f"'{name}' is a field of the seal"):
            self.write(tmp_path / "x", {name: "0" * 64})
        assert names(tmp_path) == []

    def test_a_checksum_inside_the_content_is_content(self, tmp_path):
        content = {"files": {"checksum": "0" * 64}, "text": '"checksum": "' + "0" * 64 + '"'}
        assert self.read(self.write(tmp_path / "x", content)) == content

    @pytest.mark.parametrize("data", [b"", b"{}", b"[]", pickle.dumps({"a": 1})])
    def test_files_of_others(self, tmp_path, data):
        path = tmp_path / "x"
        path.write_bytes(data)
        with pytest.raises(ArtifactError, match="carries no checksum"):
            self.read(path)

    @pytest.mark.parametrize(
        "body", ['["checksum": "%s"]', '{"kind": "evaluation", "checksum": "%s"}', '["checksum", {"checksum": "%s"}]']
    )
    def test_a_sealed_file_that_is_no_evaluation(self, tmp_path, body):
        path = tmp_path / "x"
        path.write_bytes(artifacts._seal((body % ("0" * 64)).encode()))
        with pytest.raises(ArtifactError, match="not a readable tdumpra evaluation file"):
            self.read(path)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(ArtifactError, match="cannot read"):
            self.read(tmp_path / "gone")


def test_fingerprints_tell_contents_apart():
    # printf '\x01\0\0\0\0\0\0\0a' | sha256sum
    assert fingerprint("a") == fingerprint(b"a") == "ae6121c88ba555f6"
    assert len({fingerprint(*parts) for parts in [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ()]}) == 5


def test_jsonable():
    value = {1: (np.int64(2), np.array([[1.0, math.nan]])), "t": torch.tensor([True]), "s": "x", "n": None, "f": 0.5}
    assert jsonable(value) == {"1": [2, [[1.0, None]]], "t": [True], "s": "x", "n": None, "f": 0.5}
