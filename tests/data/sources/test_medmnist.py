from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from tdumpra.data.sources import open_source
from tdumpra.errors import SourceError


def arrays(shape: tuple[int, ...] = (28, 28, 3), n_classes: int = 7) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    content: dict[str, Any] = {}
    for split, n in (("train", 14), ("val", 4), ("test", 5)):
        content[f"{split}_images"] = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
        content[f"{split}_labels"] = (np.arange(n) % n_classes).astype(np.uint8)[:, None]
    return content


def test_records_have_the_official_split_and_their_pixels(tmp_path):
    content = arrays()
    np.savez_compressed(tmp_path / "dermamnist.npz", **content)
    manifest = open_source(f"medmnist:{tmp_path / 'dermamnist.npz'}")
    assert manifest.class_names == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    assert [r.split for r in manifest.records] == ["train"] * 14 + ["val"] * 4 + ["test"] * 5
    record = manifest.records[20]
    assert record.id == "test/2"
    assert record.label == 2
    assert np.array_equal(manifest.reader(record), content["test_images"][2])
    again = pickle.loads(pickle.dumps(manifest.reader))
    assert len(pickle.dumps(manifest.reader)) < 1000  # the path travels, the pixels do not
    assert np.array_equal(again(record), content["test_images"][2])


def test_grey_images_have_three_equal_channels(tmp_path):
    content = arrays(shape=(28, 28), n_classes=2)
    np.savez(tmp_path / "breastmnist.npz", **content)
    manifest = open_source(f"medmnist:{tmp_path / 'breastmnist.npz'}")
    assert manifest.class_names == ("0", "1")
    image = manifest.reader(manifest.records[3])
    assert image.shape == (28, 28, 3)
    assert (image == content["train_images"][3][..., None]).all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"train_labels": np.zeros((14, 3), np.uint8)}, "a multi-label task"),
        ({"train_labels": np.zeros((13, 1), np.uint8)}, "14 images and 13 labels"),
        ({"train_labels": np.zeros((14, 1))}, "labels must be whole numbers"),
        ({"train_images": np.zeros((14, 28, 28, 28), np.uint8)}, "three-dimensional sets are not supported"),
        ({"train_images": np.zeros((14, 28, 28))}, "images must be uint8"),
    ],
)
def test_what_is_no_single_label_image_task_is_refused(tmp_path, change, sentence):
    np.savez(tmp_path / "x.npz", **{**arrays(), **change})
    with pytest.raises(SourceError, match=sentence):
        open_source(f"medmnist:{tmp_path / 'x.npz'}")


class Trap:
    """Pickled into an array, it would run when the array is loaded with pickle allowed."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


def test_pickled_arrays_are_not_executed(tmp_path):
    content = arrays()
    content["train_labels"] = np.array([Trap()] * 14, dtype=object)
    np.savez(tmp_path / "x.npz", **content)
    with pytest.raises(SourceError, match="holds Python objects"):
        open_source(f"medmnist:{tmp_path / 'x.npz'}")


def test_a_label_that_asks_for_more_classes_than_there_can_be(tmp_path):
    content = arrays()
    content["train_labels"] = content["train_labels"].astype(np.int64)
    content["train_labels"][3] = 10**12
    np.savez(tmp_path / "x.npz", **content)
    with pytest.raises(SourceError, match="1,000,000,000,001 classes are more than"):
        open_source(f"medmnist:{tmp_path / 'x.npz'}")


@pytest.mark.parametrize("data", [b"", b"text", b"\x80\x04"])
def test_other_files_are_refused(tmp_path, data):
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(SourceError, match=r"not a readable \.npz"):
        open_source(f"medmnist:{tmp_path / 'x.npz'}")


def test_an_archive_of_other_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", p=np.zeros(3))
    with pytest.raises(SourceError, match="is no MedMNIST file"):
        open_source(f"medmnist:{tmp_path / 'x.npz'}")
