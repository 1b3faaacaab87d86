from __future__ import annotations

import json
from typing import Any

import numpy as np

from tdumpra.data.inspect import inspect_manifest
from tdumpra.data.sources import open_source


def test_counts_sizes_and_masks(ham_folder):
    inspection = inspect_manifest(open_source(f"ham10000:{ham_folder}"))
    assert (inspection["images"], inspection["groups"], inspection["masks"]) == (8, 5, 1)
    assert inspection["classes"]["mel"] == {"images": 2, "groups": 1, "splits": {}}
    assert inspection["classes"]["df"] == {"images": 0, "groups": 0, "splits": {}}
    assert inspection["sizes"] == [{"width": 32, "height": 24, "images": 8}]
    assert inspection["modes"] == {"RGB": 8}
    assert inspection["formats"] == {"JPEG": 8}
    assert inspection["broken"] == {"images": 0, "reasons": {}}
    json.dumps(inspection)


def test_broken_and_missing_files_are_named(ham_folder):
    part = ham_folder / "HAM10000_images_part_1"
    (part / "ISIC_1.jpg").write_text("this is no image")
    whole = (part / "ISIC_3.jpg").read_bytes()
    (part / "ISIC_3.jpg").write_bytes(whole[: len(whole) // 2])
    (part / "ISIC_5.jpg").unlink()
    manifest = open_source(f"ham10000:{ham_folder}", allow_missing=True)
    steps: list[None] = []
    inspection = inspect_manifest(manifest, on_step=lambda: steps.append(None))
    assert set(inspection["broken"]["reasons"]) == {"ISIC_1", "ISIC_3"}
    assert all(inspection["broken"]["reasons"].values())
    assert inspection["broken"]["images"] == 2
    assert inspection["missing"] == {"images": 1, "ids": ["ISIC_5"]}
    assert sum(size["images"] for size in inspection["sizes"]) == 5
    assert len(steps) == 7


def test_headers_alone_overlook_a_file_cut_short(ham_folder):
    part = ham_folder / "HAM10000_images_part_1"
    whole = (part / "ISIC_3.jpg").read_bytes()
    (part / "ISIC_3.jpg").write_bytes(whole[: len(whole) - 100])
    (part / "ISIC_1.jpg").write_bytes(b"")
    manifest = open_source(f"ham10000:{ham_folder}")
    assert set(inspect_manifest(manifest, decode=False)["broken"]["reasons"]) == {"ISIC_1"}
    assert set(inspect_manifest(manifest)["broken"]["reasons"]) == {"ISIC_1", "ISIC_3"}


def test_images_without_a_file_are_not_read_for_their_metadata(ham_folder):
    (ham_folder / "HAM10000_images_part_1" / "ISIC_1.jpg").unlink()
    inspection = inspect_manifest(open_source(f"ham10000:{ham_folder}", metadata_only=True))
    assert inspection["images"] == 8
    assert inspection["broken"]["images"] == 0
    assert inspection["missing"]["ids"] == ["ISIC_1"]


def test_arrays_and_their_splits(tmp_path):
    arrays: dict[str, Any] = {}
    for split, n in (("train", 6), ("test", 3)):
        arrays[f"{split}_images"] = np.zeros((n, 28, 28), np.uint8)
        arrays[f"{split}_labels"] = np.arange(n)[:, None] % 2
    np.savez(tmp_path / "x.npz", **arrays)
    inspection = inspect_manifest(open_source(f"medmnist:{tmp_path / 'x.npz'}"))
    assert inspection["classes"]["0"] == {"images": 5, "groups": 5, "splits": {"train": 3, "test": 2}}
    assert inspection["sizes"] == [{"width": 28, "height": 28, "images": 9}]
    assert inspection["formats"] == {"array": 9}
