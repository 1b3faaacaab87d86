from __future__ import annotations

import shutil

import pytest

from tdumpra.data.sources import open_source
from tdumpra.errors import SourceError


def test_the_official_layout(ham_folder):
    manifest = open_source(f"ham10000:{ham_folder}")
    assert manifest.class_names == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    assert [r.id for r in manifest.records] == [f"ISIC_{i}" for i in range(1, 9)]
    assert [manifest.class_names[r.label] for r in manifest.records[:5]] == ["nv", "nv", "mel", "mel", "bcc"]
    first = manifest.records[0]
    assert first.path == ham_folder / "HAM10000_images_part_1" / "ISIC_1.jpg"
    assert first.mask == ham_folder / "HAM10000_segmentations_lesion" / "ISIC_1_segmentation.png"
    assert manifest.records[1].mask is None
    assert first.split is None


def test_the_listed_duplicates_share_a_group(ham_folder):
    manifest = open_source(f"ham10000:{ham_folder}")
    assert [r.group for r in manifest.records[:4]] == ["HAM_1", "HAM_1", "HAM_2", "HAM_2"]
    assert manifest.notes == ("groups merged along 1 duplicate pair",)


def test_how_a_diagnosis_was_made_never_reaches_a_record(ham_folder):
    for record in open_source(f"ham10000:{ham_folder}").records:
        assert dict(record.meta) == {
            "lesion_id": record.meta["lesion_id"],
            "age": "50.0",
            "sex": "female",
            "localization": "back",
        }


@pytest.mark.parametrize("folder", ["HAM10000_images", "."])
def test_all_images_in_one_folder(ham_folder, folder):
    expected = open_source(f"ham10000:{ham_folder}").fingerprint
    (ham_folder / folder).mkdir(exist_ok=True)
    for part in ("HAM10000_images_part_1", "HAM10000_images_part_2"):
        for path in (ham_folder / part).iterdir():
            path.rename(ham_folder / folder / path.name)
        (ham_folder / part).rmdir()
    manifest = open_source(f"ham10000:{ham_folder}")
    assert manifest.fingerprint == expected
    assert all(r.path is not None and r.path.is_file() for r in manifest.records)


def test_the_fingerprint_survives_a_move(ham_folder, tmp_path):
    before = open_source(f"ham10000:{ham_folder}").fingerprint
    shutil.move(ham_folder, tmp_path / "elsewhere")
    assert open_source(f"ham10000:{tmp_path / 'elsewhere'}").fingerprint == before


def test_another_grouping_column(ham_folder):
    groups = open_source(f"ham10000:{ham_folder}", group_column="localization").groups
    assert set(groups) == {"back"}
    by_lesion = open_source(f"ham10000:{ham_folder}", group_column="lesion")
    assert by_lesion.fingerprint == open_source(f"ham10000:{ham_folder}").fingerprint
    with pytest.raises(SourceError, match="'patient'"):
        open_source(f"ham10000:{ham_folder}", group_column="patient")


def test_an_image_twice_is_refused(ham_folder):
    shutil.copy(ham_folder / "HAM10000_images_part_1/ISIC_1.jpg", ham_folder / "HAM10000_images_part_2/ISIC_1.jpg")
    with pytest.raises(SourceError, match="ISIC_1 is there twice"):
        open_source(f"ham10000:{ham_folder}")


def test_an_unknown_class_is_refused_with_its_line(ham_folder):
    table = ham_folder / "HAM10000_metadata.csv"
    table.write_text(table.read_text().replace("ISIC_8,vasc", "ISIC_8,vasx"))
    with pytest.raises(SourceError, match=r"line 2: unknown class 'vasx'; did you mean 'vasc'\?"):
        open_source(f"ham10000:{ham_folder}")


def test_a_row_without_an_image_is_refused(ham_folder):
    table = ham_folder / "HAM10000_metadata.csv"
    table.write_text(table.read_text().replace("ISIC_8,vasc", ",vasc"))
    with pytest.raises(SourceError, match=r"a row in .* names no image"):
        open_source(f"ham10000:{ham_folder}", allow_missing=True)


def test_a_row_twice_is_refused(ham_folder):
    table = ham_folder / "HAM10000_metadata.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, lines[-1]]))
    with pytest.raises(SourceError, match=r"more than once \(ISIC_1\)"):
        open_source(f"ham10000:{ham_folder}")


def test_the_real_tables_hold_seven_thousand_lesions(ham10000_metadata):
    manifest = open_source(f"ham10000:{ham10000_metadata}", metadata_only=True)
    assert len(manifest) == 9394
    lesions = {r.meta["lesion_id"] for r in manifest.records}
    assert len(lesions) == 7165
    assert len(set(manifest.groups)) == 7165 - 15  # of the 18 listed pairs, 3 were one lesion already
    assert "groups merged along 15 duplicate pairs" in manifest.notes


def test_the_site_comes_from_a_column_or_from_a_table_beside(ham_folder, write_table):
    source = f"ham10000:{ham_folder}"
    assert all("site" not in record.meta for record in open_source(source).records)
    write_table(ham_folder / "HAM10000_sites.csv", ["image_id,site", "ISIC_1,graz", "ISIC_2,wien", "ISIC_99,wien"])
    sites = {record.id: record.meta.get("site") for record in open_source(source).records}
    assert (sites["ISIC_1"], sites["ISIC_2"], sites["ISIC_3"]) == ("graz", "wien", None)
    table = ham_folder / "HAM10000_metadata.csv"
    header, *rows = table.read_text().splitlines()
    table.write_text("\n".join([f"{header},dataset", *(f"{row},rosendahl" for row in rows)]))
    assert {record.meta["site"] for record in open_source(source).records} == {"rosendahl"}
    write_table(ham_folder / "HAM10000_sites.csv", ["image,site", "ISIC_1,graz"])
    write_table(table, [header, *rows])
    with pytest.raises(SourceError, match=r"HAM10000_sites\.csv has no column 'image_id'"):
        open_source(source)
