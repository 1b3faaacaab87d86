"""Reading a user's saved outputs: ``.npz``, ``.csv`` or ``.parquet`` into the three typed splits.

A file holds ``p`` or ``logits``, ``z``, ``y`` and ``split``, and may hold ``pt``, ``zt``, ``features``, ``group`` and
``id``; an
archive also ``p_second``, the classifier of the network in whose space the bank lives, where that is another one. In a
table the columns of a matrix are called ``p_0, p_1, …``. ``y`` may hold names of classes where the file says which
column of ``p`` is which class: a table by its columns ``p_NAME``, an archive by an array ``classes``. The bank lives in
the space of ``zt`` where there is one, else in that of ``z``; ``space="student"`` takes ``z`` in any case. Files that
tdumpra wrote say in ``network_fingerprint`` whose outputs they are. Any further column (sex, site, …) is kept as
metadata.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from tdumpra import checks
from tdumpra.artifacts import fingerprint
from tdumpra.data.leakage import refuse_crossing_groups
from tdumpra.data.sources.tables import read_frame
from tdumpra.errors import InputFileError
from tdumpra.foreign import Header, open_npz, open_parquet
from tdumpra.method.outputs import ScoredOutputs, TestOutputs, TrainOutputs, ValidationOutputs, are_names, class_numbers
from tdumpra.method.probabilities import probabilities, renormalised

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray
Rows = TypeVar("Rows", bound=ScoredOutputs)
_FEATURES = "features"  # pooled, as the classifier's head gets them: for the model's record
_MATRICES = ("p", "logits", "z", "pt", "zt", _FEATURES)
_SPACES = ("z", "zt")
_BY_CLASS = ("p", "logits", "pt")  # a column for each class
_COLUMNS = ("y", "split", "group", "id")
_CLASSES = "classes"  # names, in the order of p's columns
_SECOND = "p_second"  # of .npz files: the classifier of the network in whose space z is
NETWORK = "network_fingerprint"  # of the networks that gave the rows
_KNOWN = (*_MATRICES, *_COLUMNS, _CLASSES, _SECOND, NETWORK)
_OF_FILE = (_CLASSES, NETWORK)  # said once of all rows
SPACES = ("teacher", "student")


class SplitOutputs(NamedTuple):
    """A file's rows by split."""

    train: TrainOutputs
    validation: ValidationOutputs
    test: TestOutputs
    n_classes: int
    fingerprint: str
    class_names: tuple[str, ...] = ()  # empty where the source has only numbers
    drawn_from: int | None = None  # validation rows of the source, where ``validation`` is a part of them

    def searched(self) -> SplitOutputs:
        """Return the splits with the validation rows that everything is chosen on."""
        part = self.validation.searched()
        return self if part is self.validation else self._replace(validation=part, drawn_from=len(self.validation))


def read_outputs(path: str | Path, *, space: str = "teacher") -> SplitOutputs:
    """Read, check and split a file of outputs; rows of probabilities are renormalised once, in float64.

    ``space`` is ``teacher`` or ``student``: a file holds no other run's.
    """
    path = Path(path)
    if space not in SPACES:
        raise InputFileError(
            f"saved outputs hold the teacher's and the student's space, not {space!r}: put the other encoder's "
            "embeddings into the file as zt, and leave bank.space out"
        )
    arrays = read_arrays(path, ("p", "z", "y", "split"))
    if note := checks.misnamed_group(arrays):
        warnings.warn(f"{path}: {note}", stacklevel=2)
    try:
        return _split(arrays, fingerprint(path, space), space)
    except (ValueError, TypeError) as error:
        raise InputFileError(f"{path}: {error}") from error


def read_arrays(path: Path, needed: Collection[str]) -> dict[str, Any]:
    """Read the known arrays of a file and its further columns; refuse a file that lacks one of ``needed``."""
    readers = {".npz": _read_npz, ".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise InputFileError(
            f"{path}: outputs are read from .npz, .csv or .parquet, not {path.suffix or 'a file without suffix'}"
        )
    if not path.is_file():
        raise InputFileError(f"{path} does not exist, or is not a file")
    return readers[path.suffix.lower()](path, needed)


class _Embeddings(NamedTuple):
    """Embeddings in an archive, by far its largest array: read where each row has its place, and not before."""

    path: Path
    name: str
    header: Header

    @property
    def shape(self) -> tuple[int, ...]:
        return self.header.shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def parts(self, codes: Array) -> list[Array]:
        with open_npz(self.path) as archive:
            return archive.load_parts(self.name, codes, len(checks.SPLITS))


def _read_npz(path: Path, needed: Collection[str]) -> dict[str, Any]:
    with open_npz(path) as archive:
        headers = archive.headers
        _require(path, headers, list(headers), needed)
        # a further column is one-dimensional, with as many entries as there are rows; others are not even unpacked
        of_rows = headers["p" if "p" in headers else "logits"].shape[:1]
        wanted = [name for name, header in headers.items() if name in _KNOWN or header.shape == of_rows]
        later = [name for name in wanted if name in _SPACES and "split" in needed]  # dealt into splits when read
        loaded = archive.load([name for name in wanted if name not in later], later=later)
    return {name: loaded[name] if name in loaded else _Embeddings(path, name, headers[name]) for name in wanted}


def _read_csv(path: Path, needed: Collection[str]) -> dict[str, Array]:
    return _from_frame(path, read_frame(path, strings=("group", "id", "split")), needed)


def _read_parquet(path: Path, needed: Collection[str]) -> dict[str, Array]:
    with open_parquet(path) as table:
        return _from_frame(path, table.load().to_pandas(), needed)  # Arrow looks at text only when it is asked for


def _from_frame(path: Path, frame: pd.DataFrame, needed: Collection[str]) -> dict[str, Array]:
    if frame.empty:
        raise InputFileError(f"{path} names columns and has no rows")
    columns = {name: _numbered(path, frame, name) for name in _MATRICES}
    classes = () if columns["p"] or columns["logits"] else _named_classes(frame)
    if classes:
        columns |= {name: [f"{name}_{each}" for each in classes if f"{name}_{each}" in frame] for name in _BY_CLASS}
    arrays = {name: frame[of_matrix].to_numpy() for name, of_matrix in columns.items() if of_matrix}
    taken = {column for of_matrix in columns.values() for column in of_matrix}
    arrays |= {name: frame[name].to_numpy() for name in frame.columns if name not in taken}
    _require(path, arrays, list(frame.columns), needed, of_matrix="_0, …")
    return {**arrays, _CLASSES: np.array(classes, dtype=np.str_)} if classes else arrays


def _numbered(path: Path, frame: pd.DataFrame, name: str) -> list[str]:
    numbers = [i for i in range(len(frame.columns) + 1) if f"{name}_{i}" in frame]
    if numbers and numbers[-1] >= len(numbers):
        gap = next(i for i in range(len(numbers)) if i not in numbers)
        raise InputFileError(f"{path} has {name}_{numbers[-1]} and no {name}_{gap}: number the columns from 0 on")
    return [f"{name}_{i}" for i in numbers]


def _named_classes(frame: pd.DataFrame) -> tuple[str, ...]:
    """Return the classes that the columns of p, or else of logits, are named after, unless labels are numbers."""
    if "y" in frame and not are_names(frame["y"].to_numpy()):
        return ()
    found = ([name.removeprefix(f"{of}_") for name in frame if name.startswith(f"{of}_")] for of in ("p", "logits"))
    return tuple(next(filter(None, found), ()))


def _require(
    path: Path, arrays: Mapping[str, Any], found: list[str], asked: Collection[str], of_matrix: str = ""
) -> None:
    names = {
        f"p{of_matrix} (or logits{of_matrix})": ("p", "logits"), f"z{of_matrix}": ("z", "zt"), "y": ("y",),
        "split": ("split",),
    }  # fmt: skip
    needed = {name: any_of for name, any_of in names.items() if any_of[0] in asked}
    missing = [name for name, any_of in needed.items() if not any(key in arrays for key in any_of)]
    if missing:
        raise InputFileError(
            f"{path} lacks {', '.join(missing)}; needed are {', '.join(needed)}, and it holds "
            f"{checks.some_of([*map(str, found)]) or 'nothing'}"
        )


def _split(arrays: dict[str, Any], digest: str, space: str) -> SplitOutputs:
    """Deal the rows into splits. ``arrays`` is emptied before the embeddings are read: both would be more than fits."""
    z = arrays.get("zt", arrays.get("z")) if space == "teacher" else arrays.get("z")
    n_classes, class_names, codes, columns, metadata = _columns(arrays, z)
    arrays.clear()
    embeddings = z.parts(codes) if isinstance(z, _Embeddings) else _dealt(z, codes)

    def scored(kind: type[Rows], code: int) -> Rows:
        rows = kind.check(
            columns["p"][code], embeddings[code], columns["y"][code], columns["groups"][code], ids=columns["ids"][code],
            p_teacher=columns["p_teacher"][code], metadata={name: column[code] for name, column in metadata.items()},
            n_classes=n_classes, suffix=f" ({checks.SPLITS[code]})",
        )  # fmt: skip
        return replace(rows, p_second=columns["p_second"][code])

    return SplitOutputs(
        train=replace(
            TrainOutputs.check(
                embeddings[0], columns["y"][0], columns["groups"][0], ids=columns["ids"][0], p=columns["p"][0],
                n_classes=n_classes, suffix=" (train)",
            ),
            features=columns["features"][0],
        ),
        validation=replace(scored(ValidationOutputs, 1), features=columns["features"][1]),
        test=scored(TestOutputs, 2),
        n_classes=n_classes,
        fingerprint=digest,
        class_names=class_names,
    )  # fmt: skip


class _Columns(NamedTuple):
    """All that a file says of its rows but their embeddings, by split: lists of three."""

    n_classes: int
    class_names: tuple[str, ...]
    codes: Array  # the split of each row of the file
    columns: dict[str, list[Any]]
    metadata: dict[str, list[Any]]


def _columns(arrays: Mapping[str, Any], z: Any) -> _Columns:
    p = probabilities(arrays)
    if z is None:
        raise ValueError("a bank in the student's space needs z, and there is only zt")
    n_rows, n_classes = p.shape
    y, class_names = _class_numbers(arrays, n_classes)
    for name, array in arrays.items():
        if name not in _OF_FILE and (length := array.shape[0] if array.ndim else "no") != n_rows:
            raise ValueError(f"{name} has {length} rows where p has {n_rows}")
    codes = check_all_splits(arrays["split"])
    groups = arrays.get("group")
    if groups is not None:
        refuse_crossing_groups(codes, checks.check_groups(groups, "group", n_rows=n_rows))
    teacher = None if "pt" not in arrays else renormalised(arrays["pt"], "pt")
    second: Any = None
    if _SECOND in arrays:
        second = checks.check_probabilities(renormalised(arrays[_SECOND], _SECOND), _SECOND, n_classes=n_classes)
    features = checks.check_embeddings(arrays[_FEATURES], _FEATURES) if _FEATURES in arrays else None
    known = {
        "p": p, "y": y, "groups": groups, "ids": arrays.get("id"), "p_teacher": teacher, "p_second": second,
        "features": features,
    }  # fmt: skip
    return _Columns(
        n_classes=n_classes,
        class_names=class_names,
        codes=codes,
        columns={name: _dealt(column, codes) for name, column in known.items()},
        metadata={name: _dealt(column, codes) for name, column in arrays.items() if name not in _KNOWN},
    )


def _dealt(column: Any, codes: Array) -> list[Any]:
    return [None if column is None else column[codes == code] for code in range(len(checks.SPLITS))]


def _class_numbers(arrays: Mapping[str, Array], n_classes: int) -> tuple[Array, tuple[str, ...]]:
    """Return labels as numbers of p's columns, and the names of the classes if the file gives them."""
    y = arrays["y"]
    if _CLASSES not in arrays:
        if are_names(y):
            raise ValueError(
                f"y holds names, such as {str(y[0])!r}, and nothing says which column of p is which class: call the "
                f"columns of a table p_{y[0]}, …, or put an array {_CLASSES} into the .npz, or number y from 0"
            )
        return y, ()
    given = np.atleast_1d(arrays[_CLASSES])
    if given.ndim > 1:
        raise ValueError(f"{_CLASSES} must be a list of names, and has shape {given.shape}")
    names = tuple(checks.check_texts(given.astype(np.str_), _CLASSES).tolist())
    if len(set(names)) != n_classes or len(names) != n_classes:
        raise ValueError(
            f"{_CLASSES} must name each of the {n_classes} classes of p once, and holds {checks.some_of(names)}"
        )
    return class_numbers(y, names), names


def check_all_splits(split: Any) -> Array:
    """Check split codes: train, val and test must have at least one row each."""
    codes = checks.check_split(split)
    empty = [word for code, word in enumerate(checks.SPLITS) if not (codes == code).any()]
    if empty:
        raise ValueError(f"split leaves {' and '.join(empty)} empty; train, val and test all need rows")
    return codes
