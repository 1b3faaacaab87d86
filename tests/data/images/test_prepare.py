from __future__ import annotations

import csv
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tdumpra.data.images import cache as cache_module
from tdumpra.data.images import store
from tdumpra.data.images.cache import DIED, build, cache_folder
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.prepare import Prepared, prepare
from tdumpra.data.images.store import CachedImages, StreamedImages
from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import FileReader
from tdumpra.errors import ArtifactError, MissingExtraError, SourceError

SMALL = Framing(height=16, width=20)


def images(prepared: Prepared) -> np.ndarray:
    return prepared.images.read(np.arange(len(prepared.images)))


def expected(manifest: Manifest, framing: Framing = SMALL) -> np.ndarray:
    return np.stack([framing.apply(FileReader()(record)) for record in manifest.records])


def decoded(monkeypatch) -> list[str]:
    """The ids of records that are decoded from now on, in this process."""
    seen: list[str] = []
    real = store.frame_record

    def watch(record, *rest):
        seen.append(record.id)
        return real(record, *rest)

    monkeypatch.setattr(cache_module, "frame_record", watch)
    return seen


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


def test_a_second_time_nothing_is_decoded(make_manifest, tmp_path, monkeypatch):
    manifest = make_manifest(9)
    prepare(manifest, tmp_path / "out", SMALL, workers=0)
    seen = decoded(monkeypatch)
    np.testing.assert_array_equal(images(prepare(manifest, tmp_path / "out", SMALL, workers=0)), expected(manifest))
    assert seen == []


def test_rows_follow_content_not_names(make_manifest, tmp_path, monkeypatch):
    manifest = make_manifest(6)
    prepare(manifest, tmp_path / "out", SMALL, workers=0)
    seen = decoded(monkeypatch)
    first = manifest.records[0].path
    first.rename(first.with_name("renamed.png"))  # known again
    moved = replace(manifest.records[0], path=first.with_name("renamed.png"))
    Image.fromarray(np.full((24, 32, 3), 9, np.uint8)).save(manifest.records[1].path)  # overwritten in place
    changed = replace(manifest, records=(moved, *manifest.records[1:]))
    np.testing.assert_array_equal(images(prepare(changed, tmp_path / "out", SMALL, workers=0)), expected(changed))
    assert seen == ["image0001"]


def test_a_file_changed_with_the_same_size_and_an_old_time_is_still_noticed_by_its_time(make_manifest, tmp_path):
    manifest = make_manifest(3)
    path = tmp_path / "images" / "flat.bmp"
    record = replace(manifest.records[0], path=path)
    manifest = replace(manifest, records=(record,))
    for value in (10, 200):  # a BMP's size does not depend on its colours
        Image.fromarray(np.full((24, 32, 3), value, np.uint8)).save(path)
        os.utime(path, (1_000_000_000 + value,) * 2)
        assert (images(prepare(manifest, tmp_path / "out", SMALL, workers=0)) == value).all()


def test_another_size_or_fit_is_another_cache(make_manifest, tmp_path):
    manifest = make_manifest(4)
    for framing in (SMALL, Framing(height=20, width=16), replace(SMALL, fit="crop")):
        prepared = prepare(manifest, tmp_path / "out", framing, workers=0)
        np.testing.assert_array_equal(images(prepared), expected(manifest, framing))
    assert len([p for p in (tmp_path / "out").iterdir() if p.is_dir()]) == 3


def test_two_data_sets_share_the_images_they_share(make_manifest, tmp_path, monkeypatch):
    prepare(make_manifest(5, "one"), tmp_path / "out", SMALL, workers=0)
    seen = decoded(monkeypatch)
    both = make_manifest(8, "two")  # the first five are copies
    np.testing.assert_array_equal(images(prepare(both, tmp_path / "out", SMALL, workers=0)), expected(both))
    assert seen == ["image0005", "image0006", "image0007"]


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
    with pytest.raises(SourceError, match="none of 2 images can be read; the first: the file is empty"):
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
    assert [(image.id, image.reason) for image in prepared.quarantine] == [("image0017", DIED)]
    np.testing.assert_array_equal(images(prepared), expected(prepared.manifest))


@dataclass(frozen=True)
class BareReader:
    def __call__(self, record: Record) -> np.ndarray:
        raise MissingExtraError("pydicom", "dicom", "reading DICOM files")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_missing_extra_stops_the_build_instead_of_emptying_the_data_set(make_manifest, tmp_path, workers):
    with pytest.raises(MissingExtraError):
        prepare(replace(make_manifest(3), reader=BareReader()), tmp_path / "out", SMALL, workers=workers)


@dataclass(frozen=True)
class FlatReader:
    """Pixels from no image file: the colour is read from a file that the reader names."""

    colours: Path

    def __call__(self, record: Record) -> np.ndarray:
        return np.full((16, 20, 3), int(self.colours.read_text()) + int(record.id), np.uint8)


def test_images_without_files_are_cached_by_what_their_reader_reads(tmp_path):
    colours = tmp_path / "colours.txt"
    records = tuple(Record(str(i), None, i % 2, str(i)) for i in range(4))
    manifest = Manifest("flat", ("a", "b"), records, FlatReader(colours))
    for base in (10, 100):
        colours.write_text(str(base))
        prepared = prepare(manifest, tmp_path / "out", SMALL, workers=0)
        assert images(prepared)[:, 0, 0, 0].tolist() == [base, base + 1, base + 2, base + 3]


def test_the_lesion_mask_is_part_of_an_images_identity(make_manifest, tmp_path):
    manifest = make_manifest(1)
    framing = replace(SMALL, lesion_margin=0.0)
    results = []
    for column in (0, 20):
        mask = np.zeros((24, 32), np.uint8)
        mask[8:16, column : column + 10] = 255
        Image.fromarray(mask).save(tmp_path / f"mask{column}.png")
        masked = replace(manifest, records=(replace(manifest.records[0], mask=tmp_path / f"mask{column}.png"),))
        prepared = prepare(masked, tmp_path / "out", framing, workers=0)
        np.testing.assert_array_equal(images(prepared)[0], framing.apply(FileReader()(manifest.records[0]), mask))
        results.append(images(prepared))
    assert (results[0] != results[1]).any()


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


def test_damaged_rows_are_made_again(make_manifest, tmp_path, caplog):
    manifest = make_manifest(5)
    prepare(manifest, tmp_path / "out", SMALL, workers=0)
    pixels = cache_folder(tmp_path / "out", SMALL) / "pixels.u8"
    data = bytearray(pixels.read_bytes())
    data[SMALL.nbytes * 2 + 7] ^= 1
    pixels.write_bytes(data[: -SMALL.nbytes // 2])  # one flipped bit, and the last row torn
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(images(prepare(manifest, tmp_path / "out", SMALL, workers=0)), expected(manifest))
    assert "2 damaged images" in caplog.text


@pytest.mark.parametrize("name", ["journal.tsv", "files.json", "pixels.u8"])
@pytest.mark.parametrize("harm", ["delete", "empty", "cut", "garbage"])
def test_any_part_of_a_cache_may_be_lost(make_manifest, tmp_path, monkeypatch, name, harm):
    manifest = make_manifest(5)
    prepare(manifest, tmp_path / "out", SMALL, workers=0)
    path = cache_folder(tmp_path / "out", SMALL) / name
    if harm == "delete":
        path.unlink()
    elif harm == "garbage":
        path.write_bytes(b"\xff\x00 nonsense\n" * 20)
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3 if harm == "cut" else 0])
    np.testing.assert_array_equal(images(prepare(manifest, tmp_path / "out", SMALL, workers=0)), expected(manifest))
    seen = decoded(monkeypatch)
    np.testing.assert_array_equal(images(prepare(manifest, tmp_path / "out", SMALL, workers=0)), expected(manifest))
    assert seen == []  # the first time mended all of it


def test_a_cache_that_cannot_be_written_is_said_in_a_sentence(make_manifest, tmp_path):
    (tmp_path / "out").write_text("a file where the folder should be")
    with pytest.raises(ArtifactError, match="cannot write the image cache"):
        build(make_manifest(2), tmp_path / "out", SMALL)


@dataclass(frozen=True)
class SlowReader:
    def __call__(self, record: Record) -> np.ndarray:
        time.sleep(0.01)
        with Path(os.environ["TDUMPRA_TEST_LOG"]).open("a") as log:
            log.write(f"{record.id}\n")
        return FileReader()(record)


def prepare_slowly(manifest: Manifest, out: Path) -> None:
    prepared = prepare(manifest, out, SMALL, workers=1)
    np.testing.assert_array_equal(images(prepared), expected(manifest))


def test_two_processes_at_once_share_the_work(make_manifest, tmp_path, monkeypatch):
    monkeypatch.setenv("TDUMPRA_TEST_LOG", str(tmp_path / "log"))
    manifest = replace(make_manifest(60), reader=SlowReader())
    context = multiprocessing.get_context("fork")
    builders = [context.Process(target=prepare_slowly, args=(manifest, tmp_path / "out")) for _ in range(2)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(60)
        assert builder.exitcode == 0
    assert len((tmp_path / "log").read_text().split()) == 60  # each image was decoded by one of them, once


def test_a_killed_build_is_resumed(make_manifest, tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("TDUMPRA_TEST_LOG", str(log))
    monkeypatch.setattr(cache_module, "_FLUSH_SECONDS", 0.0)
    manifest = replace(make_manifest(200), reader=SlowReader())
    builder = multiprocessing.get_context("fork").Process(target=prepare_slowly, args=(manifest, tmp_path / "out"))
    builder.start()
    deadline = time.monotonic() + 30
    while not log.exists() or len(log.read_text().split()) < 110:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    builder.kill()
    builder.join()
    np.testing.assert_array_equal(images(prepare(manifest, tmp_path / "out", SMALL, workers=2)), expected(manifest))
    repeated = len(log.read_text().split()) - 200
    assert 0 <= repeated <= 110  # at least the chunks in the journal were not done again


def test_a_progress_bar_is_drawn_on_stderr(make_manifest, tmp_path):
    make_manifest(3)
    program = f"""
        from pathlib import Path
        from tdumpra.data.sources.files import FileReader
        from tdumpra.data.manifest import Manifest, Record
        from tdumpra.data.images.prepare import prepare
        paths = sorted(Path({str(tmp_path / "images")!r}).iterdir())
        records = tuple(Record(p.stem, p, 0, p.stem) for p in paths)
        prepare(Manifest("m", ("a", "b"), records, FileReader()), {str(tmp_path / "out")!r}, progress=True, workers=1)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert "Decoding images" in run.stderr
    assert "3/3" in run.stderr
    assert run.stdout == ""


def test_a_margin_around_lesions_without_masks_is_pointed_out(make_manifest, tmp_path):
    framing = replace(SMALL, lesion_margin=0.3)
    notes = prepare(make_manifest(3), tmp_path / "out", framing, workers=0).notes
    assert notes == ("3 of 3 images have no lesion mask: lesion_margin does nothing to them",)
    assert prepare(make_manifest(3), tmp_path / "out", SMALL, workers=0).notes == ()
