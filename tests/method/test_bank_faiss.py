import sys

import pytest
import torch

from tdumpra.core.kmeans import lloyd, seed_centers, spherical_kmeans
from tdumpra.core.rowwise import normalise
from tdumpra.errors import MissingExtraError
from tdumpra.method import bank_faiss as faiss_kmeans
from tdumpra.method.bank_faiss import NeighbourIndex, faiss_lloyd


def rows(seed, n=400, d=8, n_lumps=6, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    middle = torch.randn(n_lumps, d, generator=generator)
    return (
        middle[torch.randint(n_lumps, (n,), generator=generator)] + 0.3 * torch.randn(n, d, generator=generator)
    ).to(dtype)


@pytest.fixture(scope="module")
def faiss():
    return pytest.importorskip("faiss")


@pytest.mark.usefixtures("faiss")
class TestEngine:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_reaches_the_same_objective(self, seed, dtype):
        x = rows(seed, dtype=dtype)
        ours, theirs = spherical_kmeans(x, 6, seed=seed), spherical_kmeans(x, 6, seed=seed, engine=faiss_lloyd)
        assert theirs.objective == pytest.approx(ours.objective, rel=1e-3)
        assert theirs.centers.dtype == dtype
        torch.testing.assert_close(theirs.centers.norm(dim=1), torch.ones(6, dtype=dtype))

    def test_the_same_start_gives_the_same_descent(self):
        x = normalise(rows(1))
        weight = torch.ones(len(x))
        start = seed_centers(x, 6, torch.Generator().manual_seed(0), weight)
        theirs, ours = (engine(x, start.clone(), weight, max_iter=50) for engine in (faiss_lloyd, lloyd))
        assert torch.equal(theirs.assignment, ours.assignment)
        torch.testing.assert_close(theirs.centers, ours.centers, atol=1e-5, rtol=0)

    def test_every_row_counts(self):
        # Left alone, faiss takes 256 rows per centre at most.
        x = normalise(rows(2, n=3000))
        result = spherical_kmeans(x, 1, engine=faiss_lloyd)
        torch.testing.assert_close(result.centers, normalise(x.sum(0, keepdim=True)), atol=1e-5, rtol=0)

    def test_faiss_itself_gets_everything_it_needs(self, monkeypatch):
        # The closing run would hide what faiss was not told; so look at what it is handed.
        handed = []

        def spy(x, centers, weight, *, max_iter):
            handed.append((centers, max_iter))
            return lloyd(x, centers, weight, max_iter=max_iter)

        monkeypatch.setattr(faiss_kmeans, "lloyd", spy)
        x, weight = normalise(rows(2, n=3000)), torch.rand(3000, generator=torch.Generator().manual_seed(0)) ** 4
        faiss_lloyd(x, x[:1].clone(), weight, max_iter=7)
        (center, max_iter) = handed[0]
        assert max_iter == 7
        torch.testing.assert_close(center, normalise((weight[:, None] * x).sum(0, keepdim=True)), atol=1e-5, rtol=0)

    def test_weights_count(self):
        x, weight = rows(3), torch.arange(400) % 3 + 1
        weighted = spherical_kmeans(x, 4, sample_weight=weight.float(), engine=faiss_lloyd)
        copied = spherical_kmeans(x.repeat_interleave(weight, 0), 4, engine=faiss_lloyd)
        assert weighted.objective == pytest.approx(copied.objective, rel=1e-3)

    def test_fewer_rows_than_clusters_and_duplicates(self):
        with pytest.warns(UserWarning, match="only 2 distinct directions"):
            result = spherical_kmeans(torch.eye(2).repeat(5, 1), 4, engine=faiss_lloyd)
        assert len(result.centers) == 2
        assert result.objective == pytest.approx(0, abs=1e-5)


def test_its_objective_is_that_of_faiss_itself(faiss):
    x = normalise(rows(4, n=1000))
    engine = faiss.Kmeans(8, 6, niter=50, nredo=10, spherical=True, seed=1, max_points_per_centroid=1000)
    engine.train(x.numpy())
    theirs = float((1 - (x @ torch.from_numpy(engine.centroids).T).amax(1)).sum())
    assert spherical_kmeans(x, 6, n_init=10).objective <= theirs * 1.001


def test_without_faiss_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(
        MissingExtraError, match=r"the faiss engine of k-means needs faiss: .*pip install 'tdumpra\[faiss\]'"
    ):
        spherical_kmeans(torch.eye(2), 2, engine=faiss_lloyd)


@pytest.mark.usefixtures("faiss")
class TestNeighbourIndex:
    def test_nearly_all_of_the_nearest_are_found(self):
        train, queries = rows(0, n=6000, d=32, n_lumps=40), rows(1, n=200, d=32, n_lumps=40)
        exact = (normalise(queries) @ normalise(train).T).topk(16).indices
        found = NeighbourIndex(train).nearest(queries, 16)
        recall = [len(set(a) & set(b)) / 16 for a, b in zip(found.tolist(), exact.tolist(), strict=True)]
        assert sum(recall) / len(recall) > 0.9
        assert sum(a[0] == b[0] for a, b in zip(found.tolist(), exact.tolist(), strict=True)) > 190

    def test_a_row_is_its_own_neighbour_whatever_its_length(self):
        train = rows(3, n=3000, d=16)
        found = NeighbourIndex(train).nearest(7 * train[:50], 3)
        assert sum(first == number for number, first in enumerate(found[:, 0].tolist())) > 45

    def test_fewer_rows_than_candidates(self):
        train = torch.eye(20)
        found = NeighbourIndex(train).nearest(train[:5], 4)
        assert found[:, 0].tolist() == [0, 1, 2, 3, 4]
        assert found.max() < 20

    def test_some_queries_at_a_time_find_the_same(self, monkeypatch):
        index, queries = NeighbourIndex(rows(0, n=2000)), rows(1, n=100)
        whole = index.nearest(queries, 5)
        monkeypatch.setattr(faiss_kmeans, "_QUERIES", 33)
        assert torch.equal(index.nearest(queries, 5), whole)
