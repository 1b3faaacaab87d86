"""What a model keeps of its training and validation rows: outputs and names, never images.

From these rows the bank is built again to the bit, with or without some of them; new data are compared with them; and a
head can be fitted beside them. Only the pooled features are kept of few rows: they are wide.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdumpra.artifacts import Artifact, prefixed, unprefixed
from tdumpra.checks import check_count, check_unit_interval
from tdumpra.core.calibration import class_prior
from tdumpra.errors import ArtifactError
from tdumpra.foreign import reading
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.replay import finite_features, in_use, keep_features
from tdumpra.method.rows import KeptRows, no_rows
from tdumpra.method.schema import check_tensor
from tdumpra.values import check_list, check_table, check_text

Array = NDArray[Any]
_NAMES_AT_ONCE = 2**16
_COLOURS = 6
_MOST_VALUES = 2**28  # letters of names or numbers of features that a file may unfold to: a gigabyte
_MOST_PROTOTYPES = 2**16  # of a class
_ROUNDING = 1e-2  # that a row of probabilities may stray from one


class BankRecipe(NamedTuple):
    """What :meth:`PrototypeBank.fit` needs beside the rows."""

    n_prototypes: int
    seed: int
    merge_above: float | None
    with_validation: bool = False  # the bank of a cross-fitted gate holds the validation rows too


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Record:
    """What a model keeps of its rows. Make one with :meth:`keep`."""

    train: KeptRows  # all rows that the bank may be made of
    validation: KeptRows  # rows that the networks never saw; none where they saw all
    bank: BankRecipe

    @classmethod
    def keep(cls, train: KeptRows, validation: KeptRows, bank: BankRecipe) -> Record:
        """Keep all rows, with the features of all validation rows and of some training rows."""
        return cls(train=keep_features(train, bank.seed), validation=finite_features(validation), bank=bank)

    @property
    def bank_rows(self) -> KeptRows:
        """Return the rows that the bank is made of: those with a weight, of validation too if it was cross-fitted."""
        rows = self.train.joined(self.validation) if self.bank.with_validation else self.train
        return rows if rows.weights is None else rows.rows(rows.weights > 0)

    @property
    def replay(self) -> Array:
        """Return which training rows a new head is fitted beside."""
        return in_use(self.train, self.bank.seed)

    def rebuild_bank(self, class_names: Sequence[str]) -> PrototypeBank:
        """Cluster the bank from the rows that are kept."""
        rows = self.bank_rows
        alike = rows.weights is None or bool((rows.weights == 1).all())
        return PrototypeBank.fit(
            rows.z, rows.y, self.bank.n_prototypes, rows.groups, len(class_names), self.bank.seed, ids=rows.ids,
            merge_above=self.bank.merge_above, class_names=class_names, weights=None if alike else rows.weights,
        )  # fmt: skip

    def bank_of_train(self, class_names: Sequence[str]) -> PrototypeBank:
        """Cluster a bank that holds no validation rows, to be tried on those."""
        return replace(self, bank=self.bank._replace(with_validation=False)).rebuild_bank(class_names)

    def prior(self, n_classes: int) -> Tensor:
        """Return the class shares of the rows that the classifier learnt from.

        Rows that were added later are counted only for classes that the classifier does not know.
        """
        rows = self.train.joined(self.validation) if self.bank.with_validation else self.train
        counted = rows.y >= rows.p.shape[1]
        counted |= True if rows.sources is None else rows.sources == ""
        return class_prior(torch.from_numpy(rows.y[counted]), n_classes)

    def without(self, *, groups: Collection[str] = (), ids: Collection[str] = ()) -> Record:
        """Return the record without the rows of these groups and ids."""
        train, validation = (rows.rows(~rows.among(groups=groups, ids=ids)) for rows in (self.train, self.validation))
        return replace(self, train=train.plain(), validation=validation.plain())

    def with_rows(self, more: KeptRows, *, weight: float = 1.0, source: str = "") -> Record:
        """Return the record with further labelled rows: what each weighs in the bank, and where it is from."""
        if not more.labelled.all():
            raise ValueError(f"{int((~more.labelled).sum())} of {len(more)} rows have no label, and a bank needs one")
        marked = finite_features(replace(more, z=_as_kept(more.z, self.train.z.dtype), p=more.p.astype(np.float32)))
        if weight != 1:
            marked = replace(marked, weights=np.full(len(more), weight, np.float32))
        if source:
            marked = replace(marked, sources=np.full(len(more), source))
        return replace(self, train=self.train.joined(marked))

    def to_artifact(self) -> Artifact:
        """Return tensors and JSON values, for the files that hold a record."""
        tensors: dict[str, Tensor] = {}
        meta: dict[str, Any] = {"bank": self.bank._asdict()}
        for part in ("train", "validation"):
            rows: KeptRows = getattr(self, part)
            meta[part] = {"rows": len(rows), "named": bool(rows.named.all()), "grouped": bool(rows.grouped.all())}
            tensors |= prefixed(part, _tensors(rows)) if len(rows) else {}
        return Artifact(tensors, meta)

    @classmethod
    def from_artifact(cls, artifact: Artifact, *, n_classes: int, width: int) -> Record:
        """Read what :meth:`to_artifact` returned, for a bank of that many classes and that width."""
        tensors, meta = artifact
        with reading("its record", "record", ArtifactError):
            recipe = BankRecipe(**check_table(meta["bank"], "bank"))
            check_count(recipe.n_prototypes, "n_prototypes")
            check_count(recipe.seed, "seed", least=0)
            if recipe.n_prototypes > _MOST_PROTOTYPES or recipe.seed >= 2**63:
                raise ValueError(
                    f"it asks for {recipe.n_prototypes} prototypes of a class, from the seed {recipe.seed}"
                )
            if recipe.merge_above is not None:
                check_unit_interval(recipe.merge_above, "merge_above")
            if not isinstance(recipe.with_validation, bool):
                raise TypeError(f"with_validation must be true or false, not {recipe.with_validation!r}")
            train = _read(unprefixed("train", tensors), meta["train"], n_classes, width)
            if not len(train):
                raise ValueError("it holds no training rows")
            validation = _read(unprefixed("validation", tensors), meta["validation"], n_classes, width)
            if len(validation) and train.p.shape[1] != validation.p.shape[1]:
                raise ValueError("its training and validation rows have probabilities of other classes")
            if not len(validation):
                validation = no_rows(train.p.shape[1], width)
            return cls(train=train, validation=validation, bank=recipe)


def _as_kept(z: Array, kind: Any) -> Array:
    """Return embeddings in the precision of a record: a wider one would widen all rows, and their bank with them."""
    with np.errstate(over="ignore"):
        kept = z.astype(kind, copy=False)
    if not np.isfinite(kept).all():
        raise ValueError(f"an embedding is too long for the record's {kind}: normalise embeddings before you save them")
    return kept


def _names_json(names: Mapping[str, Array | None]) -> bytearray:
    """Return lists of names as JSON. Of millions, some thousands at a time become Python's own strings."""
    text = bytearray(b"{")
    for number, (key, column) in enumerate(names.items()):
        text += f"{', ' if number else ''}{json.dumps(key)}: ".encode()
        if column is None:
            text += b"null"
            continue
        for start in range(0, max(1, len(column)), _NAMES_AT_ONCE):
            part = json.dumps(column[start : start + _NAMES_AT_ONCE].tolist())
            text += f"{', ' if start else '['}{part[1:-1]}".encode()
        text += b"]"
    return text + b"}"


def _tensors(rows: KeptRows) -> dict[str, Tensor]:
    """Return rows as tensors; names as JSON in bytes, so that nobody parses them who only predicts."""
    same = bool((rows.ids == rows.groups).all())
    names = {"ids": rows.ids, "groups": None if same else rows.groups, "content": rows.content, "sources": rows.sources}
    columns: dict[str, Array] = {
        "names": np.frombuffer(_names_json(names), np.uint8),
        "y": rows.y.astype(np.int64, copy=False), "p": rows.p.astype(np.float32, copy=False), "z": rows.z,
    }  # fmt: skip
    if rows.features is not None and rows.has_features.any():
        columns |= {"features": rows.features[rows.has_features], "has_features": rows.has_features}
    if rows.colours is not None:
        columns["colours"] = rows.colours.astype(np.float32)
    if rows.weights is not None:
        columns["weights"] = rows.weights.astype(np.float32)
    for flag in ("named", "grouped"):
        each = getattr(rows, flag)
        if each.any() and not each.all():  # rows of several sources; else one word for all stands in the table
            columns[flag] = each
    writeable = {name: column if column.flags.writeable else column.copy() for name, column in columns.items()}
    return {name: torch.from_numpy(column) for name, column in writeable.items()}


def _read(tensors: Mapping[str, Tensor], said: Any, n_classes: int, width: int) -> KeptRows:
    """Check sizes and types of everything, and only then build rows of it."""
    table = check_table(said, "the rows of a record")
    n = table["rows"]
    check_count(n, "rows", least=0)
    for flag in ("named", "grouped"):
        if not isinstance(table[flag], bool):
            raise TypeError(f"{flag} must be true or false, not {table[flag]!r}")
    if n == 0:
        return no_rows(n_classes, width)
    y = check_tensor(tensors, "y", (n,), "int64").numpy()
    if y.min() < 0 or y.max() >= n_classes:
        raise ValueError(f"y must be in the range 0 to {n_classes - 1}")
    p = check_tensor(tensors, "p", (n, None), finite=False).float().numpy()
    unknown = np.isnan(p).all(1)
    off = np.abs(p[~unknown].sum(1) - 1) > _ROUNDING  # false for NaN, which the next line finds
    if not 2 <= p.shape[1] <= n_classes or off.any() or not ((p >= 0) | unknown[:, None]).all():
        raise ValueError("p must hold rows of probabilities")
    z = check_tensor(tensors, "z", (n, width)).numpy()
    names = check_table(json.loads(check_tensor(tensors, "names", (None,), "uint8").numpy().tobytes()), "names")
    ids = _names(names["ids"], "ids", n)
    features, has_features = None, np.zeros(n, dtype=bool)
    if "features" in tensors:
        has_features = check_tensor(tensors, "has_features", (n,), "bool").numpy()
        kept = check_tensor(tensors, "features", (int(has_features.sum()) or None, None)).half().numpy()
        if n * kept.shape[1] > _MOST_VALUES:
            raise ValueError(f"features of {n:,} rows and {kept.shape[1]:,} columns are more than a record holds")
        features = np.zeros((n, kept.shape[1]), np.float16)
        features[has_features] = kept
    colours = None
    if "colours" in tensors:
        colours = check_tensor(tensors, "colours", (n, _COLOURS), finite=False).float().numpy()
    weights = check_tensor(tensors, "weights", (n,)).float().numpy() if "weights" in tensors else None
    if weights is not None and weights.min() < 0:
        raise ValueError("weights must not be negative")
    return KeptRows(
        ids=ids,
        groups=ids if names["groups"] is None else _names(names["groups"], "groups", n),
        y=y, p=p, z=z, features=features, has_features=has_features, colours=colours,
        content=None if names["content"] is None else _names(names["content"], "content", n),
        weights=weights, sources=None if names.get("sources") is None else _names(names["sources"], "sources", n),
        **{
            flag: check_tensor(tensors, flag, (n,), "bool").numpy() if flag in tensors else table[flag]
            for flag in ("named", "grouped")
        },
    )  # fmt: skip


def _names(value: Any, name: str, n: int) -> Array:
    texts = [check_text(each, name) for each in check_list(value, name, n)]
    if n * max(map(len, texts), default=0) > _MOST_VALUES:  # NumPy gives all of them the room of the longest
        raise ValueError(f"the longest of {name} is too long: {max(map(len, texts)):,} letters")
    return np.array(texts, dtype=np.str_)
