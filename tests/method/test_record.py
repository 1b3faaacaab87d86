"""The record: the bank comes back to the bit, with all rows or without some, and files are checked before use."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from tdumpra.artifacts import Artifact
from tdumpra.errors import ArtifactError
from tdumpra.method import record as record_module
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.record import BankRecipe, Record
from tdumpra.method.rows import KeptRows, no_rows

NAMES = ("amber", "blue", "cyan")


def rows(n: int = 60, *, seed: int = 0, start: int = 0, **columns: Any) -> KeptRows:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    given = {
        "ids": np.array([f"image{start + i}" for i in range(n)]),
        "groups": np.array([f"lesion{(start + i) // 2}" for i in range(n)]),
        "y": y,
        "p": rng.dirichlet(np.ones(3), n).astype(np.float32),
        "z": (np.eye(3, 8)[y] + 0.3 * rng.normal(size=(n, 8))).astype(np.float32),
        "features": rng.normal(size=(n, 5)).astype(np.float16),
        "colours": rng.random((n, 6)).astype(np.float32),
        "content": np.array([f"{start + i:016x}" for i in range(n)]),
    }
    return KeptRows(**(given | columns))


def record(**columns: Any) -> Record:
    recipe = BankRecipe(n_prototypes=2, seed=3, merge_above=0.999)
    return Record.keep(rows(**columns), rows(20, seed=1, start=1000), recipe)


def same_bank(one: PrototypeBank, other: PrototypeBank) -> bool:
    return (
        all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("prototypes", "weight", "reference"))
        and one.exemplars == other.exemplars
    )


def same_rows(one: KeptRows, other: KeptRows) -> None:
    for each in fields(KeptRows):
        mine, theirs = getattr(one, each.name), getattr(other, each.name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype.kind == theirs.dtype.kind
            assert mine.dtype.kind == "U" or mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs, err_msg=each.name)
        else:
            assert mine == theirs


def test_the_bank_comes_back_to_the_bit():
    train = rows()
    direct = PrototypeBank.fit(train.z, train.y, 2, train.groups, 3, 3, ids=train.ids)
    assert same_bank(record().rebuild_bank(NAMES), direct)


def test_a_cross_fitted_bank_holds_the_validation_rows():
    kept = record()
    kept = replace(kept, bank=kept.bank._replace(with_validation=True))
    both = kept.train.joined(kept.validation)
    direct = PrototypeBank.fit(both.z, both.y, 2, both.groups, 3, 3, ids=both.ids)
    assert same_bank(kept.rebuild_bank(NAMES), direct)


def test_without_a_group_is_as_if_it_had_never_been():
    never = rows().rows(rows().groups != "lesion7")
    kept = record().without(groups=["lesion7"])
    direct = PrototypeBank.fit(never.z, never.y, 2, never.groups, 3, 3, ids=never.ids)
    assert same_bank(kept.rebuild_bank(NAMES), direct)
    assert "lesion7" not in kept.train.groups
    assert len(record().without(ids=["image1000"]).validation) == 19


def test_copies_are_kin_whatever_their_groups_are_called():
    some = rows(12)
    z, content = some.z.copy(), np.array([f"{i:016x}" for i in range(12)])
    z[8] = z[0]  # lesion4 holds a copy of lesion0's image, by its embedding
    content[9] = content[2]  # and one of lesion1's, by its pixels
    content[6:8] = ""  # unknown pixels are nobody's copy
    found = replace(some, z=z, content=content).kin
    assert found[[0, 2, 8, 9]].tolist() == ["lesion0"] * 4
    assert found[[4, 6, 10]].tolist() == ["lesion2", "lesion3", "lesion5"]
    assert some.kin.tolist() == some.groups.tolist()
    assert len(some.rows(np.zeros(12, bool)).kin) == 0
    zeros = np.ones((4, 8), np.float32)
    zeros[[0, 2], 3] = 0.0, -0.0  # a zero has two signs
    assert replace(some.rows(np.arange(4)), z=zeros).kin[[0, 2]].tolist() == ["lesion0"] * 2


def test_added_rows_take_the_records_precision_and_leave_no_idle_columns():
    own = rows(colours=None, content=None, features=None)
    narrow = Record.keep(replace(own, z=own.z.astype(np.float16)), no_rows(3, 8), BankRecipe(2, 0, None))
    more = rows(6, seed=2, start=500, z=rows(6).z.astype(np.float64), named=False)
    grown = narrow.with_rows(more, weight=2.0, source="there")
    assert grown.train.z.dtype == np.float16
    assert grown.train.named.tolist() == [True] * 60 + [False] * 6
    again = Record.from_artifact(grown.to_artifact(), n_classes=3, width=8)
    same_rows(grown.train, again.train)
    back = again.without(ids=more.ids.tolist())
    same_rows(back.train, narrow.train)
    tensors, meta = back.to_artifact()
    assert meta == narrow.to_artifact().meta
    assert tensors.keys() == narrow.to_artifact().tensors.keys()
    with pytest.raises(ValueError, match="too long for the record's float16"):
        narrow.with_rows(replace(more, z=more.z * 1e6))


def test_further_rows_need_labels():
    more = rows(6, seed=2, start=500)
    assert len(record().with_rows(more).train) == 66
    with pytest.raises(ValueError, match="2 of 6 rows have no label"):
        record().with_rows(replace(more, y=np.array([0, 1, 2, -1, -1, 0])))


def test_features_beyond_half_precision_are_left_out():
    features = np.ones((60, 5), np.float32)
    features[4] = 1e6
    with np.errstate(over="ignore"):
        kept = record(features=features).train
    assert not kept.has_features[4]
    assert np.isfinite(np.asarray(kept.features)).all()


def test_a_file_gives_back_the_same_rows():
    p = rows().p.copy()
    p[3] = np.nan  # nobody knows
    kept = record(p=p, groups=rows().ids, grouped=False, z=rows().z.astype(np.float64))
    again = Record.from_artifact(kept.to_artifact(), n_classes=3, width=8)
    same_rows(kept.train, again.train)
    same_rows(kept.validation, again.validation)
    assert again.bank == kept.bank


def test_unknown_columns_and_parts_come_back_as_unknown():
    bare = rows(features=None, colours=None, content=None, named=False)
    kept = Record.keep(bare, no_rows(3, 8), BankRecipe(2, 0, None))
    again = Record.from_artifact(kept.to_artifact(), n_classes=3, width=8)
    same_rows(kept.train, again.train)
    assert len(again.validation) == 0
    mixed = again.train.joined(rows(4, start=90))
    assert mixed.has_features.sum() == 4
    assert np.isnan(np.asarray(mixed.colours)[:60]).all()
    assert (np.asarray(mixed.content)[:60] == "").all()


def doctored(change: str, value: Any) -> Artifact:
    tensors, meta = record(
        named=np.arange(60) < 30, weights=np.full(60, 2, np.float32)
    ).to_artifact()  # fmt: skip
    if change in tensors:
        tensors[change] = value(tensors[change])
    else:
        part, name = change.split(".")
        meta[part] = {**meta[part], name: value}
    return Artifact(tensors, meta)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("train.z", lambda z: z[:, :7]),
        ("train.z", lambda z: z * torch.nan),
        ("train.p", lambda p: p + 0.5),
        ("train.p", lambda p: p.index_fill(1, torch.tensor([0]), torch.nan)),
        ("train.y", lambda y: y + 3),
        ("train.y", lambda y: y.int()),
        ("train.names", lambda names: names[:-5]),
        ("train.features", lambda features: features[1:]),
        ("train.colours", lambda colours: colours[:, :5]),
        ("train.rows", 10**12),
        ("bank.n_prototypes", 2**16 + 1),
        ("bank.seed", 2**63),
        ("train.named", lambda named: named[:5]),
        ("train.weights", lambda weights: -weights),
        ("train.rows", 0),
        ("train.grouped", "yes"),
        ("bank.n_prototypes", 0),
        ("bank.merge_above", "much"),
        ("bank.more", 1),
        ("validation.rows", -1),
    ],
)
def test_a_doctored_record_is_refused(change, value):
    with pytest.raises(ArtifactError):
        Record.from_artifact(doctored(change, value), n_classes=3, width=8)


@pytest.mark.parametrize("asked", ["features", "names"])
def test_what_would_unfold_to_gigabytes_is_refused_before_it_does(monkeypatch, asked):
    width = 50 if asked == "features" else 5
    artifact = record(features=np.ones((60, width), np.float16)).to_artifact()
    most = {"features": 60 * 50 - 1, "names": 60 * 16 - 1}  # names of contents have 16 letters
    monkeypatch.setattr("tdumpra.method.record._MOST_VALUES", most[asked])
    with pytest.raises(ArtifactError, match="more than a record holds" if asked == "features" else "too long"):
        Record.from_artifact(artifact, n_classes=3, width=8)


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_names_are_written_as_json_writes_them(monkeypatch, at_once):
    monkeypatch.setattr(record_module, "_NAMES_AT_ONCE", at_once)
    names = {"ids": np.array(["a", 'b"', "ä"]), "groups": None, "content": np.array([], np.str_)}
    plain = {key: None if column is None else column.tolist() for key, column in names.items()}
    assert record_module._names_json(names).decode() == json.dumps(plain)
