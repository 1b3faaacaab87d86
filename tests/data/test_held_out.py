"""Tests that are chosen, not drawn: a value of a metadata column, and outer folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdumpra.data.audit import Audit
from tdumpra.data.leakage import audit_leakage
from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.settings import DataConfig
from tdumpra.data.sources import open_source
from tdumpra.data.sources.files import FileReader
from tdumpra.data.splits import Split, make_split

CLASSES = ("bcc", "mel", "nv")


def places(rows: Sequence[tuple[int, str, str]], splits: Sequence[str | None] | None = None) -> Manifest:
    """A data set of (class, group, site); an empty site is one that nobody wrote down."""
    records = tuple(
        Record(f"i{i}", None, label, group, splits[i] if splits else None, meta={"site": site} if site else {})
        for i, (label, group, site) in enumerate(rows)
    )
    return Manifest("toy", CLASSES, records, FileReader())


def two_sites() -> Manifest:
    """Two lesions of each class at each site, one of them with an image at both, and an image of no known site."""
    rows = [
        (label, f"{site}{label}{i}", site) for site in ("graz", "wien") for label in range(3) for i in (0, 0, 1, 2, 3)
    ]
    return places([*rows, (0, "graz00", "wien"), (2, "unknown", "")])


class TestHoldOut:
    def test_a_value_is_the_test_with_the_lesions_that_it_touches(self):
        manifest = two_sites()
        split = make_split(manifest, hold_out="site=wien")
        in_wien = {i for i, record in enumerate(manifest.records) if record.meta.get("site") == "wien"}
        lesion_on_both_sides = {i for i, record in enumerate(manifest.records) if record.group == "graz00"}
        assert set(split.rows("test")) == in_wien | lesion_on_both_sides
        assert audit_leakage(split.codes, manifest.groups)["crossing_groups"] == 0
        assert {manifest.labels[row] for row in split.rows("val")} == {0, 1, 2}  # drawn from what is left
        assert len(manifest) - 1 not in split.rows("test")  # the image of no known site
        assert split.notes[0] == "the test is site=wien: 16 images, and 2 of another site whose group is among them"
        assert any("1 images say nothing of site" in note for note in split.notes)

    def test_the_file_and_the_fingerprint_tell(self, tmp_path):
        manifest = two_sites()
        split = make_split(manifest, hold_out=" site = wien ")
        split.write(tmp_path / "split.json")
        again = Split.read(tmp_path / "split.json", manifest)
        assert (again.hold_out, again.fingerprint) == (split.hold_out, split.fingerprint)
        assert replace(split, hold_out=None).fingerprint != split.fingerprint
        document = Audit(manifest, split).document()
        assert document["hold_out"] == split.hold_out
        assert "site = wien" in document["drawn"]

    @pytest.mark.parametrize(
        ("hold_out", "sentence"),
        [
            ("site=rom", r"no image of toy has site=rom: it has wien \(16\), graz \(15\)"),
            ("sit=wien", "no column 'sit' to hold out by; did you mean 'site'"),
            ("site", "COLUMN=VALUE"),
            ("=wien", "COLUMN=VALUE"),
        ],
    )
    def test_what_does_not_occur_is_refused(self, hold_out, sentence):
        with pytest.raises(ValueError, match=sentence):
            make_split(two_sites(), hold_out=hold_out)

    def test_a_class_that_nothing_is_left_of_is_refused_and_one_that_is_not_tested_noted(self):
        rows = [(label, f"g{i}{label}", "here" if label < 2 else "there") for i in range(6) for label in range(3)]
        rows += [(0, "x", "there")]
        with pytest.raises(ValueError, match="all images of mel: nothing is left"):
            make_split(places([row for row in rows if row[0] or row[1] == "x"]), hold_out="site=here")
        split = make_split(places([*rows, (2, "y", "here")]), hold_out="site=there")
        assert "mel: no image in test" in split.notes

    def test_a_test_of_the_sources_own_is_not_replaced(self):
        rows = [(i % 3, f"g{i}", "ab"[i % 2]) for i in range(12)]
        with pytest.raises(ValueError, match="a split of its own, and hold_out"):
            make_split(places(rows, ["train", "test"] * 6), hold_out="site=a")
        kept = make_split(places(rows, ["train"] * 6 + ["val"] * 6), hold_out="site=a")
        assert kept.rows("val").tolist() == [7, 9, 11]

    def test_the_real_sites(self, ham10000_metadata):
        manifest = open_source(f"ham10000:{ham10000_metadata}", metadata_only=True)
        if "site" not in manifest.records[0].meta:
            pytest.skip("this copy of HAM10000 does not tell its sites")
        split = make_split(manifest, hold_out="site=rosendahl")
        there = {i for i, record in enumerate(manifest.records) if record.meta["site"] == "rosendahl"}
        assert there <= set(split.rows("test"))
        assert audit_leakage(split.codes, manifest.groups)["crossing_groups"] == 0
        with pytest.raises(ValueError, match=r"it has vidir_molemax \([\d,]+\), vidir_modern"):
            make_split(manifest, hold_out="site=rosendal")


rows = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=60)


class TestOuterFolds:
    @given(rows, st.integers(2, 4), st.integers(0, 3))
    def test_every_group_is_tested_once_and_every_class_in_every_fold(self, drawn, n_folds, seed):
        manifest = places([(label, f"{label}-{group}", "") for label, group in drawn])  # no group of two classes
        n_groups = {label: len({group for own, group in drawn if own == label}) for label, _ in drawn}
        if min(n_groups.values()) < n_folds:
            with pytest.raises(ValueError, match=f"outer_folds = {n_folds} is more than the groups of the rarest"):
                make_split(manifest, outer_folds=n_folds, fold=0, seed=seed)
            return
        splits = [make_split(manifest, outer_folds=n_folds, fold=fold, seed=seed) for fold in range(n_folds)]
        tested = np.concatenate([split.rows("test") for split in splits])
        assert sorted(tested) == list(range(len(drawn)))
        for split in splits:
            assert audit_leakage(split.codes, manifest.groups)["crossing_groups"] == 0
            assert {drawn[row][0] for row in split.rows("test")} == set(n_groups)
            assert {drawn[row][0] for row in split.rows("train")} == set(n_groups)

    def test_classes_are_spread_evenly(self, ham10000_metadata):
        manifest = open_source(f"ham10000:{ham10000_metadata}", metadata_only=True)
        counts = np.stack(
            [
                np.bincount(manifest.labels[make_split(manifest, outer_folds=5, fold=fold).rows("test")], minlength=7)
                for fold in range(5)
            ]
        )
        assert (np.ptp(counts, axis=0) <= 1).all()
        assert counts.sum() == len(manifest)

    def test_the_file_and_the_words_tell(self, tmp_path):
        manifest = two_sites()
        split = make_split(manifest, outer_folds=3, fold=2)
        split.write(tmp_path / "split.json")
        again = Split.read(tmp_path / "split.json", manifest)
        assert (again.outer_folds, again.fold, again.words) == (3, 2, "protocol grouped, fold 2 of 3, seed 0")
        with pytest.raises(ValueError, match="say with fold which one"):
            make_split(manifest, outer_folds=3)
        with pytest.raises(ValueError, match="a split of its own, and outer_folds"):
            make_split(places([(0, "a", "")] * 4, ["train", "val"] * 2), outer_folds=2, fold=0)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"hold_out": "site=a", "outer_folds": 5}, "choose one"),
        ({"hold_out": "site=a", "protocol": "paper"}, "'paper' does not: leave one out"),
        ({"outer_folds": 5, "protocol": "external"}, "'external' does not"),
        ({"hold_out": "site=a", "split_file": "split.json"}, "hold_out and split_file"),
        ({"outer_folds": 5, "test_source": "folder:x"}, "outer_folds and test_source"),
        ({"outer_folds": 1}, "outer_folds"),
        ({"outer_folds": 5, "fold": 5}, "fold = 5 is none of the outer folds"),
        ({"fold": 0}, "there are no outer_folds"),
        ({"hold_out": "site"}, "COLUMN=VALUE"),
    ],
)
def test_settings_that_exclude_each_other(settings: dict[str, Any], sentence: str):
    with pytest.raises(ValueError, match=sentence):
        DataConfig(**settings)
