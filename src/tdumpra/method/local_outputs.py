"""One set of saved outputs, for a model that exists: labels and the column ``split`` may be missing."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdumpra import checks
from tdumpra.errors import InputFileError
from tdumpra.method.output_files import NETWORK, read_arrays
from tdumpra.method.outputs import are_names
from tdumpra.method.probabilities import probabilities
from tdumpra.method.rows import UNLABELLED, KeptRows
from tdumpra.writing import write_bytes

SUFFIXES = (".npz", ".csv", ".parquet")
_TAKEN = frozenset(
    {"p", "logits", "z", "zt", "pt", "p_second", "features", "y", "split", "group", "id", "classes", NETWORK}
)
_TEST = 2

Array = NDArray[Any]


class LocalOutputs(NamedTuple):
    """A file's rows; of a file with a column ``split``, its test rows."""

    p: Array
    z: Array
    labels: list[str | int | None]  # names or numbers of classes; None where there is no label
    groups: Array | None
    ids: Array | None
    features: Array | None
    metadata: Mapping[str, Array]
    class_names: tuple[str, ...]  # in the order of p's columns; empty where the file has only numbers
    left_out: int  # rows of train and val
    network: str | None  # fingerprint of the networks that gave the rows, where the file says it


def read_local_outputs(path: Path) -> LocalOutputs:
    """Read and check the arrays of a file."""
    arrays = read_arrays(path, ("p", "z"))
    try:
        return _checked(arrays)
    except (ValueError, TypeError) as error:
        raise InputFileError(f"{path}: {error}") from error


def _checked(arrays: Mapping[str, Array]) -> LocalOutputs:
    p = probabilities(arrays)
    n = len(p)
    for name, array in arrays.items():
        if name not in ("classes", NETWORK) and (array.ndim == 0 or len(array) != n):
            raise ValueError(f"{name} has {len(array) if array.ndim else 'no'} rows where p has {n}")
    names = tuple(np.atleast_1d(arrays["classes"]).astype(np.str_).tolist()) if "classes" in arrays else ()
    if names and not len(set(names)) == len(names) == p.shape[1]:
        raise ValueError(f"classes must name each of the {p.shape[1]} classes of p once, and holds {list(names)}")
    z = checks.check_embeddings(arrays.get("zt", arrays.get("z")), "z").numpy()
    features = arrays.get("features")
    if features is not None:
        features = checks.check_embeddings(features, "features").numpy()
    labels = _labels(arrays["y"], p.shape[1], names) if "y" in arrays else [None] * n
    keep = np.ones(n, dtype=bool)
    if "split" in arrays:
        keep = checks.check_split(arrays["split"], n_rows=n) == _TEST
        if not keep.any():
            raise ValueError("split holds no test rows: leave the column out to take all rows")
    metadata = {name: column[keep] for name, column in arrays.items() if name not in _TAKEN and column.ndim == 1}
    groups = checks.check_groups(arrays.get("group"), "group", n_rows=n)
    ids = checks.check_groups(arrays.get("id"), "id", n_rows=n)
    return LocalOutputs(
        p=p[keep],
        z=z[keep],
        labels=[label for label, kept in zip(labels, keep.tolist(), strict=True) if kept],
        groups=None if groups is None else groups[keep],
        ids=None if ids is None else ids[keep],
        features=None if features is None else features[keep],
        metadata=metadata,
        class_names=names,
        left_out=int((~keep).sum()),
        network=_network(arrays),
    )


def _network(arrays: Mapping[str, Array]) -> str | None:
    found = np.unique(arrays[NETWORK].astype(np.str_)) if NETWORK in arrays else np.empty(0)
    if len(found) > 1:
        raise ValueError(f"{NETWORK} names several networks: {', '.join(found[:3].tolist())}")
    return str(found[0]) if len(found) else None


def write_local_outputs(
    path: Path, rows: KeptRows, names: Sequence[str], metadata: Mapping[str, Array], network: str
) -> None:
    """Write rows as a file that :func:`read_local_outputs` reads, in full precision."""
    arrays: dict[str, Any] = {
        "p": rows.p, "z": rows.z, "features": rows.features, "id": rows.ids, "group": rows.groups,
        "y": np.array(["" if label == UNLABELLED else names[label] for label in rows.y.tolist()], np.str_),
        "classes": np.array(names[: rows.p.shape[1]], np.str_), NETWORK: np.array(network),
        **{name: column for name, column in metadata.items() if name not in _TAKEN},
    }  # fmt: skip
    if not rows.grouped.any():
        del arrays["group"]
    if rows.features is None:
        del arrays["features"]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # numpy.savez knows no column that is called file
        for name, column in arrays.items():
            place = zipfile.ZipInfo(f"{name}.npy")
            place.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(place, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, column, allow_pickle=False)
    write_bytes(path, buffer.getvalue())


def _labels(y: Array, n_classes: int, names: tuple[str, ...]) -> list[str | int | None]:
    """Return each label; empty text, -1 and NaN are none."""
    if are_names(y):
        words = [word.decode() if isinstance(word, bytes) else word for word in y.tolist()]
        return [word if isinstance(word, str) and word else None for word in words]
    numbers = y.astype(np.float64)
    missing = np.isnan(numbers) | (numbers == -1)
    known = numbers[~missing]
    bad = known[(known != np.rint(known)) | (known < 0) | (known >= n_classes)]
    if len(bad):
        raise ValueError(
            f"y must number the {n_classes} classes from 0, and be -1 where there is no label; it holds {bad[0]:g}"
        )
    return [
        None if absent else names[int(number)] if names else int(number)
        for number, absent in zip(numbers.tolist(), missing.tolist(), strict=True)
    ]
