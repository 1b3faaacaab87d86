"""The import hook of conftest.py is at work."""

import pytest
import torch
from jaxtyping import TypeCheckError

from tdumpra.core.gate import entropy, js_divergence


def test_a_vector_is_no_matrix():
    with pytest.raises(TypeCheckError):
        entropy(torch.ones(3))


def test_shapes_must_agree_between_arguments():
    with pytest.raises(TypeCheckError):
        js_divergence(torch.ones(2, 3), torch.ones(2, 4))


@pytest.mark.usefixtures("without_shape_checks")
def test_the_checks_can_be_turned_off():
    assert entropy(torch.full((2,), 0.5)).shape == ()
