from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.sources import with_external_test
from tdumpra.errors import SourceError


@dataclass(frozen=True)
class Flat:
    value: int

    def __call__(self, record: Record) -> np.ndarray:
        return np.full((8, 8, 3), self.value, np.uint8)


def manifest(
    name: str, ids: str, class_names: tuple[str, ...], *, split: str | None = None, value: int = 1
) -> Manifest:
    records = tuple(Record(image, None, row % len(class_names), image, split) for row, image in enumerate(ids))
    return Manifest(name, class_names, records, Flat(value), notes=(f"of {name}",), missing=(f"{name}-gone",))


def test_classes_are_matched_by_name_and_each_image_keeps_its_reader():
    joined = with_external_test(manifest("a", "abc", ("mel", "nv")), manifest("b", "xy", ("NV", "MEL"), value=9))
    assert joined.name == "a+b"
    assert [(r.id, joined.class_names[r.label], r.split) for r in joined.records] == [
        ("a", "mel", None), ("b", "nv", None), ("c", "mel", None), ("x", "nv", "test"), ("y", "mel", "test"),
    ]  # fmt: skip
    assert [int(joined.reader(r).max()) for r in joined.records] == [1, 1, 1, 9, 9]
    assert joined.notes == ("of a", "of b")
    assert joined.missing == ("a-gone", "b-gone")


def test_the_training_sources_own_test_images_are_left_out_and_counted():
    train = manifest("a", "abc", ("mel", "nv"))
    train = Manifest(
        "a", train.class_names, (*train.records[:2], *manifest("a", "t", ("mel",), split="test").records), Flat(1)
    )
    joined = with_external_test(train, manifest("b", "x", ("mel", "nv")))
    assert [r.id for r in joined.records] == ["a", "b", "x"]
    assert len(joined.notes) == 2
    assert joined.reader == Flat(1)


@pytest.mark.parametrize(
    ("ids", "class_names", "named"), [("x", ("scc", "nv"), "'scc'"), ("xb", ("mel", "nv"), "b: a test set")]
)
def test_an_unknown_class_or_a_shared_image_is_refused(ids, class_names, named):
    with pytest.raises(SourceError, match=named):
        with_external_test(manifest("a", "abc", ("mel", "nv")), manifest("b", ids, class_names))
