"""What every file-based source does about files and labels that do not meet; HAM10000 stands for all."""

from __future__ import annotations

import pickle

import pytest

from tdumpra.data.sources import open_source
from tdumpra.errors import BrokenImageError, NoImagesError, SourceError


@pytest.fixture
def incomplete(ham_folder):
    (ham_folder / "HAM10000_images_part_1" / "ISIC_1.jpg").unlink()
    return f"ham10000:{ham_folder}"


@pytest.fixture
def unlabelled(ham_folder, write_image):
    write_image(ham_folder / "HAM10000_images_part_1" / "ISIC_99.jpg")
    (ham_folder / "HAM10000_images_part_1" / "LICENSE.txt").write_text("no image")
    return f"ham10000:{ham_folder}"


def test_a_label_without_an_image_is_refused(incomplete):
    with pytest.raises(SourceError, match=r"1 of 8 .*ISIC_1.*--allow-missing"):
        open_source(incomplete)


def test_allowing_missing_images_counts_them(incomplete):
    manifest = open_source(incomplete, allow_missing=True)
    assert len(manifest) == 7
    assert manifest.missing == ("ISIC_1",)
    assert manifest.notes[-1] == "1 of 8 labelled images have no file (ISIC_1); left out"


def test_metadata_only_keeps_images_without_a_file(incomplete):
    manifest = open_source(incomplete, metadata_only=True)
    assert len(manifest) == 8
    assert manifest.missing == ("ISIC_1",)
    assert manifest.records[0].path is None
    with pytest.raises(BrokenImageError, match="no file"):
        manifest.reader(manifest.records[0])


def test_missing_images_still_connect_groups(ham_folder, write_table):
    # ISIC_3 ~ ISIC_5 ~ ISIC_6 through ISIC_5, whose file is not there
    pairs = write_table(ham_folder / "more.csv", ["from_img,to_img", "ISIC_3,ISIC_5", "ISIC_5,ISIC_6"])
    (ham_folder / "HAM10000_images_part_1" / "ISIC_5.jpg").unlink()
    manifest = open_source(f"ham10000:{ham_folder}", allow_missing=True, duplicates=pairs)
    groups = {r.id: r.group for r in manifest.records}
    assert groups["ISIC_3"] == groups["ISIC_6"] == groups["ISIC_7"]


def test_a_list_of_duplicates_of_another_data_set_is_refused(ham_folder, write_table):
    pairs = write_table(ham_folder / "more.csv", ["from_img,to_img", "x,y"])
    with pytest.raises(SourceError, match="none of the 1 pairs"):
        open_source(f"ham10000:{ham_folder}", duplicates=pairs)


def test_an_image_without_a_label_is_refused(unlabelled):
    with pytest.raises(SourceError, match=r"without a label \(ISIC_99\)"):
        open_source(unlabelled)


def test_allowing_it_counts_images_without_a_label(unlabelled):
    manifest = open_source(unlabelled, allow_missing=True)
    assert len(manifest) == 8
    assert manifest.notes[-1] == "1 image file without a label (ISIC_99); left out"


def test_no_image_at_all_is_refused_even_so(ham_folder):
    for part in (1, 2):
        for path in (ham_folder / f"HAM10000_images_part_{part}").iterdir():
            path.unlink()
    with pytest.raises(NoImagesError, match="8 of 8"):
        open_source(f"ham10000:{ham_folder}", allow_missing=True)


def test_the_reader_travels_to_workers(ham_folder):
    manifest = open_source(f"ham10000:{ham_folder}")
    reader = pickle.loads(pickle.dumps(manifest.reader))
    assert reader(manifest.records[0]).shape == (24, 32, 3)
