from __future__ import annotations

import numpy as np
import pytest

from tdumpra.data.batches.counter_rng import permutation, philox, uniforms


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [  # the known answers that the authors publish with Random123
        (0, "00000000 00000000 00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, "ffffffff ffffffff ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (0x299F31D0A4093822, "243f6a88 85a308d3 13198a2e 03707344", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_published_answers(key, counter, expected):
    words = np.array([[int(word, 16) for word in counter.split()]], dtype=np.uint32)
    assert [f"{word:08x}" for word in philox(key, words)[0]] == expected.split()


def draw(n: int = 1000, *, seed: int = 1, epoch: int = 0, stream: int = 0, blocks: int = 3) -> np.ndarray:
    index = np.arange(n)
    return uniforms(seed, epoch=epoch, index=index, stream=np.full(n, stream), blocks=blocks)


def test_uniforms_are_uniform():
    u = draw(20_000)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.003
    assert np.abs(np.histogram(u, 16, (0, 1))[0] / u.size * 16 - 1).max() < 0.03


@pytest.mark.parametrize("other", [{"seed": 2}, {"seed": 1 + 2**40}, {"epoch": 1}, {"stream": 1}])
def test_every_coordinate_matters(other):
    assert abs(np.corrcoef(draw().ravel(), draw(**other).ravel())[0, 1]) < 0.05


def test_a_row_does_not_depend_on_its_neighbours():
    index = np.array([7, 900, 3])
    alone = uniforms(1, epoch=0, index=index, stream=np.zeros(3, np.int64), blocks=3)
    np.testing.assert_array_equal(alone, draw()[index])
    np.testing.assert_array_equal(draw(blocks=2), draw(blocks=3)[:, :2])


def test_permutations_are_permutations():
    first, second = (permutation(0, epoch=epoch, length=500, stream=9) for epoch in (0, 1))
    np.testing.assert_array_equal(np.sort(first), np.arange(500))
    assert (first != second).mean() > 0.98
    assert abs(np.corrcoef(first, np.arange(500))[0, 1]) < 0.15
