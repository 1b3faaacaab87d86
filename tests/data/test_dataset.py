"""The images of a run: split before they are decoded, with what a user should know of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from tiny_runs import settings

from tdumpra.data.dataset import open_data
from tdumpra.errors import SourceError
from tdumpra.runs.config import DataConfig


def test_data_are_split_before_they_are_decoded(tmp_path):
    config = replace(settings().data, source="synthetic:n=40,size=32", cache=str(tmp_path / "cache"))
    opened = open_data(config)
    rows = [set(opened.rows(part)) for part in ("train", "val", "test")]
    assert sum(map(len, rows)) == len(opened.manifest) == 40
    groups = [{opened.manifest.records[i].group for i in part} for part in rows]
    assert not groups[0] & groups[2]
    opened.split.write(tmp_path / "split.json")
    again = open_data(replace(config, split_file=str(tmp_path / "split.json")))
    assert again.codes.tolist() == opened.codes.tolist()


def test_each_seed_holds_out_lesions_of_its_own(tmp_path):
    source = replace(settings().data, source="synthetic:n=60,size=32", cache=str(tmp_path / "cache"), val_share=0.25)
    opened = [open_data(replace(source, val_by_seed=True), seed) for seed in range(5)]
    held_out = [set(each.rows("val")) for each in opened]
    assert all(set(each.rows("test")) == set(opened[0].rows("test")) for each in opened)
    assert sum(map(len, held_out[:4])) == len(set.union(*held_out[:4]))  # none twice
    assert held_out[4] == held_out[0]  # there are four quarters
    for each, rows in zip(opened, held_out, strict=True):
        groups = [{each.manifest.records[i].group for i in part} for part in (each.rows("train"), rows)]
        assert not groups[0] & groups[1]
    fixed = [open_data(source, seed) for seed in (0, 1)]
    assert fixed[0].codes.tolist() == fixed[1].codes.tolist() == opened[0].codes.tolist()


def test_what_a_user_should_know_comes_along(tmp_path):
    folder = tmp_path / "images"
    for name in ("mole", "nevus"):
        (folder / name).mkdir(parents=True)
        for i in range(12):
            Image.new("RGB", (32, 32), (10 * i, 40, 200)).save(folder / name / f"{name}-{i}.png")
    (folder / "mole" / "mole-3.png").write_bytes(b"not an image")
    opened = open_data(replace(settings().data, source=f"folder:{folder}", cache=str(tmp_path / "cache")))
    assert len(opened.manifest) == 23
    of_source, *of_split, of_pixels = opened.notes
    assert of_source == "a folder names no lesions: each image is taken as a group of its own"
    assert all(" in test, " in note for note in of_split)
    assert of_pixels.endswith("quarantine.csv lists them")


def external(folder: Path, *, column: str) -> DataConfig:
    """Two tables of images that share half of their patients; the lesions are others."""
    for part, start in (("train", 0), ("test", 40)):
        lines = [f"image,label,group,{column if part == 'test' else 'patient'}"]
        for i in range(start, start + 40):
            Image.new("RGB", (32, 32), (5 * (i % 40), 40, 200)).save(folder / f"i{i}.png")
            lines.append(f"i{i}.png,{'ab'[i % 2]},lesion{i},P{i % 10 + (start and 5)}")
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")
    return replace(
        settings().data, source=f"csv:{folder / 'train.csv'}", test_source=f"csv:{folder / 'test.csv'}",
        protocol="external", group_by="patient", cache=str(folder / "cache"),
    )  # fmt: skip


def test_an_external_test_is_grouped_alike(tmp_path):
    opened = open_data(external(tmp_path, column="patient"))
    train, test = ({opened.manifest.records[i].group for i in opened.rows(part)} for part in ("train", "test"))
    assert test == {f"P{i}" for i in range(5, 15)}
    assert not train & test
    opened = open_data(external(tmp_path, column="person"))
    assert any("cannot be grouped by 'patient'" in note for note in opened.notes)
    gone = replace(external(tmp_path, column="person"), test_source="csv:nowhere.csv")
    with pytest.raises(SourceError, match=r"nowhere\.csv"):
        open_data(gone)


def test_synthetic_lesions_have_no_column_to_group_by(tmp_path):
    config = replace(settings().data, source="synthetic:n=40,size=32", cache=str(tmp_path), group_by="patient")
    with pytest.raises(SourceError, match="'patient' is no column of theirs"):
        open_data(config)


def test_pairs_of_duplicates_are_one_group_before_the_split(ham_folder, write_table, tmp_path) -> None:
    pairs = write_table(tmp_path / "pairs.csv", ["from_img,to_img", "ISIC_1,ISIC_3"])
    data = DataConfig(source=f"ham10000:{ham_folder}", cache=str(tmp_path / "cache"), duplicates=str(pairs))
    merged, plain = (
        {record.id: record.group for record in open_data(each).manifest.records}
        for each in (data, replace(data, duplicates=None))
    )
    assert plain["ISIC_1"] != plain["ISIC_3"]
    assert merged["ISIC_1"] == merged["ISIC_2"] == merged["ISIC_3"]
    with pytest.raises(SourceError, match="synthetic lesions have no duplicates"):
        open_data(replace(data, source="synthetic:n=20"))


def test_a_chosen_test_reaches_the_images(tmp_path):
    data = replace(settings().data, source="synthetic:n=200,size=32", cache=str(tmp_path / "cache"))
    held = open_data(replace(data, hold_out="ambiguous=yes"))
    told = {part: {held.manifest.records[i].meta["ambiguous"] for i in held.rows(part)} for part in ("train", "test")}
    assert told == {"train": {"no"}, "test": {"yes"}}
    assert any(note.startswith("the test is ambiguous=yes") for note in held.notes)
    folds = [open_data(replace(data, outer_folds=2, fold=fold)) for fold in (0, 1)]
    assert sorted([*folds[0].rows("test"), *folds[1].rows("test")]) == list(range(200))
    with pytest.raises(ValueError, match="say with fold"):
        open_data(replace(data, outer_folds=2))
