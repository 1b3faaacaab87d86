"""The replay record: few rows of many groups, and those that wait move up where others leave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tdumpra.method.record import BankRecipe, Record
from tdumpra.method.replay import REPLAY_ROWS, RESERVE_ROWS, in_use
from tdumpra.method.rows import KeptRows, no_rows

N = 3 * 2 * REPLAY_ROWS
RECIPE = BankRecipe(2, 0, None)


def rows(groups: np.ndarray | None = None) -> KeptRows:
    """Return two rows of each group, unless groups are given; features tell rows apart."""
    number = np.arange(N)
    return KeptRows(
        ids=np.array([f"image{i}" for i in number]),
        groups=np.array([f"lesion{i // 2}" for i in number]) if groups is None else groups,
        y=number % 3, p=np.full((N, 3), 1 / 3, np.float32), z=np.ones((N, 2), np.float32),
        features=np.stack([number // 100, number % 100], 1).astype(np.float16),
    )  # fmt: skip


def kept(train: KeptRows) -> Record:
    return Record.keep(train, no_rows(3, 2), RECIPE)


def test_features_are_kept_of_few_rows_of_each_class_and_of_many_groups():
    lone = np.array([f"lesion{i}" for i in range(N)])
    record = kept(rows(np.where(np.arange(N) < N // 2, "one", lone)))  # one large lesion among many small ones
    train = record.train
    assert np.bincount(train.y[train.has_features]).tolist() == [REPLAY_ROWS + RESERVE_ROWS] * 3
    assert np.bincount(train.y[record.replay]).tolist() == [REPLAY_ROWS] * 3
    assert (train.groups[record.replay] == "one").sum() <= 3
    assert not np.asarray(train.features)[~train.has_features].any()


@pytest.mark.parametrize("name", ["groups", "ids"])
def test_a_removal_leaves_the_replay_of_a_model_that_never_held_the_rows(name):
    train = rows() if name == "groups" else rows(rows().ids)  # two rows of a lesion, of two classes, or one
    everyone = kept(train)
    used = np.flatnonzero(everyone.replay & (train.y == 1))[: RESERVE_ROWS // 2]
    gone = np.unique(getattr(train, name)[used])
    left, never = everyone.without(**{name: gone}), kept(train.rows(~np.isin(getattr(train, name), gone)))
    np.testing.assert_array_equal(left.replay, never.replay)
    assert left.train.features is not None
    assert never.train.features is not None
    np.testing.assert_array_equal(left.train.features[left.replay], never.train.features[never.replay])
    assert np.bincount(left.train.y[left.replay]).tolist() == [REPLAY_ROWS] * 3


def test_where_none_waits_any_more_a_place_stays_empty():
    everyone = kept(rows(rows().ids))
    used = np.flatnonzero(everyone.train.has_features & (everyone.train.y == 1))
    left = everyone.without(ids=everyone.train.ids[used[: RESERVE_ROWS + 5]].tolist())
    assert np.bincount(left.train.y[left.replay]).tolist() == [REPLAY_ROWS, REPLAY_ROWS - 5, REPLAY_ROWS]


def test_added_rows_are_used_whatever_the_own_ones_are():
    record = kept(rows())
    added = replace(rows(), ids=np.array([f"added{i}" for i in range(N)])).rows(np.arange(30))
    grown = record.with_rows(added, source="there")
    used = in_use(grown.train, RECIPE.seed)
    np.testing.assert_array_equal(used[:N], record.replay)
    assert used[N:].all()
