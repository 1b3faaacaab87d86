"""Check what a user hands in, and say in a sentence what is wrong with it.

Each function takes one raw argument and its name, and returns it as a clean array or raises ``ValueError`` or
``TypeError``. The kernels behind them check nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdumpra.core.rowwise import by_rows
from tdumpra.values import SPLITS as SPLITS
from tdumpra.values import check_choice as check_choice
from tdumpra.values import check_count as check_count
from tdumpra.values import check_positive as check_positive
from tdumpra.values import check_unit_interval as check_unit_interval
from tdumpra.values import misnamed_group as misnamed_group

ROW_SUM_TOLERANCE = 1e-3  # probabilities saved as float16 stray this far from one ...
BFLOAT16_TOLERANCE = 4e-3  # ... and those of eight bits this far: each is off by up to one part in 512

_NO_SCALED_PROBABILITY = 1.5  # what lies above is hardly a probability that was weighted or rounded
_TEXTS_AT_ONCE = 2**16  # names whose letters are looked at together
_SHOWN = 3  # how many offending row numbers a message names
_WORDS = 8  # of a list in a message


def check_probabilities(values: Any, name: str, *, n_classes: int | None = None) -> Tensor:
    """Check rows of class probabilities: two-dimensional, at least two classes, in [0, 1], summing to one."""
    p = _float_matrix(values, name)
    if p.shape[1] < 2:
        raise ValueError(f"{name} has {p.shape[1]} column(s); a row needs the probabilities of at least two classes")
    if n_classes is not None and p.shape[1] != n_classes:
        raise ValueError(f"{name} has {p.shape[1]} classes where {n_classes} are expected")
    finite = by_rows(lambda part: torch.isfinite(part).all(1), p)
    if not finite.all():
        raise ValueError(f"{name} has NaN or infinite values in {_rows(~finite)}")
    tolerance = BFLOAT16_TOLERANCE if p.dtype == torch.bfloat16 else ROW_SUM_TOLERANCE
    _check_range(p, name, tolerance)
    sums = by_rows(lambda part: _at_least_float32(part).sum(1), p)
    off = (sums - 1).abs() > tolerance
    if off.any():
        row = int(off.nonzero()[0])
        raise ValueError(
            f"{name} must sum to one in each row (within {tolerance:g}); row {row} sums to {sums[row]:.4f}, "
            f"and {int(off.sum())} of {len(p)} rows are off"
        )
    return p


def _at_least_float32(p: Tensor) -> Tensor:
    return p if p.dtype in (torch.float32, torch.float64) else p.float()


def _check_range(p: Tensor, name: str, tolerance: float) -> None:
    outside = by_rows(lambda part: ((part < 0) | (_at_least_float32(part) > 1 + tolerance)).any(1), p)
    if not outside.any():
        return
    row = int(outside.nonzero()[0])
    values = _at_least_float32(p[row])
    total = float(values.sum())
    hint = ""
    if abs(total - 1) > tolerance:
        logits = bool((values < 0).any() or (values > _NO_SCALED_PROBABILITY).any())
        hint = "these look like logits: take their softmax first" if logits else f"the row sums to {total:.4f}"
    raise ValueError(
        f"{name} holds {values[(values < 0) | (values > 1)][0]:.4g} in row {row}, and a probability lies between 0 and "
        f"1{f' ({hint})' if hint else ''}; the same goes for {_rows(outside)}"
    )


def check_embeddings(values: Any, name: str, *, width: int | None = None) -> Tensor:
    """Check rows that have a direction: finite, not zero, of the expected width."""
    z = _float_matrix(values, name)
    if z.shape[1] == 0:
        raise ValueError(f"{name} has no columns")
    if width is not None and z.shape[1] != width:
        raise ValueError(f"{name} has width {z.shape[1]}, and the bank was built on embeddings of width {width}")
    check_directions(z, name)
    return z


def row_norms(z: Tensor) -> Tensor:
    """Return the length of each row, in at least float32; a row with a NaN or an infinity has such a length."""
    wide = torch.promote_types(z.dtype, torch.float32)
    norms = by_rows(lambda part: torch.linalg.vector_norm(part, dim=1, dtype=wide), z)
    extreme = (norms < 1e-15) | (norms > 1e15)  # where squares leave float32's range, and a direction is still there
    if extreme.any():
        rows = z[extreme].double()
        largest = rows.abs().amax(1, keepdim=True)
        rows = rows / torch.where(largest > 0, largest, 1)  # so that squares do not leave float64's range either
        norms[extreme] = (largest[:, 0] * torch.linalg.vector_norm(rows, dim=1)).to(norms.dtype)
    return norms


def check_directions(z: Tensor, name: str) -> None:
    """Refuse rows without a direction, and those that are too long for their type."""
    norms = row_norms(z)
    finite = torch.isfinite(norms)
    if not finite.all():
        broken = ~torch.isfinite(z).all(1)
        if broken.any():
            raise ValueError(f"{name} has NaN or infinite values in {_rows(broken)}")
        kind = str(norms.dtype).removeprefix("torch.")
        raise ValueError(f"{name} has rows whose length {kind} cannot hold: {_rows(~finite)}; scale them down")
    if not (norms > 0).all():
        raise ValueError(f"{name} has all-zero rows, which have no direction: {_rows(norms == 0)}")


def check_labels(values: Any, name: str, *, n_rows: int, n_classes: int | None = None) -> Tensor:
    """Check integer class labels, one per row, from 0 to ``n_classes - 1``."""
    labels = _to_array(values)
    if labels.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, and has shape {labels.shape}")
    if labels.dtype == bool:
        labels = labels.astype(np.int64)
    if not np.issubdtype(labels.dtype, np.integer):
        raise TypeError(f"{name} must be integers that number the classes from 0; {_instead_of_integers(labels)}")
    if len(labels) != n_rows:
        raise ValueError(f"{name} has {len(labels)} entries for {n_rows} rows")
    top = n_classes if n_classes is not None else np.inf
    outside = (labels < 0) | (labels >= top)
    if outside.any():
        row = int(outside.nonzero()[0][0])
        limit = f"0 to {n_classes - 1}" if n_classes is not None else "0 upwards"
        raise ValueError(f"{name} must be in the range {limit}; row {row} holds {labels[row]}")
    return torch.from_numpy(labels.astype(np.int64))


def check_groups(values: Any, name: str, *, n_rows: int) -> NDArray[np.str_] | None:
    """Return group names (lesion, patient, ...) as strings, one per row, or ``None``."""
    if values is None:
        return None
    groups = _to_array(values)
    if groups.shape != (n_rows,):
        raise ValueError(f"{name} needs one entry per row: {n_rows}, not shape {groups.shape}")
    missing = _missing(groups)
    if missing.any():
        raise ValueError(
            f"{name} has empty entries in {_rows(torch.from_numpy(missing))}; give each lone row its own name"
        )
    if groups.dtype.kind in "iu":  # NumPy would take 21 letters for each, of four bytes
        letters = max(len(str(groups.min())), len(str(groups.max()))) if len(groups) else 1
        return groups.astype(f"<U{letters}")
    if groups.dtype.kind in "fO":  # pandas makes 7.0 of 7 where a cell is empty: the lesion is the same
        groups = np.array([int(group) if _is_whole(group) else group for group in groups], dtype=object)
    return check_texts(groups.astype(np.str_, copy=False), name)


def check_texts(texts: NDArray[np.str_], name: str) -> NDArray[np.str_]:
    """Refuse letters that no file can hold: halves of a surrogate pair, which NumPy stores like any other."""
    for start in range(0, len(texts) if texts.dtype.itemsize else 0, _TEXTS_AT_ONCE):
        part = texts[start : start + _TEXTS_AT_ONCE]
        letters = np.ascontiguousarray(part, part.dtype.newbyteorder("=")).view(np.uint32)
        if ((letters >= 0xD800) & (letters < 0xE000)).any():
            raise ValueError(f"{name} holds letters that are no Unicode text (half of a surrogate pair)")
    return texts


def _missing(groups: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the entries that name nothing."""
    if groups.dtype.kind in "biu":
        return np.zeros(len(groups), dtype=bool)
    if groups.dtype.kind == "U":
        empty: NDArray[np.bool_] = groups == ""
        return empty
    return np.array([_is_missing(group) for group in groups.tolist()], dtype=bool)


def check_split(values: Any, name: str = "split", *, n_rows: int | None = None) -> NDArray[np.int8]:
    """Return the split of each row as 0, 1 or 2, from those codes or from the words train, val, test."""
    split = _to_array(values)
    if split.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, and has shape {split.shape}")
    if n_rows is not None and len(split) != n_rows:
        raise ValueError(f"{name} needs one entry per row: {n_rows}, not shape {split.shape}")
    codes = {**{word: code for code, word in enumerate(SPLITS)}, **{str(code): code for code in range(3)}}
    found, inverse = np.unique(split if split.dtype.kind in "iuU" else split.astype(np.str_), return_inverse=True)
    distinct = [str(value) for value in found]
    unknown = [word for word in distinct if word not in codes]
    if unknown:
        raise ValueError(f"{name} holds {unknown[0]!r}; use train, val, test or 0, 1, 2")
    return np.array([codes[word] for word in distinct], dtype=np.int8)[inverse]


def check_class_names(names: Sequence[str], n_classes: int) -> tuple[str, ...]:
    """Check that there is a name for each class."""
    if len(names) != n_classes:
        raise ValueError(f"class_names has {len(names)} entries for {n_classes} classes")
    return tuple(map(str, names))


def _to_array(values: Any) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _float_matrix(values: Any, name: str) -> Tensor:
    matrix = to_tensor(values, name)
    if matrix.ndim != 2:
        raise ValueError(f"{name} must be two-dimensional (rows × columns), and has shape {tuple(matrix.shape)}")
    if not matrix.dtype.is_floating_point:
        raise TypeError(f"{name} must hold floating-point numbers, not {matrix.dtype}")
    return matrix


def to_tensor(values: Any, name: str) -> Tensor:
    """Return a tensor over the same memory where that is possible; ``values`` is never written to."""
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.asarray(values)
        if array.dtype == object or array.dtype.kind in "USOMmV":
            raise TypeError
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array of numbers, {_instead_of_numbers(values)}") from error
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype == np.longdouble:
        array = array.astype(np.float64)
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy()  # torch can neither step backwards nor by odd bytes
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_ReadOnly(array)))


class _ReadOnly:
    """Read-only memory, of a mapped file for instance, as torch wants it: it warns of what nobody here writes to."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array  # keeps the memory alive
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def _instead_of_numbers(values: Any) -> str:
    """Tell what was given as numbers: the first text in an array, or else its type."""
    cells = values.ravel().tolist() if isinstance(values, np.ndarray) and values.dtype.kind in "USO" else []
    text = next((cell for cell in cells if isinstance(cell, str | bytes)), None)
    if text is None:
        return f"not {type(values).__name__}"
    comma = isinstance(text, str) and re.fullmatch(r"\s*[-+]?\d*,\d+(?:[eE][-+]?\d+)?\s*", text)
    return f"and it holds {text!r}{': write a decimal point, not a comma' if comma else ''}"


def _is_whole(value: Any) -> bool:
    return isinstance(value, float | np.floating) and float(value).is_integer()


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value) or value == ""
    except TypeError:  # pandas' NA is neither equal nor unequal to itself
        return True


def _instead_of_integers(labels: NDArray[Any]) -> str:
    """Tell what was given as labels, and how to number them."""
    values = labels.tolist()
    if labels.size and all(isinstance(value, str | bytes) for value in values):
        return (
            f"it holds names, such as {values[0]!r}: number them by one list of names for all splits, for example  "
            "[names.index(label) for label in labels]"
        )
    missing = np.array([_is_missing(value) for value in values], dtype=bool)
    if missing.any():
        return f"it has NaN or nothing in {_rows(torch.from_numpy(missing))}"
    example = f", such as {values[0]!r}" if labels.size else ""
    whole = labels.dtype.kind == "f" and bool(np.isfinite(labels).all()) and bool((labels == np.rint(labels)).all())
    return f"it holds {labels.dtype}{example}{': take labels.astype(int)' if labels.size and whole else ''}"


def some_of(words: Sequence[str]) -> str:
    """Return words for a sentence: the first of them, and how many more there are."""
    more = f", and {len(words) - _WORDS:,} more" if len(words) > _WORDS else ""
    return ", ".join(words[:_WORDS]) + more


def _rows(bad: Tensor) -> str:
    numbers = [str(int(i)) for i in bad.nonzero().flatten()[:_SHOWN]]
    count = int(bad.sum())
    more = ", …" if count > _SHOWN else ""
    return f"{count} row{'s' if count != 1 else ''} ({', '.join(numbers)}{more})"
