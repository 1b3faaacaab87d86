from __future__ import annotations

import csv
import os
import pickle
import signal
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from small_images import SMALL, decoded, expected, images

from tdumpra.data.images.prepare import prepare
from tdumpra.data.images.store import CachedImages, StreamedImages
from tdumpra.data.images.workers import CRASHED
from tdumpra.data.manifest import Record
from tdumpra.data.sources.files import FileReader
from tdumpra.errors import MissingExtraError, SourceError


def fill_disk(monkeypatch) -> None:
    """Leave no room for a cache."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [CachedImages, StreamedImages])
def test_images_come_back_under_their_numbers(make_manifest, tmp_path, monkeypatch, kind, workers):
    manifest = make_manifest(70)
    if kind is StreamedImages:
        fill_disk(monkeypatch)
    prepared = prepare(manifest, tmp_path / "out", SMALL, workers=workers)
    assert isinstance(prepared.images, kind)
    assert prepared.manifest.records == manifest.records
    assert prepared.images.nbytes == 70 * 16 * 20 * 3
    np.testing.assert_array_equal(images(prepared), expected(manifest))
    some = np.array([5, 3, 5])
    np.testing.assert_array_equal(prepared.images.read(some), expected(manifest)[some])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(prepared.images)).read(some), expected(manifest)[some])


def test_broken_images_are_set_apart_with_their_reasons(make_manifest, tmp_path):
    manifest = make_manifest(8)
    manifest.records[2].path.write_bytes(b"")
    manifest.records[5].path.write_text("<html>404</html>")
    manifest.records[6].path.unlink()
    prepared = prepare(manifest, tmp_path / "out", SMALL, workers=2)
    with (tmp_path / "out" / "quarantine.csv").open(newline="") as file:
        table = {row["id"]: row for row in csv.DictReader(file)}
    assert list(table) == ["image0002", "image0005", "image0006"]
    assert table["image0002"]["reason"] == "the file is empty"
    assert table["image0002"]["path"] == str(manifest.records[2].path)
    assert table["image0006"]["reason"] == "no such file"
    assert [record.id for record in prepared.manifest.records] == [f"image{i:04d}" for i in (0, 1, 3, 4, 7)]
    np.testing.assert_array_equal(images(prepared), expected(prepared.manifest))
    assert len(prepared.quarantine) + len(prepared.manifest) == len(manifest)  # nothing is silently lost
    assert prepared.notes[0].startswith("3 of 8 images are broken and left out (1 × the file is empty")


def test_a_mended_image_comes_back(make_manifest, tmp_path):
    manifest = make_manifest(3)
    good = manifest.records[1].path.read_bytes()
    manifest.records[1].path.write_bytes(good[:60])
    assert len(prepare(manifest, tmp_path / "out", SMALL, workers=0).manifest) == 2
    manifest.records[1].path.write_bytes(good)
    prepared = prepare(manifest, tmp_path / "out", SMALL, workers=0)
    np.testing.assert_array_equal(images(prepared), expected(manifest))
    assert (tmp_path / "out" / "quarantine.csv").read_text() == "id,path,reason\n"


def test_odd_names_reach_the_quarantine(make_manifest, tmp_path):
    manifest = make_manifest(1)
    name = os.fsdecode(b'caf\xe9, "quoted"\n.png')
    (tmp_path / name).write_bytes(b"")
    manifest = replace(manifest, records=(*manifest.records, Record("ö,1", tmp_path / name, 0, "g")))
    prepare(manifest, tmp_path / "out", SMALL, workers=0)
    with (tmp_path / "out" / "quarantine.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["id"] == "ö,1"


def test_a_class_that_loses_its_last_image_is_named(make_manifest, tmp_path):
    manifest = make_manifest(2)
    manifest.records[1].path.write_bytes(b"")
    assert "class malignant has no usable image left" in prepare(manifest, tmp_path / "out", SMALL, workers=0).notes


def test_a_data_set_without_a_readable_image_is_an_error(make_manifest, tmp_path):
    manifest = make_manifest(2)
    for record in manifest.records:
        record.path.write_bytes(b"")
    with pytest.raises(SourceError, match=r"none of 2 .*empty"):
        prepare(manifest, tmp_path / "out", SMALL, workers=0)


@dataclass(frozen=True)
class DeadlyReader:
    victim: str

    def __call__(self, record: Record) -> np.ndarray:
        if record.id == self.victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return FileReader()(record)


def test_an_image_that_crashes_the_decoder_is_quarantined(make_manifest, tmp_path):
    manifest = replace(make_manifest(40), reader=DeadlyReader("image0017"))
    prepared = prepare(manifest, tmp_path / "out", SMALL, workers=2)
    assert [(image.id, image.reason) for image in prepared.quarantine] == [("image0017", CRASHED)]
    np.testing.assert_array_equal(images(prepared), expected(prepared.manifest))


@dataclass(frozen=True)
class BareReader:
    def __call__(self, record: Record) -> np.ndarray:
        raise MissingExtraError("pydicom", "dicom", "reading DICOM files")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_missing_extra_stops_the_build_instead_of_emptying_the_data_set(make_manifest, tmp_path, workers):
    with pytest.raises(MissingExtraError):
        prepare(replace(make_manifest(3), reader=BareReader()), tmp_path / "out", SMALL, workers=workers)


def test_images_that_are_streamed_are_noted(make_manifest, tmp_path, monkeypatch):
    fill_disk(monkeypatch)
    (note,) = prepare(make_manifest(4), tmp_path / "out", SMALL, workers=0).notes
    assert "needs 3.8e-06 GB" in note
    assert "has 1e-08 GB free" in note


def test_streamed_images_are_tried_once_and_cached_later(make_manifest, tmp_path, monkeypatch):
    manifest = make_manifest(4)
    manifest.records[3].path.write_bytes(b"")
    seen = decoded(monkeypatch)
    with monkeypatch.context() as full:
        fill_disk(full)
        assert len(prepare(manifest, tmp_path / "out", SMALL, workers=0).quarantine) == 1
        assert len(seen) == 3  # the empty file is refused before it is decoded
        prepare(manifest, tmp_path / "out", SMALL, workers=0)
        assert len(seen) == 3
    np.testing.assert_array_equal(
        images(prepare(manifest, tmp_path / "out", SMALL, workers=0)),
        expected(replace(manifest, records=manifest.records[:3])),
    )
    assert len(seen) == 6


def test_progress_is_shown_on_stderr_where_it_is_a_terminal(make_manifest, tmp_path, monkeypatch, capsys):
    prepare(make_manifest(3), tmp_path / "quiet", SMALL, progress=True, workers=0)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes that for a terminal
    prepare(make_manifest(3), tmp_path / "out", SMALL, progress=True, workers=0)
    out, err = capsys.readouterr()
    assert "decoding images" in err
    assert "3/3" in err
    assert out == ""


def test_a_margin_around_lesions_without_masks_is_pointed_out(make_manifest, tmp_path):
    framing = replace(SMALL, lesion_margin=0.3)
    notes = prepare(make_manifest(3), tmp_path / "out", framing, workers=0).notes
    assert notes == ("3 of 3 images have no lesion mask: lesion_margin does nothing to them",)
    assert prepare(make_manifest(3), tmp_path / "out", SMALL, workers=0).notes == ()
