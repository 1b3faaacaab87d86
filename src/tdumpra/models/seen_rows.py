"""Refuse rows that a model was trained, tuned or adapted on: figures on them would be too good."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdumpra.errors import SourceError
from tdumpra.method.record import Record
from tdumpra.method.rows import KeptRows, embedding_marks

_SHOWN = 3  # names that a sentence shows


def refuse_seen_names(record: Record, ids: NDArray[Any] | None, groups: NDArray[Any] | None, source: str) -> None:
    """Refuse groups and images that the model was trained or tuned on: figures on them would be too good."""
    for name, kept in (("training", record.train), ("validation", record.validation)):
        if groups is not None:
            _refuse_shared(groups, kept.groups[kept.grouped], "groups", name, source)
        if ids is not None:
            _refuse_shared(ids, kept.ids[kept.named], "images", name, source)


def refuse_seen_pixels(record: Record, rows: KeptRows, source: str) -> None:
    """Refuse images that the model has seen, whatever they are called."""
    for name, kept in (("training", record.train), ("validation", record.validation)):
        if rows.content is None or kept.content is None:
            continue
        same = np.isin(rows.content, kept.content) & (rows.content != "")
        if same.any():
            first = int(same.argmax())
            theirs = str(kept.ids[int((kept.content == rows.content[first]).argmax())])
            raise SourceError(
                f"{int(same.sum()):,} images of {source} are {name} images of the model under other names, for "
                f"example {str(rows.ids[first])!r}, which is {theirs!r}: leave them out"
            )


def refuse_seen_embeddings(record: Record, rows: KeptRows, source: str) -> None:
    """Refuse rows of a file that the model has seen, whatever they are called: they have the same embedding."""
    for name, kept in (("training", record.train), ("validation", record.validation)):
        with np.errstate(over="ignore"):  # half precision cannot hold what it never held
            own, theirs = (embedding_marks(z.astype(kept.z.dtype)) for z in (rows.z, kept.z))
        if seen := int(np.isin(own, theirs).sum()):
            raise SourceError(
                f"{seen:,} rows of {source} have the very embeddings of {name} rows of the model, and figures would be "
                "too good: leave them out"
            )


def _refuse_shared(own: NDArray[Any], seen: NDArray[Any], what: str, part: str, source: str) -> None:
    shared = np.intersect1d(own, seen)
    if len(shared):
        shown = ", ".join(map(repr, shared[:_SHOWN].tolist())) + (", …" if len(shared) > _SHOWN else "")
        raise SourceError(
            f"{len(shared):,} {what} of {source} are among the {part} {what} of the model ({shown}), and figures would "
            "be too good: leave them out, or, if another place uses the same names, tell them apart with --prefix NAME-"
        )
