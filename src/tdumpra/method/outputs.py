"""A model's outputs on one split. Which split it is, is a type: the tuner cannot be handed test data.

The bank is built from :class:`TrainOutputs`, everything is tuned on :class:`ValidationOutputs`, and
:class:`TestOutputs` are only ever scored. Wherever the arrays came from, outputs lie in main memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdumpra import checks
from tdumpra.core.groups import drawn_rows, lesion_numbers, lesion_of_each_row

SEARCHED_ROWS = 100_000  # validation rows; of more, so many are searched ...
SEARCHED_ENTRIES = 2**23  # ... or as many as have so many probabilities


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Rows:
    z: Tensor  # (n, D) embeddings in the bank's space
    y: Tensor  # (n,)
    groups: NDArray[np.str_] | None = None
    ids: NDArray[np.str_] | None = None
    features: Tensor | None = None  # (n, F) pooled, for the model's record alone

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, keep: NDArray[np.bool_]) -> Self:
        """Return some of the rows, as outputs of the same split."""
        return type(self)(**{each.name: _take(getattr(self, each.name), keep) for each in fields(self)})


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TrainOutputs(_Rows):
    """Training rows, which the bank is made of.

    A classifier's word on rows that it was trained on is worth nothing, and is not asked. ``p`` is for cross-fitting
    alone, by those whose training rows were predicted out of fold.
    """

    p: Tensor | None = None  # (n, C)

    @classmethod
    def check(
        cls,
        z: Any,
        y: Any,
        groups: Any = None,
        *,
        ids: Any = None,
        p: Any = None,
        n_classes: int | None = None,
        suffix: str = "_train",
    ) -> TrainOutputs:
        """Check raw arrays; ``suffix`` completes their names in messages."""
        if n_classes is not None:
            checks.check_count(n_classes, "n_classes", least=2)
        embeddings = checks.check_embeddings(z, f"z{suffix}")
        if not len(embeddings):
            raise ValueError(f"z{suffix} is empty: a bank needs training embeddings")
        return cls(
            z=embeddings.cpu(),
            y=checks.check_labels(y, f"y{suffix}", n_rows=len(embeddings), n_classes=n_classes),
            groups=checks.check_groups(groups, f"groups{suffix}", n_rows=len(embeddings)),
            ids=checks.check_groups(ids, f"ids{suffix}", n_rows=len(embeddings)),
            p=None if p is None else checks.check_probabilities(p, f"p{suffix}", n_classes=n_classes),
        )

    def refuse_missing_class(self, n_classes: int, class_names: Sequence[str], advice: str) -> None:
        """Refuse a class without a training row: it would have no prototype, and never be retrieved."""
        present = np.bincount(self.y.numpy(), minlength=n_classes) > 0
        if not present.all():
            missing = int(np.flatnonzero(~present)[0])
            name = f" ({class_names[missing]!r})" if class_names else ""
            raise ValueError(f"class {missing}{name} has no training row: {advice}")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ScoredOutputs(_Rows):
    """Checked rows with both paths' inputs: the classifier's posterior, and the embedding that is matched."""

    p: Tensor  # (n, C) the classifier's probabilities
    p_teacher: Tensor | None = None  # (n, C) the teacher's own classifier, where there is one
    p_baseline: Tensor | None = None  # (n, C) another run's classifier, where one is compared with
    p_second: Tensor | None = None  # (n, C) another run's classifier, where the bank lives in that run's space
    metadata: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)  # further columns, for subgroups

    @property
    def own_ids(self) -> NDArray[np.str_] | None:
        """Return the ids, if each names one row."""
        return self.ids if self.ids is not None and len(np.unique(self.ids)) == len(self) else None

    def lesions(self) -> NDArray[np.str_]:
        """Return the lesion of each row: its group, else its own id, else its number."""
        known = self.own_ids if self.groups is None else self.groups
        return lesion_of_each_row(known, len(self)).astype(np.str_)

    @property
    def n_classes(self) -> int:
        """C."""
        return self.p.shape[1]

    @classmethod
    def check(
        cls,
        p: Any,
        z: Any,
        y: Any,
        groups: Any = None,
        *,
        ids: Any = None,
        p_teacher: Any = None,
        metadata: Mapping[str, Any] | None = None,
        n_classes: int | None = None,
        width: int | None = None,
        suffix: str = "",
    ) -> Self:
        """Check raw arrays; ``suffix`` completes their names in messages, as in ``p_val``."""
        rows, embeddings = check_rows(p, z, n_classes=n_classes, width=width, suffix=suffix)
        if not len(rows):
            raise ValueError(f"p{suffix} is empty: there is nothing to work on")
        teacher = None
        if p_teacher is not None:
            teacher = checks.check_probabilities(p_teacher, f"pt{suffix}", n_classes=rows.shape[1])
            if len(teacher) != len(rows):
                raise ValueError(f"p{suffix} has {len(rows)} rows and pt{suffix} has {len(teacher)}")
        return cls(
            p=rows.cpu(),
            z=embeddings.cpu(),
            y=checks.check_labels(y, f"y{suffix}", n_rows=len(rows), n_classes=rows.shape[1]),
            groups=checks.check_groups(groups, f"groups{suffix}", n_rows=len(rows)),
            ids=checks.check_groups(ids, f"ids{suffix}", n_rows=len(rows)),
            p_teacher=None if teacher is None else teacher.cpu(),
            metadata={name: _column(values, name, len(rows)) for name, values in (metadata or {}).items()},
        )


class ValidationOutputs(ScoredOutputs):
    """Validation rows, on which temperatures, thresholds and weights are chosen."""

    __slots__ = ()

    def searched(self) -> ValidationOutputs:
        """Return the rows that everything is chosen on: these, or, of more than so many, groups drawn at random.

        A search over a hundred thousand rows tells gates apart that differ by a thousandth of them.
        """
        most = min(SEARCHED_ROWS, SEARCHED_ENTRIES // self.n_classes)
        if len(self) <= most:
            return self
        return self.rows(drawn_rows(lesion_numbers(self.lesions(), len(self)), most))


class TestOutputs(ScoredOutputs):
    """Test rows, which are only ever scored."""

    __slots__ = ()
    __test__ = False  # not a test case, whatever pytest thinks of the name


def join(columns: Sequence[Any]) -> Any:
    """Return columns of several outputs one after the other; ``None`` if one of them is absent."""
    if any(column is None for column in columns):
        return None
    return torch.cat(list(columns)) if isinstance(columns[0], Tensor) else np.concatenate(columns)


def _take(values: Any, keep: NDArray[np.bool_]) -> Any:
    if isinstance(values, Mapping):
        return {name: _take(column, keep) for name, column in values.items()}
    return None if values is None else values[torch.from_numpy(keep) if isinstance(values, Tensor) else keep]


def _column(values: Any, name: str, n_rows: int) -> NDArray[np.str_]:
    column = np.asarray(values)
    if column.shape != (n_rows,):
        raise ValueError(f"the column {name} needs one entry per row: {n_rows}, not shape {column.shape}")
    texts = ["" if value is None or value != value else str(value) for value in column.tolist()]
    return checks.check_texts(np.array(texts, dtype=np.str_), f"the column {name}")


def check_rows(
    p: Any, z: Any, *, n_classes: int | None = None, width: int | None = None, suffix: str = ""
) -> tuple[Tensor, Tensor]:
    """Check the two inputs of a prediction."""
    rows = checks.check_probabilities(p, f"p{suffix}", n_classes=n_classes)
    embeddings = checks.check_embeddings(z, f"z{suffix}", width=width)
    if len(embeddings) != len(rows):
        raise ValueError(f"p{suffix} has {len(rows)} rows and z{suffix} has {len(embeddings)}")
    return rows, embeddings


def are_names(y: Any) -> bool:
    """Return whether labels are names of classes, not numbers."""
    if isinstance(y, Tensor):
        return False
    labels = np.asarray(y)
    return labels.dtype.kind in "US" or (labels.dtype.kind == "O" and any(isinstance(w, str) for w in labels.tolist()))


def class_numbers(y: Any, names: Sequence[str], name: str = "y") -> Any:
    """Return the place of each label in ``names``; labels that are numbers are returned as they are."""
    if not are_names(y):
        return y
    number, labels = {word: c for c, word in enumerate(names)}, np.asarray(y)
    found, place = labels, np.arange(len(labels))
    if labels.dtype.kind in "US":  # millions of labels are a few names
        found, place = np.unique(labels, return_inverse=True)
    words = [word.decode() if isinstance(word, bytes) else word for word in found.tolist()]
    unknown = next((word for word in words if word not in number), None)
    if unknown is not None:
        raise ValueError(f"{name} holds {unknown!r}, which is none of the classes of p: {checks.some_of(names)}")
    return np.array([number[word] for word in words], dtype=np.int64)[place]


def check_groups_apart(
    seen: Mapping[str, TrainOutputs | ValidationOutputs | None], groups: NDArray[np.str_] | None, where: str
) -> None:
    """Refuse groups that the bank or the tuning has seen; warn where that cannot be known."""
    others = {name: outputs.groups for name, outputs in seen.items() if outputs is not None}
    unlike = [name for name, of_part in others.items() if (of_part is None) != (groups is None)]
    if unlike:
        have, lack = ([where], unlike) if groups is not None else (unlike, [where])
        warnings.warn(
            f"the {' and '.join(have)} data came with groups and the {' and '.join(lack)} data without: lesions that "
            "both share go unnoticed; give groups to all",
            stacklevel=3,
        )
    for name, of_part in others.items():
        if groups is None or of_part is None:
            continue
        shared = np.intersect1d(groups, of_part)
        if len(shared):
            raise ValueError(
                f"{len(shared)} groups are in both the {name} and the {where} data, for example {str(shared[0])!r}: "
                "results would be too good; split by group"
            )
