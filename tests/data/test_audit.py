from __future__ import annotations

import json

import numpy as np
import pytest
from toy_audit import toy_audit

from tdumpra.artifacts import jsonable
from tdumpra.data.audit import Audit
from tdumpra.data.duplicates import DuplicatePair
from tdumpra.data.manifest import Manifest
from tdumpra.data.sources import open_source
from tdumpra.data.splits import make_split


def test_leaks_are_counted_by_class_name():
    document = toy_audit(["i0", "i1", "i2", "i3"]).document()
    assert document["leak"]["images"] == 1
    assert document["leak"]["share"] == 0.5
    assert document["leak"]["groups"] == 1
    assert document["leak"]["by_class"]["mel"] == {"images": 1, "share": 1.0, "of": 1, "groups": 1}
    assert document["leak"]["by_class"]["nv"] == {"images": 0, "share": 0.0, "of": 1, "groups": 0}
    assert document["splits"]["test"] == {"images": 2, "groups": 2, "by_class": {"mel": 1, "nv": 1}}
    assert document["near_duplicates"] is None
    assert document["notes"][0] == "a note"
    assert document["notes"][-1].startswith("50.0% of the test images share a group with training")
    json.dumps(jsonable(document), allow_nan=False)


def test_near_duplicates_have_a_key_of_their_own():
    pairs = [DuplicatePair(2, 3, 4, 0.9), DuplicatePair(0, 2, 9, 0.6)]
    near = toy_audit(["i0", "i1", "i2", "i3"], pairs).document()["near_duplicates"]
    assert (near["pairs"], near["crossing"], near["other_label"]) == (2, 1, 1)
    assert near["listed"][0] == {
        "ids": ["i2", "i3"],
        "groups": ["b", "c"],
        "labels": ["nv", "nv"],
        "splits": ["train", "test"],
        "similarity": 0.9,
        "distance": 4,
    }


def mean_leak(manifest: Manifest, melanoma: str, seeds: range = range(8)) -> tuple[float, float]:
    """The share of leaked test images at the image-level protocol, overall and of melanomas; one draw strays by 1 %."""
    leaks = [Audit(manifest, make_split(manifest, "paper", seed=seed)).document()["leak"] for seed in seeds]
    overall = np.mean([leak["share"] for leak in leaks])
    return float(overall), float(np.mean([leak["by_class"][melanoma]["share"] for leak in leaks]))


def expected_leak(manifest: Manifest) -> float:
    """An image of a lesion with m images leaks unless the m - 1 others are test images too: 1 - 0.2^(m-1)."""
    _, inverse, sizes = np.unique(manifest.groups, return_inverse=True, return_counts=True)
    return float((1 - 0.2 ** (sizes[inverse] - 1.0)).mean())


def test_a_third_of_the_real_test_images_leak_by_image_and_none_by_group(ham10000_metadata):
    manifest = open_source(f"ham10000:{ham10000_metadata}", metadata_only=True)
    overall, melanoma = mean_leak(manifest, "mel")
    assert overall == pytest.approx(0.36, abs=0.01)
    assert overall == pytest.approx(expected_leak(manifest), abs=0.01)
    assert melanoma == pytest.approx(0.65, abs=0.04)
    assert Audit(manifest, make_split(manifest, "grouped")).document()["leak"]["images"] == 0


@pytest.fixture(scope="session")
def full_ham10000(isic2019_tables, tmp_path_factory):
    """The metadata of all 10,015 images of HAM10000, which ISIC 2019 contains with their lesions."""
    dx = {"MEL": "mel", "NV": "nv", "BCC": "bcc", "AK": "akiec", "SCC": "akiec"}
    dx |= {name: name.lower() for name in ("BKL", "DF", "VASC")}
    whole = open_source(f"isic2019:{isic2019_tables}", metadata_only=True)
    rows = [
        f"{record.meta['lesion_id']},{record.id},{dx[whole.class_names[record.label]]}"
        for record in whole.records
        if record.meta.get("lesion_id", "").startswith("HAM_")
    ]
    folder = tmp_path_factory.mktemp("full")
    (folder / "HAM10000_metadata.csv").write_text("\n".join(["lesion_id,image_id,dx", *rows]))
    return folder


def test_the_leak_of_the_full_metadata(full_ham10000):
    manifest = open_source(f"ham10000:{full_ham10000}", metadata_only=True)
    assert len(manifest) == 10015
    overall, melanoma = mean_leak(manifest, "mel")
    assert overall == pytest.approx(0.389, abs=0.01)
    assert melanoma == pytest.approx(0.69, abs=0.03)


def test_the_leak_of_isic2019(isic2019_tables):
    manifest = open_source(f"isic2019:{isic2019_tables}", metadata_only=True)
    overall, _ = mean_leak(manifest, "MEL", range(3))
    assert overall == pytest.approx(0.603, abs=0.01)
    assert Audit(manifest, make_split(manifest)).document()["leak"]["images"] == 0
