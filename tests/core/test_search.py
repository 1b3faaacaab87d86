import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tdumpra.core.gate import GateSignals, GateThresholds, gate_opens
from tdumpra.core.search import above, below, orthant_sums, tally

THETA, BETA, MARGIN, DELTA = (0.3, 0.7, 0.5), (0.1, 0.6, 0.3), (0.0, 0.2), (0.05, 0.1, 0.3)


def signals(seed, n=60, dtype=np.float32, on_grid=True):
    """Four signals; half of the values are exactly thresholds, as float32 knows them."""
    rng = np.random.default_rng(seed)
    columns = []
    for candidates in (THETA, BETA, MARGIN, DELTA):
        values = rng.random(n) * 0.8
        if on_grid:
            values = np.where(rng.random(n) < 0.5, rng.choice(candidates, n), values)
        columns.append(values.astype(dtype))
    return columns


def brute_force(columns, contributions, axes):
    """Every combination, with the gate itself as the judge."""
    tensors = [torch.from_numpy(column) for column in columns]
    labels = torch.zeros(len(columns[0]), dtype=torch.int64)
    seen = GateSignals(tensors[0], tensors[0], tensors[1], tensors[2], tensors[3], labels, labels + 1)
    shape = tuple(len(axis.values) for axis in axes)
    sums = np.zeros((*shape, contributions.shape[1]))
    for index in itertools.product(*map(range, shape)):
        theta, beta, margin, delta = (float(axis.values[i]) for axis, i in zip(axes, index, strict=True))
        opened = gate_opens(seen, GateThresholds(theta, beta, margin, delta, 0.5)).numpy()
        for row in np.flatnonzero(opened):
            sums[index] += contributions[row]
    return sums


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(4))
def test_equals_every_combination(seed, dtype):
    columns = signals(seed, dtype=dtype)
    contributions = np.random.default_rng(seed).normal(size=(60, 3))
    axes = (
        below(columns[0], THETA),
        above(columns[1], BETA),
        above(columns[2], MARGIN),
        above(columns[3], DELTA),
    )
    found = orthant_sums(axes, contributions)
    assert found.shape == (3, 3, 2, 3, 3)
    np.testing.assert_allclose(found, brute_force(columns, contributions, axes), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_grids_own_numbers_judge_as_the_gate_does(dtype):
    # A threshold written as 0.7 is compared in the signal's precision, here and in the gate.
    signal = np.array([0.7], dtype=dtype)
    assert below(signal, (0.7,)).first_open.tolist() == [1]  # never: not strictly below
    assert above(signal, (0.7,)).first_open.tolist() == [1]
    up, down = (np.nextafter(signal, dtype(side)) for side in (1, 0))
    assert below(down, (0.7,)).first_open.tolist() == [0]
    assert above(up, (0.7,)).first_open.tolist() == [0]


def test_axes_by_hand():
    # strict to loose: thresholds of "below" rise, those of "above" fall
    low = below(np.array([0.1, 0.5, 0.9]), (0.5, 0.2, 0.7))
    assert low.values.tolist() == [0.2, 0.5, 0.7]
    assert low.first_open.tolist() == [0, 2, 3]
    high = above(np.array([0.1, 0.5, 0.9]), (0.5, 0.2, 0.7))
    assert high.values.tolist() == [0.7, 0.5, 0.2]
    assert high.first_open.tolist() == [3, 2, 0]


def test_sums_by_hand():
    # Row 0 passes both thresholds of the first axis, row 1 the loose one; both pass the second axis's only one.
    axes = (below(np.array([0.1, 0.3]), (0.2, 0.4)), above(np.array([0.9, 0.9]), (0.5,)))
    found = orthant_sums(axes, np.array([[1.0, 10.0], [2.0, 20.0]]))
    assert found.tolist() == [[[1.0, 10.0]], [[3.0, 30.0]]]


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_one_axis_is_a_count(seed, n):
    rng = np.random.default_rng(seed)
    signal = (rng.integers(0, 9, n) / 8).astype(np.float32)
    candidates = tuple((rng.integers(0, 9, 4) / 8).tolist())  # with repetitions
    ones = np.ones((n, 1))
    axis = below(signal, candidates)
    assert orthant_sums((axis,), ones)[:, 0].tolist() == [float((signal < t).sum()) for t in axis.values]
    axis = above(signal, candidates)
    assert orthant_sums((axis,), ones)[:, 0].tolist() == [float((signal > t).sum()) for t in axis.values]


def test_rows_that_no_combination_lets_through():
    axes = (below(np.array([0.9]), (0.5,)), above(np.array([0.9]), (0.5,)))
    assert orthant_sums(axes, np.ones((1, 2))).tolist() == [[[0.0, 0.0]]]


def test_no_rows():
    axes = (below(np.zeros(0), (0.5, 0.6)), above(np.zeros(0), (0.5,)))
    assert orthant_sums(axes, np.zeros((0, 2))).tolist() == [[[0.0, 0.0]], [[0.0, 0.0]]]


def test_a_tally_counts_each_class_as_the_gate_would():
    rng = np.random.default_rng(0)
    signal, n_classes = rng.random(200), 40
    before, after, y = rng.integers(0, n_classes, (3, 200))
    axes = (below(signal, (0.2, 0.5, 0.9)),)
    found = tally(axes, before, after, y, rng.normal(size=200), n_classes=n_classes)
    for place, threshold in enumerate(axes[0].values):
        opened = signal < threshold
        label = np.where(opened, after, before)
        for c in range(n_classes):
            was, now = ((each == c) & (y == c) for each in (before, label))
            assert found.correct[place, c] == now.sum() - was.sum()
            assert found.predicted[place, c] == (label == c).sum() - (before == c).sum()
        assert found.opened[place] == opened.sum()
        assert found.broken[place] == ((before == y) & (label != y)).sum()
