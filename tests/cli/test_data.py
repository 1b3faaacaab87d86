from __future__ import annotations

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tdumpra.artifacts import read_json
from tdumpra.cli.data import app
from tdumpra.data.sources import open_source
from tdumpra.data.splits import Split
from tdumpra.errors import ArtifactError, NoImagesError, SourceError


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def run_json(*arguments: object) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return document


def test_inspect_prints_a_table_or_json(ham_folder, tmp_path):
    source = f"ham10000:{ham_folder}"
    text = run("inspect", source).stdout
    assert "ham10000: 8 images, 5 groups" in text
    assert "32×24 (8)" in text
    document = run_json("inspect", source, "--out", tmp_path / "new" / "out")
    assert document["classes"]["nv"] == {"images": 2, "groups": 1, "splits": {}}
    assert read_json(tmp_path / "new" / "out" / "inspection.json", kind="inspection", schema=1)["images"] == 8


def test_inspect_lists_broken_files(ham_folder):
    (ham_folder / "HAM10000_images_part_1" / "ISIC_1.jpg").write_text("[red]no image[/red]")
    text = run("inspect", f"ham10000:{ham_folder}").stdout
    assert "broken files: 1" in text
    assert "  ISIC_1: " in text


def test_audit_by_image_leaks_and_by_group_does_not(ham_folder):
    source = f"ham10000:{ham_folder}"
    grouped = run_json("audit", source, "--no-near-duplicates")
    assert grouped["leak"]["images"] == 0
    assert grouped["near_duplicates"] is None
    assert set(grouped["leak"]["by_class"]) <= {"akiec", "bcc", "mel", "nv", "vasc"}
    shares = [
        run_json("audit", source, "--protocol", "paper", "--seed", s, "--metadata-only")["leak"]["share"]
        for s in range(4)
    ]
    assert max(shares) > 0
    assert "share of test" in run("audit", source, "--protocol", "paper", "--metadata-only").stdout


def test_audit_without_near_duplicates_reads_no_pixels(ham_folder):
    for part in (1, 2):
        for path in (ham_folder / f"HAM10000_images_part_{part}").iterdir():
            path.write_bytes(b"")
    assert run_json("audit", f"ham10000:{ham_folder}", "--no-near-duplicates")["images"] == 8


def test_audit_says_how_many_images_cannot_be_read(ham_folder):
    source = f"ham10000:{ham_folder}"
    assert "unreadable images: 0\n" in run("audit", source).stdout
    (ham_folder / "HAM10000_images_part_1" / "ISIC_1.jpg").write_text("[red]no image[/red]")
    document = run_json("audit", source)
    (part,) = (part for part, count in document["unreadable"]["splits"].items() if count)
    assert document["unreadable"]["images"] == document["unreadable"]["splits"][part] == 1
    text = run("audit", source).stdout
    assert f"unreadable images: 1 of 8, counted above ({part} 1); training and evaluation leave them out" in text
    assert "  ISIC_1: " in text
    assert "unreadable images: nobody looked" in run("audit", source, "--metadata-only").stdout


def test_audit_writes_what_can_be_used_again(ham_folder, write_image, tmp_path):
    # the same picture as two lesions
    source, out = f"ham10000:{ham_folder}", tmp_path / "out"
    for part, image in ((1, "ISIC_5"), (2, "ISIC_8")):
        write_image(ham_folder / f"HAM10000_images_part_{part}" / f"{image}.jpg", seed=77, size=(320, 240))
    text = run("audit", source, "--out", out).stdout
    assert "near-duplicates: 1 pairs of different groups" in text
    assert sorted(path.name for path in out.iterdir()) == [
        "audit.json",
        "near_duplicates.csv",
        "near_duplicates.html",
        "split.json",
    ]
    assert Split.read(out / "split.json", open_source(source)).protocol == "grouped"
    assert read_json(out / "audit.json", kind="audit", schema=1)["near_duplicates"]["pairs"] == 1
    merged = run_json("audit", source, "--duplicates", out / "near_duplicates.csv")
    assert merged["groups"] == 4
    assert merged["near_duplicates"]["pairs"] == 0


def test_audit_of_an_external_test(ham_folder, tmp_path, write_image, write_table):
    test = tmp_path / "test"
    table = ["lesion_id,image_id,dx", "T_1,ISIC_91,mel", "T_2,ISIC_92,nv"]
    write_table(test / "ISIC2018_Task3_Test_GroundTruth.csv", table)
    for number in (91, 92):
        write_image(test / f"ISIC_{number}.jpg", seed=number)
    arguments = ["audit", f"ham10000:{ham_folder}", "--test", f"isic2018-task3:{test}", "--protocol", "external"]
    document = run_json(*arguments)
    assert document["source"] == "ham10000+isic2018-task3"
    assert document["splits"]["test"]["images"] == 2
    assert document["leak"]["images"] == 0


def test_missing_files_are_a_mistake_or_a_note(ham_folder):
    (ham_folder / "HAM10000_images_part_1" / "ISIC_1.jpg").unlink()
    for command in ("inspect", "audit"):
        with pytest.raises(SourceError, match="--allow-missing"):
            run(command, f"ham10000:{ham_folder}")
        text = run(command, f"ham10000:{ham_folder}", "--allow-missing").stdout
        assert "note: 1 of 8 labelled images have no file (ISIC_1); left out" in text


def test_options_that_contradict_each_other(ham_folder):
    with pytest.raises(ValueError, match="choose one"):
        run("audit", f"ham10000:{ham_folder}", "--metadata-only", "--near-duplicates")


def test_a_folder_that_cannot_be_made(ham_folder, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="cannot make the folder"):
        run("audit", f"ham10000:{ham_folder}", "--metadata-only", "--out", tmp_path / "file")


def test_grouping_by_another_column(ham_folder):
    assert run_json("inspect", f"ham10000:{ham_folder}", "--group-by", "sex", "--headers-only")["groups"] == 1


def test_prepare_decodes_once_and_counts_the_broken(ham_folder, tmp_path):
    (ham_folder / "HAM10000_images_part_1" / "ISIC_1.jpg").write_bytes(b"")
    document = run_json("prepare", f"ham10000:{ham_folder}", "--out", tmp_path / "cache", "--size", "16x24")
    assert (document["images"], document["broken"], document["bytes"]) == (7, 1, 7 * 16 * 24 * 3)
    assert "ISIC_1" in (tmp_path / "cache" / "quarantine.csv").read_text()
    again = run("prepare", f"ham10000:{ham_folder}", "--out", tmp_path / "cache", "--size", "16x24").stdout
    assert "7 images of 16×24" in again
    assert "1 broken" in again


@pytest.mark.parametrize("size", ["x", "3x", "x3", "3x4x5", "12xb", "ax3", "-4", "3.5"])
def test_a_size_is_one_number_or_two(size, tmp_path):
    sentence = f"--size is one number (224) or HEIGHTxWIDTH (192x256), not '{size}'"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        run("prepare", "synthetic:n=20", "--out", tmp_path, f"--size={size}")


def without_images(folder: Any) -> str:
    for path in folder.rglob("*.jpg"):
        path.unlink()
    return f"ham10000:{folder}"


def test_tables_without_a_single_image_are_audited(ham_folder):
    source = without_images(ham_folder)
    document = run_json("audit", source)
    assert document["images"] == 8
    assert document["repeated"] == {"groups": 3, "images": 6, "of_several_classes": 0}
    assert (document["near_duplicates"], document["unreadable"]) == (None, None)
    assert len(document["unchecked"]) == 2
    text = run("audit", source).stdout
    assert "near-duplicates: nobody looked" in text
    assert "note: 8 of 8 labelled images have no file" in text
    assert run_json("inspect", source)["missing"]["images"] == 8
    with pytest.raises(NoImagesError, match="8 of 8"):
        run("audit", source, "--near-duplicates")
    with pytest.raises(NoImagesError, match="8 of 8"):
        run("prepare", source)


def test_real_tables_without_images(isic2019_tables):
    document = run_json("audit", f"isic2019:{isic2019_tables}")
    assert document["images"] == 25331
    assert document["leak"]["images"] == 0
    assert document["repeated"]["groups"] == 5059
    assert any(note.startswith("2,084 training images name no group") for note in document["notes"])


def test_audit_of_a_chosen_test(ham_folder, write_table):
    source = f"ham10000:{ham_folder}"
    images = [f"ISIC_{i},{'graz' if i in (2, 3, 5) else 'wien'}" for i in range(1, 9)]
    write_table(ham_folder / "HAM10000_sites.csv", ["image_id,site", *images])
    with pytest.raises(ValueError, match="all images of bcc"):
        run("audit", source, "--hold-out", "site=graz", "--no-near-duplicates")
    write_table(ham_folder / "HAM10000_sites.csv", ["image_id,site", "ISIC_1,graz", "ISIC_2,wien"])
    with pytest.raises(ValueError, match="outer_folds = 4 is more"):
        run("audit", source, "--outer-folds", 4, "--no-near-duplicates")
    document = run_json("audit", "synthetic:n=200,size=32", "--outer-folds", 2, "--fold", 1, "--no-near-duplicates")
    assert (document["outer_folds"], document["fold"], document["leak"]["images"]) == (2, 1, 0)
    held = run_json("audit", "synthetic:n=200,size=32", "--hold-out", "ambiguous=yes", "--no-near-duplicates")
    assert held["hold_out"] == "ambiguous=yes"
    assert held["splits"]["test"]["images"] == 200 - held["splits"]["train"]["images"] - held["splits"]["val"]["images"]
