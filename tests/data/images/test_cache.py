from __future__ import annotations

import logging
import multiprocessing
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_images import SMALL, decoded, expected, images

from tdumpra.data.images import cache as cache_module
from tdumpra.data.images.cache import build, cache_folder
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.prepare import prepare
from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources.files import FileReader
from tdumpra.errors import ArtifactError


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
    with pytest.raises(ArtifactError, match="cannot write"):
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


def test_a_flipped_bit_gives_no_image_the_digest_of_its_neighbour(make_manifest, tmp_path):
    manifest = make_manifest(2)
    data = [record.path.read_bytes() for record in manifest.records]
    longest = max(map(len, data))
    for record, content in zip(manifest.records, data, strict=True):
        record.path.write_bytes(content.ljust(longest, b"\0"))
        os.utime(record.path, (1e9, 1e9))  # of one size and of one time
    prepare(manifest, tmp_path / "cache", SMALL)
    (known,) = tmp_path.rglob("files.json")
    assert b"0001.png" in known.read_bytes()
    known.write_bytes(known.read_bytes().replace(b"0001.png", b"0000.png"))
    np.testing.assert_array_equal(images(prepare(manifest, tmp_path / "cache", SMALL)), expected(manifest))
