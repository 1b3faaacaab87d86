import math
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tdumpra.core import rowwise
from tdumpra.core.rowwise import by_rows, normalise, softmax_rows


def reference(rows):
    """norm(v) = v / |v|, number by number."""
    result = []
    for row in rows.double().tolist():
        length = math.sqrt(sum(value * value for value in row))
        result.append([value / length for value in row])
    return torch.tensor(result, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_equals_the_naive_norm(seed, dtype):
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(seed)).to(dtype)
    unit = normalise(x)
    assert unit.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(unit.double(), reference(x), rtol=0, atol=1e-15 if dtype == torch.float64 else 1e-7)


def test_by_hand():
    # |(3, 4)| = 5
    torch.testing.assert_close(normalise(torch.tensor([[3.0, 4.0]])), torch.tensor([[0.6, 0.8]]))


@given(st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=6), st.floats(-30, 30))
def test_length_is_one_and_scale_does_not_matter(values, exponent):
    row = torch.tensor([[1.0, *values]], dtype=torch.float64)
    unit = normalise((row * 10**exponent).float())
    assert abs(float(unit.double().norm()) - 1) < 1e-6
    torch.testing.assert_close(unit, normalise(row.float()), rtol=1e-4, atol=1e-6)


def test_half_precision_does_not_overflow():
    x = torch.tensor([[300.0, 400.0]], dtype=torch.float16)  # 300² is beyond float16
    torch.testing.assert_close(normalise(x), torch.tensor([[0.6, 0.8]]))


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e30, 1e38])
def test_extreme_rows_keep_their_direction(scale):
    half = math.sqrt(0.5)
    torch.testing.assert_close(normalise(torch.tensor([[1.0, -1.0]]) * scale), torch.tensor([[half, -half]]))


def test_a_zero_row_stays_zero_and_the_input_is_left_alone():
    x = torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    before = x.clone()
    assert normalise(x).tolist() == [[0.0, 0.0], [0.0, 1.0]]
    assert torch.equal(x, before)


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (3,), (2, 4, 3)])
def test_any_leading_axes(shape):
    x = torch.ones(shape)
    assert normalise(x).shape == shape
    torch.testing.assert_close(normalise(x), torch.full(shape, 3**-0.5))


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_a_row_that_is_not_finite_becomes_nan_alone(bad):
    unit = normalise(torch.tensor([[bad, 1.0], [1.0, 0.0]]))
    assert unit[0].isnan().any()
    assert unit[1].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(0, 3), (1, 2), (5, 7), (4097, 8)])
def test_each_row_is_a_softmax(shape, dtype):
    x = 5 * torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(softmax_rows(x), x.softmax(1))
    assert softmax_rows(x).is_contiguous()


def test_impossible_classes_and_large_scores():
    # exp(0) / (exp(0) + exp(-inf)) = 1, and 1e5 does not overflow
    x = torch.tensor([[0.0, -torch.inf], [1e5, 1e5]])
    assert softmax_rows(x).tolist() == [[1.0, 0.0], [0.5, 0.5]]


@pytest.mark.parametrize("n", [1, 4, 5, 11])
def test_rows_some_at_a_time_are_as_all_at_once_and_no_part_is_kept(n, monkeypatch):
    monkeypatch.setattr(rowwise, "BLOCK", 4)
    x = torch.arange(3.0 * n, dtype=torch.float64).view(n, 3)
    parts: list[weakref.ref[torch.Tensor]] = []

    def doubled(rows):
        assert len([part for part in parts if part() is not None]) <= 1  # the last
        found = 2 * rows
        parts.append(weakref.ref(found))
        return found

    assert torch.equal(by_rows(doubled, x), 2 * x)
    assert len(parts) == -(-n // 4)
    sums = by_rows(lambda rows, other: rows.sum(1) > other, x, x[:, 0])
    assert torch.equal(sums, x.sum(1) > x[:, 0])
