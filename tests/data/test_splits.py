from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdumpra.data.leakage import audit_leakage
from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources import open_source, with_external_test
from tdumpra.data.sources.files import FileReader
from tdumpra.data.splits import Split, make_split
from tdumpra.errors import ArtifactError

CLASSES = ("akiec", "bcc", "mel", "nv")


def make_manifest(
    labels: Sequence[int],
    groups: Sequence[str] | None = None,
    splits: Sequence[str | None] | None = None,
    *,
    name: str = "toy",
    class_names: tuple[str, ...] = CLASSES,
    prefix: str = "i",
) -> Manifest:
    records = tuple(
        Record(
            id=f"{prefix}{row}",
            path=None,
            label=int(label),
            group=groups[row] if groups is not None else f"{prefix}{row}",
            split=splits[row] if splits is not None else None,
        )
        for row, label in enumerate(labels)
    )
    return Manifest(name, class_names, records, FileReader())


def long_tail(n: int = 2000, seed: int = 0) -> Manifest:
    """Lesions with one to four images of a class each, classes from 2 % to 70 %."""
    rng = np.random.default_rng(seed)
    labels: list[int] = []
    groups: list[str] = []
    while len(labels) < n:
        size = rng.integers(1, 5)
        labels += [rng.choice(4, p=[0.02, 0.08, 0.2, 0.7])] * size
        groups += [f"g{len(labels)}"] * size
    return make_manifest(labels, groups)


rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=60)


@given(rows, st.integers(0, 5), st.sampled_from([0.1, 0.2, 0.37, 0.5]))
def test_no_group_is_on_two_sides_and_every_class_is_trained(drawn, seed, share):
    labels, groups = [label for label, _ in drawn], [f"g{group}" for _, group in drawn]
    manifest = make_manifest(labels, groups)
    split = make_split(manifest, seed=seed, test_share=share)
    audit = audit_leakage(split.codes, groups)
    assert audit["crossing_groups"] == 0
    in_train = {labels[row] for row in split.rows("train")}
    assert in_train == set(labels)
    assert sorted(np.concatenate([split.rows(part) for part in ("train", "val", "test")])) == list(range(len(labels)))


@given(rows, st.integers(0, 5))
def test_where_a_class_has_pure_groups_enough_each_part_sees_it(drawn, seed):
    labels = [label for label, _ in drawn]
    groups = [f"{label}-{group}" for label, group in drawn]  # no group of two classes
    split = make_split(make_manifest(labels, groups), seed=seed)
    for label in set(labels):
        n_groups = len({group for group in groups if group.startswith(f"{label}-")})
        seen = {split.codes[row] for row in range(len(labels)) if labels[row] == label}
        assert len(seen) == min(n_groups, 3)


@pytest.mark.parametrize("protocol", ["grouped", "paper"])
@pytest.mark.parametrize("seed", [0, 1])
def test_shares_are_kept_class_by_class(protocol, seed):
    manifest = long_tail()
    split = make_split(manifest, protocol, seed=seed)
    assert split.notes == ()
    for label in range(4):
        codes = split.codes[manifest.labels == label]
        assert (codes == 2).mean() == pytest.approx(0.2, abs=0.02)
        assert (codes == 1).sum() / (codes < 2).sum() == pytest.approx(0.1, abs=0.02)


def test_groups_of_all_sizes_are_on_both_sides():
    manifest = long_tail(6000)
    split = make_split(manifest)
    sizes = {part: len(split.rows(part)) / len(set(manifest.groups[split.rows(part)])) for part in ("train", "test")}
    assert sizes["test"] == pytest.approx(sizes["train"], rel=0.06)


def test_the_paper_protocol_splits_by_image_and_leaks():
    manifest = long_tail()
    split = make_split(manifest, "paper")
    assert audit_leakage(split.codes, manifest.groups)["share"] > 0.5


def test_a_large_group_is_taken_where_it_brings_a_class_nearer_to_its_share():
    # eight lesions of five images: of the 8 images asked, one lesion gives 5 and two give 10, which is nearer
    manifest = make_manifest([0] * 40 + [1] * 40, [f"{row // 5}" for row in range(80)])
    split = make_split(manifest)
    assert len(split.rows("test")) == 20


def test_what_groups_do_not_allow_is_said():
    # three lesions of forty images each: no fifth of them can be had
    manifest = make_manifest(
        [0] * 120 + [1] * 100, [f"g{row // 40}" for row in range(120)] + [f"h{r}" for r in range(100)]
    )
    split = make_split(manifest)
    assert any(
        note.startswith("akiec: 40 of its 120 images (33.3%) in test, where 20% were asked: its groups do not allow")
        for note in split.notes
    )
    assert not any(note.startswith("bcc") for note in split.notes)


@pytest.mark.parametrize("protocol", ["grouped", "paper"])
def test_a_class_that_is_too_small_is_not_blamed_on_its_groups(protocol):
    # four images in groups of their own: a fifth of them is 0.8, a tenth of the other three 0.3, and each gets one
    manifest = make_manifest([0] * 4 + [1] * 100)
    split = make_split(manifest, protocol)
    assert split.notes == (
        "akiec: 1 of its 4 images (25.0%) in test, where 20% were asked: it has too few images for such a share",
        "akiec: 1 of its 3 images (33.3%) in val, where 10% were asked: it has too few images for such a share",
    )


def test_the_seed_decides():
    manifest = long_tail(400)
    first, again, other = (make_split(manifest, seed=seed) for seed in (3, 3, 4))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint


def test_the_order_of_records_does_not_decide():
    manifest = long_tail(400)
    turned = Manifest(manifest.name, manifest.class_names, manifest.records[::-1], manifest.reader)
    first, second = make_split(manifest), make_split(turned)
    assert dict(zip(first.ids, first.codes, strict=True)) == dict(zip(second.ids, second.codes, strict=True))


@pytest.mark.parametrize("protocol", ["grouped", "paper", "external"])
def test_a_complete_split_of_the_source_is_kept(protocol):
    words = ["train", "val", "test", "train", "test", "val"]
    split = make_split(make_manifest([0, 0, 0, 1, 1, 1], splits=words), protocol)
    assert list(split.codes) == [0, 1, 2, 0, 2, 1]
    assert split.notes == ()


def test_parts_that_the_source_does_not_name_are_drawn_from_train():
    words = ["train"] * 80 + ["test"] * 20
    split = make_split(make_manifest([0, 1] * 50, splits=words))
    assert (split.codes[80:] == 2).all()
    assert (split.codes[:80] == 1).sum() == 8
    assert split.notes == ("the source names no images for val: drawn from train",)
    alone = make_split(make_manifest([0, 1] * 50, splits=["train"] * 100))
    assert alone.notes[0] == "the source names no images for test and val: drawn from train"


def test_images_without_a_word_follow_their_group():
    manifest = make_manifest(
        [0, 0, 1, 1, 0, 1], ["a", "a", "b", "c", "d", "e"], ["test", None, "val", "train", None, None]
    )
    split = make_split(manifest)
    assert list(split.codes) == [2, 2, 1, 0, 0, 0]
    assert "1 images follow their group into the part that the source names" in split.notes


def test_a_source_whose_own_split_leaks_is_refused_except_to_look():
    manifest = make_manifest([0, 0, 1, 1], ["a", "a", "b", "c"], ["train", "test", "train", "test"])
    with pytest.raises(ValueError, match="'a' is in train and test"):
        make_split(manifest)
    assert list(make_split(manifest, "paper").codes[[1, 3]]) == [2, 2]


def test_the_external_protocol_needs_a_test_set():
    with pytest.raises(ValueError, match="needs a test set of its own"):
        make_split(make_manifest([0, 1] * 10), "external")


def test_an_external_test_set_is_joined_by_class_name():
    train = make_manifest([0, 1, 2, 3] * 10)
    test = make_manifest([0, 1], name="outside", class_names=("NV", "AKIEC"), prefix="x")
    joined = with_external_test(train, test)
    assert [(r.id, joined.class_names[r.label]) for r in joined.records[-2:]] == [("x0", "nv"), ("x1", "akiec")]
    split = make_split(joined, "external")
    assert list(split.rows("test")) == [40, 41]
    assert len(split.rows("val")) == 4


def test_a_source_of_test_images_alone_cannot_be_trained_on():
    with pytest.raises(ValueError, match="holds no training images"):
        make_split(make_manifest([0, 1], splits=["test", "test"]), "external")


def test_write_and_read_back(tmp_path):
    manifest = long_tail(300)
    split = make_split(manifest, seed=7)
    split.write(tmp_path / "split.json")
    again = Split.read(tmp_path / "split.json", manifest)
    assert again.fingerprint == split.fingerprint
    assert (again.protocol, again.seed, again.notes) == ("grouped", 7, split.notes)
    assert np.array_equal(again.codes, split.codes)
    assert not again.codes.flags.writeable


def test_a_split_of_another_data_set_is_refused(tmp_path):
    manifest = long_tail(300)
    make_split(manifest).write(tmp_path / "split.json")
    fewer = Manifest(manifest.name, manifest.class_names, manifest.records[2:], manifest.reader)
    with pytest.raises(ArtifactError, match="2 images"):
        Split.read(tmp_path / "split.json", fewer)
    regrouped = make_manifest(list(manifest.labels))
    with pytest.raises(ArtifactError, match="labels, groups or classes"):
        Split.read(tmp_path / "split.json", regrouped)


def test_an_edited_split_is_refused(tmp_path):
    manifest = long_tail(300)
    path = tmp_path / "split.json"
    make_split(manifest).write(path)
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(ArtifactError, match="altered or cut short"):
        Split.read(path, manifest)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"protocol": "random"}, "protocol must be one of .*, not 'random'"),
        ({"test_share": 0.0}, "test_share must be above 0 and at most 0.5, not 0.0"),
        ({"val_share": 0.9}, "val_share must be above 0"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_split(make_manifest([0, 1] * 5), **arguments)


def test_a_part_has_a_name():
    with pytest.raises(ValueError, match="parts train, val, test, not 'dev'"):
        make_split(make_manifest([0, 1] * 5)).rows("dev")


@pytest.mark.parametrize("seed", range(3))
def test_the_real_classes_are_within_half_a_per_cent(ham10000_metadata, seed):
    manifest = open_source(f"ham10000:{ham10000_metadata}", metadata_only=True)
    split = make_split(manifest, seed=seed)
    assert split.notes == ()
    for label in range(7):
        codes = split.codes[manifest.labels == label]
        assert (codes == 2).mean() == pytest.approx(0.2, abs=0.005)
        assert (codes == 1).sum() / (codes < 2).sum() == pytest.approx(0.1, abs=0.01)


def test_validation_folds_share_no_group_and_leave_test_alone() -> None:
    labels = np.random.default_rng(0).integers(0, 3, 600)
    groups = [f"g{i // 2}" for i in range(600)]
    labels = np.repeat(labels[::2], 2)  # a lesion has one label
    manifest = make_manifest(labels.tolist(), groups)
    splits = [make_split(manifest, val_share=0.25, val_fold=fold) for fold in range(4)]
    assert np.array_equal(splits[0].codes, make_split(manifest, val_share=0.25).codes)
    held_out = [set(np.asarray(groups)[split.rows("val")]) for split in splits]
    for i, first in enumerate(held_out):
        assert len(splits[i].rows("val")) == pytest.approx(120, abs=6)
        assert np.array_equal(splits[i].rows("test"), splits[0].rows("test"))
        for second in held_out[:i]:
            assert not first & second
    with pytest.raises(ValueError, match="gives 4 folds"):
        make_split(manifest, val_share=0.25, val_fold=4)


def test_a_source_with_its_own_validation_part_has_no_other_fold() -> None:
    words = ["train", "val", "test", "train", "val", "test"]
    with pytest.raises(ValueError, match="its own validation"):
        make_split(make_manifest([0, 0, 0, 1, 1, 1], splits=words), val_fold=1)
