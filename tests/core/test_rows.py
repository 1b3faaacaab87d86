from __future__ import annotations

import pytest
import torch

from tdumpra.core.rows import softmax_rows


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
