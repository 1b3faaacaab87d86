"""Saved outputs that were damaged, cut, or made to hurt: one sentence each, and no more memory than stated."""

from __future__ import annotations

import io
import resource
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

from tdumpra.errors import InputFileError
from tdumpra.foreign import open_npz
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.output_files import read_outputs


def arrays(n: int = 30) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "p": softmax(rng.normal(size=(n, 3)), axis=1),
        "z": rng.normal(size=(n, 4)),
        "y": np.arange(n) % 3,
        "split": np.arange(n) * 3 // n,
        "id": np.array([f"image-{i}" for i in range(n)]),
        "sex": np.array(["f", "m"])[np.arange(n) % 2],
    }


def write(path: Path, kind: str) -> Path:
    content = arrays()
    if kind.endswith("npz"):
        (np.savez_compressed if kind == "packed.npz" else np.savez)(path, allow_pickle=False, **content)
        return path
    columns = {
        f"{name}_{i}" if array.ndim == 2 else name: column
        for name, array in content.items()
        for i, column in enumerate(array.T if array.ndim == 2 else [array])
    }
    frame = pd.DataFrame(columns)
    frame.to_csv(path, index=False) if kind.endswith("csv") else frame.to_parquet(path)
    return path


KINDS = ("plain.npz", "packed.npz", "table.csv", "table.parquet")


def refusals(folder: Path, kind: str, trials: int) -> list[str]:
    """Flip bits in a file and cut it, again and again; return the sentences with which it was refused."""
    whole = write(folder / kind, kind).read_bytes()
    rng = np.random.default_rng(17)
    damaged = folder / f"damaged.{kind.split('.')[1]}"
    found = []
    for trial in range(trials):
        data = bytearray(whole)
        if trial % 5 == 0:
            data = data[: rng.integers(len(whole))]
        for position in rng.integers(len(data), size=1 + trial % 3) if data else ():
            data[position] ^= 1 << rng.integers(8)
        damaged.write_bytes(data)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read_outputs(damaged)
        except InputFileError as error:
            found.append(str(error))
    assert all("damaged" in refusal and "\n" not in refusal for refusal in found)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_read_or_refused_in_one_sentence(tmp_path, kind):
    assert len(refusals(tmp_path, kind, 250)) > 100


@pytest.mark.campaign
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_damaged_files(tmp_path, kind):
    print(f"{kind}: {len(refusals(tmp_path, kind, 2500)):,} of 2,500 refused, no traceback")


@pytest.mark.parametrize("kind", ["plain.npz", "packed.npz"])
def test_an_archive_notices_a_flipped_bit_in_its_numbers(tmp_path, kind):
    path = write(tmp_path / kind, kind)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("z.npy")
    data = bytearray(path.read_bytes())
    data[info.header_offset + 30 + len("z.npy") + 20 + info.compress_size - 60] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputFileError):
        read_outputs(path)


def test_a_parquet_table_with_checksums_notices_a_flipped_bit(tmp_path):
    path = tmp_path / "o.parquet"
    whole = pd.read_parquet(write(path, "table.parquet"))
    whole.to_parquet(path, write_page_checksum=True, compression=None, use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[data.index(whole["z_0"].to_numpy().tobytes()) + 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputFileError):
        read_outputs(path)


def test_a_parquet_name_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "o.parquet"
    whole = pd.read_parquet(write(path, "table.parquet"))
    whole.to_parquet(path, compression=None, use_dictionary=False, write_statistics=False)
    path.write_bytes(path.read_bytes().replace(b"image-17", b"image-\xff7"))
    with pytest.raises(InputFileError, match="damaged"):
        read_outputs(path)


def bomb(path: Path, name: str, shape: tuple[int, ...], held: int) -> None:
    """An archive with one more array, whose header claims ``shape`` of float64, and which holds ``held`` zeros."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": shape})
    np.savez(path, allow_pickle=False, **{key: array for key, array in arrays().items() if key != name})
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(f"{name}.npy", "w", force_zip64=True) as member,
    ):
        member.write(header.getvalue())
        for start in range(0, held, 2**20):
            member.write(bytes(min(2**20, held - start)))


def test_an_array_that_nobody_needs_is_not_unpacked(tmp_path):
    bomb(tmp_path / "o.npz", "attention", (25_000_000, 2), 400_000_000)
    tracemalloc.start()
    read_outputs(tmp_path / "o.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


@pytest.mark.parametrize(
    ("name", "shape", "held"),
    [
        ("z", (10**12, 4), 960),  # a claim with nothing behind it
        ("p", (-30, 3), 0),
        ("z", (30, 10**9), 0),
        ("z", (30, 1_400_000), 336_000_000),  # more columns, and far more bytes than the file has
        ("z", (2**62, 2**62), 0),
    ],
)
def test_a_claim_is_checked_before_memory_is_asked_for(tmp_path, name, shape, held):
    bomb(tmp_path / "o.npz", name, shape, held)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputFileError) as error:
        read_outputs(tmp_path / "o.npz")
    assert "\n" not in str(error.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_a_small_archive_may_not_unfold_without_bounds(tmp_path, monkeypatch):
    bomb(tmp_path / "o.npz", "z", (3_750_000, 10), 300_000_000)
    with open_npz(tmp_path / "o.npz") as archive, pytest.raises(InputFileError, match="would unfold to 300,000,000"):
        archive.load(["z"])
    monkeypatch.setenv("TDUMPRA_LIMITS", "table_growth=2000, table_bytes=1e6")
    with open_npz(tmp_path / "o.npz") as archive, pytest.raises(InputFileError, match="table_bytes"):
        archive.load(["z"])


@pytest.mark.parametrize("kind", ["packed.npz", "table.csv", "table.parquet"])
@pytest.mark.parametrize("limit", ["table_rows=29", "table_columns=3", "table_bytes=300"])
def test_limits_hold_for_every_kind(tmp_path, monkeypatch, kind, limit):
    path = write(tmp_path / kind, kind)
    monkeypatch.setenv("TDUMPRA_LIMITS", limit)
    with pytest.raises(InputFileError, match=limit.partition("=")[0]):
        read_outputs(path)


def test_a_label_of_a_million_millions_asks_for_no_memory():
    z, labels = np.eye(3, dtype=np.float32), np.array([0, 1, 10**12])
    with pytest.raises(ValueError, match="labels go up to 1000000000000 in 3 rows, and class 2 has none"):
        PrototypeBank.fit(z, labels, 1)


@pytest.mark.parametrize("name", ["id", "group", "sex", "classes"])
def test_letters_that_are_no_text_are_refused(tmp_path, name):
    """NumPy stores half of a surrogate pair, and no file of ours could hold the name."""
    content = arrays()
    texts = np.array([f"\ud800{i}" for i in range(3 if name == "classes" else len(content["y"]))])
    np.savez(tmp_path / "a.npz", allow_pickle=False, **{**content, name: texts})
    with pytest.raises(InputFileError, match="no Unicode text"):
        read_outputs(tmp_path / "a.npz")


def test_classes_in_a_matrix_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", allow_pickle=False, **arrays(), classes=np.array([["a"], ["b"], ["c"]]))
    with pytest.raises(InputFileError, match="list of names"):
        read_outputs(tmp_path / "a.npz")
