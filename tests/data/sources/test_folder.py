from __future__ import annotations

import os

import pytest

from tdumpra.data.inspect import inspect_manifest
from tdumpra.data.sources import open_source
from tdumpra.errors import SourceError


@pytest.fixture
def classes(tmp_path, write_image):
    root = tmp_path / "images"
    for number, name in enumerate(["nevus/b.jpg", "nevus/a.JPG", "melanoma/deep/er/c.png", "melanoma/.hidden.jpg"]):
        write_image(root / name, seed=number)
    return root


def test_a_folder_per_class(classes):
    manifest = open_source(f"folder:{classes}")
    assert manifest.class_names == ("melanoma", "nevus")
    assert [r.id for r in manifest.records] == ["melanoma/deep/er/c.png", "nevus/a.JPG", "nevus/b.jpg"]
    assert [r.label for r in manifest.records] == [0, 1, 1]
    assert {r.split for r in manifest.records} == {None}
    assert [r.group for r in manifest.records] == [r.id for r in manifest.records]


def test_split_folders_above_the_classes(tmp_path, write_image):
    for number, name in enumerate(["train/0", "train/10", "train/9", "valid/9", "test/10"]):
        write_image(tmp_path / name / "a.jpg", seed=number)
    manifest = open_source(f"folder:{tmp_path}")
    assert manifest.class_names == ("0", "9", "10")  # numbers by value
    assert {r.id: r.split for r in manifest.records} == {
        "train/0/a.jpg": "train",
        "train/10/a.jpg": "train",
        "train/9/a.jpg": "train",
        "valid/9/a.jpg": "val",
        "test/10/a.jpg": "test",
    }


def test_a_class_that_only_the_test_has_is_refused(tmp_path, write_image):
    for name in ("train/mel", "train/nv", "test/nevus"):
        write_image(tmp_path / name / "a.jpg")
    with pytest.raises(SourceError, match="'nevus' in test"):
        open_source(f"folder:{tmp_path}")


def test_splits_beside_classes_are_refused(tmp_path, write_image):
    for name in ("train/mel", "nv"):
        write_image(tmp_path / name / "a.jpg")
    with pytest.raises(SourceError, match=r"\(train\) beside others \(nv\)"):
        open_source(f"folder:{tmp_path}")


def test_classes_that_differ_by_case_are_refused(tmp_path, write_image):
    for name in ("Nevus", "nevus", "mel"):
        write_image(tmp_path / name / f"{name}.jpg")
    if len(list(tmp_path.iterdir())) < 3:
        pytest.skip("this file system does not tell upper from lower case")
    with pytest.raises(SourceError, match="has the classes 'Nevus' and 'nevus'"):
        open_source(f"folder:{tmp_path}")


def test_an_image_above_the_class_folders_has_no_label(classes, write_image):
    write_image(classes / "stray.jpg")
    with pytest.raises(SourceError, match=r"without a label \(stray\.jpg\)"):
        open_source(f"folder:{classes}")
    manifest = open_source(f"folder:{classes}", allow_missing=True)
    assert len(manifest) == 3
    assert "1 image file without a label (stray.jpg); left out" in manifest.notes


def test_a_link_out_of_the_folder_is_refused(classes, tmp_path, write_image):
    (classes / "nevus" / "link.jpg").symlink_to(write_image(tmp_path / "outside.jpg"))
    with pytest.raises(SourceError, match=r"nevus/link\.jpg is a link to .*outside\.jpg"):
        open_source(f"folder:{classes}")


def test_a_linked_folder_out_of_the_folder_is_refused(classes, tmp_path, write_image):
    write_image(tmp_path / "other" / "x.jpg")
    (classes / "nevus" / "more").symlink_to(tmp_path / "other")
    with pytest.raises(SourceError, match="nevus/more is a link to"):
        open_source(f"folder:{classes}")


def test_a_link_to_a_folder_above_would_never_end(classes):
    (classes / "nevus" / "again").symlink_to(classes)
    with pytest.raises(SourceError, match="count twice"):
        open_source(f"folder:{classes}")


def test_a_link_within_the_folder_is_followed(classes, write_image):
    write_image(classes / ".store" / "x.jpg")
    (classes / "nevus" / "x.jpg").symlink_to(classes / ".store" / "x.jpg")
    assert len(open_source(f"folder:{classes}")) == 4


def test_a_link_to_the_whole_folder_is_the_users_choice(classes, tmp_path):
    (tmp_path / "alias").symlink_to(classes)
    assert open_source(f"folder:{tmp_path / 'alias'}").fingerprint == open_source(f"folder:{classes}").fingerprint


def test_a_link_to_nowhere_is_a_missing_file(classes, tmp_path):
    (classes / "nevus" / "gone.jpg").symlink_to(tmp_path / "gone.jpg")
    with pytest.raises(SourceError, match=r"1 of 4 .*nevus/gone\.jpg"):
        open_source(f"folder:{classes}")
    assert open_source(f"folder:{classes}", allow_missing=True).missing == ("nevus/gone.jpg",)


def test_links_in_a_circle_are_missing_files(classes):
    (classes / "nevus" / "one.jpg").symlink_to(classes / "nevus" / "two.jpg")
    (classes / "nevus" / "two.jpg").symlink_to(classes / "nevus" / "one.jpg")
    (classes / "itself").symlink_to(classes / "itself")
    with pytest.raises(SourceError, match=r"nevus/one\.jpg, nevus/two\.jpg"):
        open_source(f"folder:{classes}")
    manifest = open_source(f"folder:{classes}", allow_missing=True)
    assert manifest.missing == ("nevus/one.jpg", "nevus/two.jpg")
    assert len(manifest) == 3


@pytest.mark.skipif(os.name != "posix", reason="only POSIX has named pipes and devices")
@pytest.mark.parametrize("decode", [True, False])
def test_pipes_and_devices_are_broken_images(classes, decode):
    os.mkfifo(classes / "nevus" / "pipe.jpg")
    os.mkfifo(classes / "nevus" / "no suffix")
    (classes / "nevus" / "device.jpg").symlink_to(os.devnull)
    manifest = open_source(f"folder:{classes}")
    assert len(manifest) == 5
    broken = inspect_manifest(manifest, decode=decode)["broken"]
    assert set(broken["reasons"]) == {"nevus/pipe.jpg", "nevus/device.jpg"}


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="a superuser may list any folder")
def test_a_folder_that_cannot_be_listed_is_refused(classes):
    (classes / "nevus").chmod(0)
    try:
        with pytest.raises(SourceError, match="cannot list the folder"):
            open_source(f"folder:{classes}")
    finally:
        (classes / "nevus").chmod(0o700)


def test_unicode_and_very_long_names(classes, write_image):
    long = "ü" * 120 + ".jpg"  # 244 bytes of the 255 that file systems take
    write_image(classes / "nevus" / long)
    write_image(classes / "nevus" / "病变 ☤ 'quoted' <b>.jpg")
    manifest = open_source(f"folder:{classes}")
    assert f"nevus/{long}" in [r.id for r in manifest.records]
    assert len(manifest) == 5
    assert manifest.fingerprint


@pytest.mark.skipif(os.name != "posix", reason="only POSIX takes names that are no text")
def test_a_name_that_is_no_text_is_refused(classes):
    try:
        with open(os.fsencode(classes / "nevus") + b"/\xff\xfe.jpg", "wb"):
            pass
    except OSError:
        pytest.skip("this file system takes no such name")
    with pytest.raises(SourceError, match="UTF-8"):
        open_source(f"folder:{classes}")


def test_dicom_files_without_a_suffix_count_as_images_and_other_files_are_counted(classes):
    (classes / "nevus" / "IM0001").write_bytes(b"\0" * 128 + b"DICM")
    (classes / "nevus" / "README").write_bytes(b"text")
    (classes / "nevus" / "Thumbs.db").write_bytes(b"text")
    manifest = open_source(f"folder:{classes}")
    assert len(manifest) == 4
    assert "2 files are no images by their names (README, …); passed over" in manifest.notes


def test_one_class_or_none_is_refused(tmp_path, write_image):
    with pytest.raises(SourceError, match="holds no images"):
        open_source(f"folder:{tmp_path}")
    write_image(tmp_path / "only" / "a.jpg")
    with pytest.raises(SourceError, match="holds the one class 'only'"):
        open_source(f"folder:{tmp_path}")


def test_there_is_no_column_to_group_by(classes):
    with pytest.raises(SourceError, match="no column 'patient'"):
        open_source(f"folder:{classes}", group_column="patient")
