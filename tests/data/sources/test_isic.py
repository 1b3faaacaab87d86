from __future__ import annotations

import pytest

from tdumpra.data.sources import open_source
from tdumpra.data.sources.isic import ISIC2019_CLASSES
from tdumpra.errors import SourceError

HEADER_2019 = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK"


def one_hot(image: str, index: int, width: int = 9) -> str:
    return ",".join([image, *("1.0" if i == index else "0.0" for i in range(width))])


@pytest.fixture
def isic2019(tmp_path, write_image, write_table):
    root = tmp_path / "isic"
    images = ["ISIC_1", "ISIC_2_downsampled", "ISIC_3", "ISIC_4"]
    write_table(
        root / "ISIC_2019_Training_GroundTruth.csv",
        [HEADER_2019, *(one_hot(image, index) for index, image in enumerate(images))],
    )
    write_table(
        root / "ISIC_2019_Training_Metadata.csv",
        [
            "image,age_approx,anatom_site_general,lesion_id,sex",
            "ISIC_1,55,anterior torso,,female",
            "ISIC_2_downsampled,,,BCN_1,",
            "ISIC_3,30,,BCN_1,male",
            "ISIC_4,30,,,male",
        ],
    )
    for number, image in enumerate(images):
        write_image(root / "ISIC_2019_Training_Input" / f"{image}.jpg", seed=number)
    return root


def test_isic2019_with_its_official_folder(isic2019):
    manifest = open_source(f"isic2019:{isic2019}")
    assert manifest.class_names == ISIC2019_CLASSES
    assert [r.label for r in manifest.records] == [0, 1, 2, 3]
    assert [r.group for r in manifest.records] == ["ISIC_1", "BCN_1", "BCN_1", "ISIC_4"]  # no lesion: alone
    assert dict(manifest.records[0].meta) == {
        "age_approx": "55",
        "anatom_site_general": "anterior torso",
        "sex": "female",
    }
    assert manifest.records[1].path == isic2019 / "ISIC_2019_Training_Input" / "ISIC_2_downsampled.jpg"


def test_isic2019_with_flat_images(isic2019):
    for path in (isic2019 / "ISIC_2019_Training_Input").iterdir():
        path.rename(isic2019 / path.name)
    (isic2019 / "ISIC_2019_Training_Input").rmdir()
    assert open_source(f"isic2019:{isic2019}").records[0].path == isic2019 / "ISIC_1.jpg"


def test_unknown_belongs_to_the_test_set_only(isic2019):
    table = isic2019 / "ISIC_2019_Training_GroundTruth.csv"
    table.write_text("\n".join([HEADER_2019, one_hot("ISIC_1", 8)]))
    with pytest.raises(SourceError, match=r"line 2: .*UNK"):
        open_source(f"isic2019:{isic2019}")


def test_the_official_test_set_comes_along_without_the_unknown(isic2019, write_image, write_table):
    write_table(
        isic2019 / "ISIC_2019_Test_GroundTruth.csv",
        [f"{HEADER_2019},score_weight", f"{one_hot('ISIC_8', 7)},1.0", f"{one_hot('ISIC_9', 8)},1.0"],
    )
    write_table(isic2019 / "ISIC_2019_Test_Metadata.csv", ["image,age_approx,sex", "ISIC_8,5,male", "ISIC_9,5,male"])
    for image in ("ISIC_8", "ISIC_9"):
        write_image(isic2019 / "ISIC_2019_Test_Input" / f"{image}.jpg")
    manifest = open_source(f"isic2019:{isic2019}")
    assert [(r.id, r.split) for r in manifest.records[3:]] == [("ISIC_4", None), ("ISIC_8", "test")]
    assert manifest.notes == (
        "1 test images of the class UNK left out: no training image shows it",
        "2 training images name no group: each is taken as a group of its own",
    )


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("ISIC_1,1,1,0,0,0,0,0,0,0", "exactly one class must be 1 and the others 0; 2 are 1"),
        ("ISIC_1,0,0,0,0,0,0,0,0,0", "exactly one class must be 1 and the others 0; 0 are 1"),
        ("ISIC_1,0.4,0.6,0,0,0,0,0,0,0", "exactly one class must be 1"),
        ("ISIC_1,1,0.6,0,0,0,0,0,0,0", "exactly one class must be 1"),
        ("ISIC_1,yes,0,0,0,0,0,0,0,0", "must hold 0 and 1 only"),
    ],
)
def test_a_row_with_no_single_class_is_refused(isic2019, row, sentence):
    (isic2019 / "ISIC_2019_Training_GroundTruth.csv").write_text(f"{HEADER_2019}\n{row}\n")
    with pytest.raises(SourceError, match=f"line 2: .*{sentence}"):
        open_source(f"isic2019:{isic2019}")


def test_a_label_without_metadata_is_refused(isic2019):
    table = isic2019 / "ISIC_2019_Training_Metadata.csv"
    table.write_text("\n".join(table.read_text().splitlines()[:-1]))
    with pytest.raises(SourceError, match="ISIC_4"):
        open_source(f"isic2019:{isic2019}")


def test_the_real_isic2019_tables(isic2019_tables):
    with pytest.raises(SourceError, match="25,331 of 25,331"):
        open_source(f"isic2019:{isic2019_tables}")
    manifest = open_source(f"isic2019:{isic2019_tables}", metadata_only=True)
    counts = [int((manifest.labels == c).sum()) for c in range(8)]
    assert counts == [4522, 12875, 3323, 867, 2624, 239, 253, 628]  # as published


def test_isic2018_in_both_forms_of_its_table(tmp_path, write_image, write_table):
    archive, dataverse = tmp_path / "archive", tmp_path / "dataverse"
    write_table(
        archive / "ISIC2018_Task3_Test_GroundTruth" / "ISIC2018_Task3_Test_GroundTruth.csv",
        ["image,MEL,NV,BCC,AKIEC,BKL,DF,VASC", one_hot("ISIC_2", 3, 7), one_hot("ISIC_1", 0, 7)],
    )
    write_table(
        dataverse / "ISIC2018_Task3_Test_GroundTruth.csv",
        ["lesion_id,image_id,dx,dx_type,age", "HAMTEST_1,ISIC_2,akiec,histo,50", "HAMTEST_1,ISIC_1,mel,histo,60"],
    )
    for image in ("ISIC_1", "ISIC_2"):
        write_image(archive / "ISIC2018_Task3_Test_Input" / f"{image}.jpg")
        write_image(dataverse / "ISIC2018_Task3_Test_Images" / f"{image}.jpg")
    first, second = (open_source(f"isic2018-task3:{folder}") for folder in (archive, dataverse))
    for manifest in (first, second):
        names = [(r.id, manifest.class_names[r.label], r.split) for r in manifest.records]
        assert names == [("ISIC_1", "mel", "test"), ("ISIC_2", "akiec", "test")]
    assert list(first.groups) == ["ISIC_1", "ISIC_2"]
    assert list(second.groups) == ["HAMTEST_1", "HAMTEST_1"]
    assert "dx_type" not in second.records[0].meta
