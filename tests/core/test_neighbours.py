"""Shares among neighbours and affinities to classes, against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.evaluation.test_cache_comparators import naive_affinity
from tests.support import make_problem

from tdumpra.core import neighbours, rowwise
from tdumpra.core.neighbours import cache_affinity, nearest_neighbour_shares


def test_affinity():
    problem = make_problem(dtype=np.float64)
    train, test = problem.train, problem.test
    found = cache_affinity(
        *(torch.from_numpy(a) for a in (train.z, train.y, test.z[:20])), sharpness=(1.0, 5.5), n_classes=4
    )[1]
    assert found.numpy() == pytest.approx(naive_affinity(train.z, train.y, test.z[:20], 5.5), abs=1e-12)


def test_affinity_of_a_class_without_rows_is_zero():
    z = torch.eye(3, dtype=torch.float64)
    found = cache_affinity(z, torch.tensor([0, 1, 1]), z, sharpness=(1.0,), n_classes=3)[0]
    assert (found[:, 2] == 0).all()
    assert torch.isfinite(found).all()


def test_by_hand():
    # cosines with (1, 0): rows 0 and 1 at 1 and 0.8, row 2 at 0.6, row 3 at 0; lengths do not matter
    z = torch.tensor([[9.0, 0.0], [0.8, 0.6], [0.06, 0.08], [0.0, 1.0]])
    shares = nearest_neighbour_shares(
        z, torch.tensor([0, 2, 2, 1]), torch.tensor([[5.0, 0.0]]), n_classes=4, n_neighbours=3
    )
    np.testing.assert_allclose(shares, [[1 / 3, 0, 2 / 3, 0]])


def test_fewer_rows_than_neighbours():
    shares = nearest_neighbour_shares(torch.eye(2), torch.tensor([0, 1]), torch.eye(2), n_classes=2)
    assert shares.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_pieces_do_not_show(monkeypatch):
    rng = np.random.default_rng(0)
    z, y, queries = torch.from_numpy(rng.normal(size=(50, 3))), torch.arange(50) % 4, rng.normal(size=(30, 3))
    whole = nearest_neighbour_shares(z, y, torch.from_numpy(queries), n_classes=4)
    monkeypatch.setattr("tdumpra.core.neighbours._CHUNK_ENTRIES", 350)
    assert torch.equal(nearest_neighbour_shares(z, y, torch.from_numpy(queries), n_classes=4), whole)


def test_some_rows_at_a_time_give_what_all_give_together(monkeypatch):
    train, test = make_problem(dtype=np.float64).train, make_problem(dtype=np.float64).test
    keys, labels, z = (torch.from_numpy(each) for each in (train.z, train.y, test.z))

    def found() -> tuple[torch.Tensor, torch.Tensor]:
        affinity = cache_affinity(keys, labels, z, sharpness=(1.0, 5.5), n_classes=4)
        return affinity, nearest_neighbour_shares(keys, labels, z, n_classes=4)

    together = found()
    for module, name, value in ((neighbours, "_CHUNK_ENTRIES", 7 * len(keys)), (rowwise, "BLOCK", 50)):
        monkeypatch.setattr(module, name, value)
        for whole, parts in zip(together, found(), strict=True):
            torch.testing.assert_close(parts, whole, rtol=1e-13, atol=1e-13)
