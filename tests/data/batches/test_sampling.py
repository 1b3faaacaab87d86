from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdumpra.data.batches.sampling import BatchPlan, Sample

NUMBERS = np.arange(100, 200)


def plan(**changes) -> BatchPlan:
    return BatchPlan(**{"numbers": NUMBERS, "batch_size": 16, "seed": 3, **changes})


def pairs(samples: list[Sample]) -> list[tuple[int, int]]:
    return [pair for sample in samples for pair in zip(sample.numbers.tolist(), sample.copy.tolist(), strict=True)]


def test_an_epoch_shows_each_image_once():
    shown = pairs(list(plan(batch_size=20).batches(0)))
    assert sorted(shown) == [(number, 0) for number in range(100, 200)]


def test_a_batch_that_is_not_full_is_dropped():
    assert [len(sample.numbers) for sample in plan().batches(0)] == [16] * 6
    assert plan().n_batches == 6


def test_order_depends_on_seed_and_epoch_alone():
    assert pairs(list(plan().batches(4))) == pairs(list(plan().batches(4)))
    assert pairs(list(plan().batches(4))) != pairs(list(plan().batches(5)))
    assert pairs(list(plan().batches(4))) != pairs(list(plan(seed=4).batches(4)))


@pytest.mark.parametrize("balanced", [False, True])
def test_a_resumed_epoch_goes_on_where_it_stopped(balanced):
    the_plan = plan(balanced=balanced, labels=NUMBERS % 3)
    whole = list(the_plan.batches(2))
    assert pairs(list(the_plan.batches(2, start=4))) == pairs(whole[4:])
    assert list(the_plan.batches(2, start=6)) == []


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("world_size", [2, 4])
def test_the_processes_together_see_the_single_processs_batches(world_size, balanced):
    settings_ = {"balanced": balanced, "labels": NUMBERS % 3}
    shards = [list(plan(rank=rank, world_size=world_size, **settings_).batches(1)) for rank in range(world_size)]
    for whole, *parts in zip(plan(**settings_).batches(1), *shards, strict=True):
        assert {len(part.numbers) for part in parts} == {16 // world_size}
        assert sorted(pairs([whole])) == sorted(pairs(parts))


@settings(max_examples=50, deadline=None)
@given(labels=st.lists(st.sampled_from([0, 0, 0, 0, 0, 1, 4]), min_size=8, max_size=80), epoch=st.integers(0, 9))
def test_balanced_epochs_show_classes_equally_often(labels, epoch):
    y = np.array(labels)
    the_plan = BatchPlan(numbers=np.arange(len(y)), batch_size=1, seed=0, balanced=True, labels=y)
    shown = pairs(list(the_plan.batches(epoch)))
    assert len(shown) == len(y)
    assert len(set(shown)) == len(shown)  # a second showing is told apart from the first
    classes = np.unique(y)
    counts = np.array([sum(y[number] == c for number, _ in shown) for c in classes])
    quota = -(-len(y) // len(classes))
    assert counts.max() <= quota
    assert counts.sum() == len(y)
    assert counts.min() >= quota - (len(classes) * quota - len(y))
    for c in classes:  # within a class, nobody comes twice more often than anybody else
        times = [sum(n == number for n, _ in shown) for number in np.flatnonzero(y == c)]
        assert max(times) - min(times) <= len(classes)


def test_a_common_class_takes_turns_over_the_epochs():
    y = np.array([0] * 90 + [1] * 10)
    the_plan = plan(balanced=True, labels=y)
    seen = {number for epoch in range(8) for number, _ in pairs(list(the_plan.batches(epoch)))}
    assert len(seen) > 95


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 101}, "100 images make no full batch of 101"),
        ({"world_size": 3}, "cannot be shared evenly by 3"),
        ({"rank": 2, "world_size": 2}, "rank must be below"),
        ({"balanced": True}, "one label for each image"),
    ],
)
def test_plans_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        plan(**changes)
