"""Rows as a model keeps them: what it gave for some images, and what is known of these."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdumpra.core.groups import joined_groups

Array = NDArray[Any]
UNLABELLED = -1


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeptRows:
    """A model's outputs on some images, row by row, with what is known of the images."""

    ids: Array
    groups: Array  # lesion or patient; the id where nobody said
    y: Array  # (n,) int64; -1 where there is no label
    p: Array  # (n, C) float32, the classifier's as it came; rows of NaN where nobody knows
    z: Array  # (n, D), in the bank's space
    features: Array | None = None  # (n, F) float16, pooled; zeros where they are not kept
    has_features: Array = field(default_factory=lambda: np.empty(0, bool))  # (n,); all or none unless given
    colours: Array | None = None  # (n, 6) float32: mean and deviation of the three channels; NaN where nobody knows
    content: Array | None = None  # names of the framed pixels; empty where nobody knows
    weights: Array | None = None  # (n,) float32, how much each counts in the bank, 0: not at all; one unless given
    sources: Array | None = None  # where rows were added from; empty for the model's own
    named: Any = True  # (n,) or one for all: whether the id is the source's own, not the number of a row
    grouped: Any = True  # (n,) or one for all: whether the source said who belongs together

    def __post_init__(self) -> None:
        n = len(self.ids)
        if not len(self.has_features):
            object.__setattr__(self, "has_features", np.full(n, self.features is not None))
        for flag in ("named", "grouped"):
            given = np.asarray(getattr(self, flag), bool)
            object.__setattr__(self, flag, given if given.ndim else np.full(n, given))
        for each in fields(self):
            column = getattr(self, each.name)
            if isinstance(column, np.ndarray) and len(column) != n:
                raise ValueError(f"{each.name} has {len(column)} rows and ids has {n}")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labelled(self) -> Array:
        """Return which rows have a label."""
        known: Array = self.y != UNLABELLED
        return known

    @property
    def has_p(self) -> Array:
        """Return of which rows the classifier's probabilities are known."""
        return np.asarray(~np.isnan(self.p).any(1))

    @property
    def kin(self) -> Array:
        """Return the group of each row, groups that hold copies of one image under one name.

        Copies have the same pixels or the very same embedding: whoever knows one of them knows the other.
        """
        marks = [embedding_marks(self.z)]
        if self.content is not None:
            unknown = np.char.add("row ", np.arange(len(self)).astype(np.str_))  # no name of pixels has a space
            marks.append(np.where(self.content == "", unknown, self.content))
        return joined_groups(self.groups, *marks)

    def rows(self, keep: Array) -> KeptRows:
        """Return some of the rows, by a mask or by numbers."""
        columns: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        taken = {name: column[keep] for name, column in columns.items() if isinstance(column, np.ndarray)}
        return KeptRows(**{**columns, **taken})

    def among(self, *, groups: Collection[str] = (), ids: Collection[str] = ()) -> Array:
        """Return which rows belong to these groups or have these ids."""
        found: Array = np.isin(self.groups, list(groups)) | np.isin(self.ids, list(ids))
        return found

    def joined(self, more: KeptRows) -> KeptRows:
        """Return these rows and then the others; what only one side knows is unknown in the other's rows."""
        if self.p.shape[1] != more.p.shape[1] or self.z.shape[1] != more.z.shape[1]:
            raise ValueError(
                f"rows of {self.p.shape[1]} classes and width {self.z.shape[1]} cannot be joined with rows of "
                f"{more.p.shape[1]} classes and width {more.z.shape[1]}"
            )
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(more, name)])
            for name in ("ids", "groups", "y", "p", "z", "has_features", "named", "grouped")
        }
        for name, unknown in (("features", 0), ("colours", np.nan), ("content", ""), ("weights", 1), ("sources", "")):
            pair = [getattr(self, name), getattr(more, name)]
            known = next((each for each in pair if each is not None), None)
            if known is not None:
                filled = [
                    np.full((len(rows), *known.shape[1:]), unknown, known.dtype) if column is None else column
                    for rows, column in zip((self, more), pair, strict=True)
                ]
                columns[name] = np.concatenate(filled)
        return KeptRows(**columns)

    def plain(self) -> KeptRows:
        """Return the rows without the columns that say nothing of any of them, as if none had ever been needed."""
        idle = {
            "features": not self.has_features.any(),
            "colours": self.colours is not None and bool(np.isnan(self.colours).all()),
            "content": self.content is not None and not (self.content != "").any(),
            "weights": self.weights is not None and bool((self.weights == 1).all()),
            "sources": self.sources is not None and not (self.sources != "").any(),
        }
        return replace(self, **{name: None for name, is_idle in idle.items() if is_idle})


def embedding_marks(z: Array) -> Array:
    """Return a mark for each row that equals another's where all numbers are equal."""
    rows = np.ascontiguousarray(z) + z.dtype.type(0)  # a zero has two signs
    return rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()


def no_rows(n_classes: int, width: int) -> KeptRows:
    """Return rows of which there are none."""
    names = np.empty(0, np.str_)
    p, z = np.empty((0, n_classes), np.float32), np.empty((0, width), np.float32)
    return KeptRows(ids=names, groups=names, y=np.empty(0, np.int64), p=p, z=z)
