import importlib.util
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tdumpra.core import kmeans
from tdumpra.core.kmeans import lloyd, seed_centers, spherical_kmeans
from tdumpra.core.rowwise import normalise


def rows(seed, n=40, d=4, dtype=torch.float64):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def lumps(seed, n_lumps=4, per_lump=15, d=6, spread=0.05):
    """Tight lumps around random directions."""
    generator = torch.Generator().manual_seed(seed)
    middle = normalise(torch.randn(n_lumps, d, generator=generator)).repeat_interleave(per_lump, 0)
    return middle + spread * torch.randn(middle.shape, generator=generator)


def objective(x, centers, weight=None):
    """Equation spherical_kmeans_obj, row by row."""
    unit, total = normalise(x).double().tolist(), 0.0
    weight = [1.0] * len(unit) if weight is None else weight.tolist()
    for row, w in zip(unit, weight, strict=True):
        total += w * min(1 - dot(row, center) for center in centers.double().tolist())
    return total


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def reference_lloyd(x, centers, weight, max_iter):
    """Equations spherical_kmeans_obj and spherical_kmeans_update in loops; no cluster may run empty."""
    x, centers, weight = x.tolist(), centers.tolist(), weight.tolist()

    def assign():
        return [max(range(len(centers)), key=lambda k: dot(row, centers[k])) for row in x]

    def cost(labels):
        return sum(w * (1 - dot(row, centers[k])) for row, k, w in zip(x, labels, weight, strict=True))

    labels = assign()
    history = [cost(labels)]
    for _ in range(max_iter):
        for k in range(len(centers)):
            total = [0.0] * len(x[0])
            for row, label, w in zip(x, labels, weight, strict=True):
                if label == k:
                    total = [t + w * value for t, value in zip(total, row, strict=True)]
            length = math.sqrt(dot(total, total))
            centers[k] = [t / length for t in total]
        before, labels = labels, assign()
        history.append(cost(labels))
        if labels == before:
            break
    return centers, labels, history


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [7, 2**20])
def test_lloyd_equals_the_naive_loops(monkeypatch, seed, dtype, chunk):
    monkeypatch.setattr(kmeans, "_CHUNK_ENTRIES", chunk)
    x = normalise(rows(seed)).to(dtype)
    weight = torch.rand(len(x), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype) + 0.1
    centers, labels, history = reference_lloyd(x, x[:3], weight, max_iter=50)
    result = lloyd(x, x[:3], weight, max_iter=50)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    assert result.assignment.tolist() == labels
    assert result.centers.tolist() == [pytest.approx(center, abs=tolerance) for center in centers]
    assert list(result.history) == pytest.approx(history, rel=tolerance)
    assert result.objective == result.history[-1]
    assert result.centers.dtype == dtype


@pytest.mark.parametrize("seed", range(6))
def test_reaches_the_best_of_all_partitions(seed):
    x = normalise(rows(seed, n=9, d=3))
    best = math.inf
    for split in itertools.product((0, 1), repeat=8):  # row 8 is in part 0
        part = torch.tensor([*split, 0], dtype=torch.bool)
        lengths = [float(x[side].sum(0).norm()) for side in (part, ~part) if side.any()]
        best = min(best, 9 - sum(lengths))
    assert spherical_kmeans(x, 2, n_init=10).objective == pytest.approx(best, rel=1e-9)


def test_by_hand():
    # One centre for e1, e1, e2 is (2, 1) / sqrt 5, with cosines 2 / sqrt 5 twice and 1 / sqrt 5: 3 - sqrt 5 = 0.764.
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    one = spherical_kmeans(x, 1)
    torch.testing.assert_close(one.centers, torch.tensor([[2.0, 1.0]]) / math.sqrt(5))
    assert one.objective == pytest.approx(3 - math.sqrt(5), rel=1e-6)
    assert spherical_kmeans(x, 2).objective == 0


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 6))
@pytest.mark.filterwarnings("ignore:.*distinct directions")
def test_what_every_result_satisfies(seed, n, k):
    x = rows(seed, n=n, d=3)
    result = spherical_kmeans(x, k, seed=seed, n_init=2)
    unit = normalise(x)
    assert len(result.centers) == min(n, k)
    torch.testing.assert_close(result.centers.norm(dim=1), torch.ones(len(result.centers), dtype=x.dtype))
    assert result.objective == pytest.approx(objective(x, result.centers), abs=1e-9)
    assert result.history[-1] == result.objective
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(result.history))
    cosine = unit @ result.centers.T
    torch.testing.assert_close(cosine.gather(1, result.assignment[:, None])[:, 0], cosine.amax(1))
    # each centre is the normalised mean of its rows, and none is empty
    sums = torch.zeros_like(result.centers).index_add_(0, result.assignment, unit)
    torch.testing.assert_close(normalise(sums), result.centers)
    assert result.assignment.unique().tolist() == list(range(len(result.centers)))


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_restarts_are_never_worse(seed):
    x = rows(seed, n=30, d=3)
    objectives = [spherical_kmeans(x, 5, n_init=n, seed=seed).objective for n in (1, 2, 5)]
    assert objectives == sorted(objectives, reverse=True)


def test_restarts_are_used():
    improved = 0
    for seed in range(10):
        x = rows(seed, n=60, d=3)
        improved += spherical_kmeans(x, 8, n_init=8).objective < spherical_kmeans(x, 8, n_init=1).objective - 1e-9
    assert improved >= 5


def test_same_seed_same_result_other_seed_other_seeding():
    x = rows(0, n=60)
    first, again = spherical_kmeans(x, 6, seed=3), spherical_kmeans(x, 6, seed=3)
    assert torch.equal(first.centers, again.centers)
    assert torch.equal(first.assignment, again.assignment)
    assert first.history == again.history
    assert len({spherical_kmeans(x, 6, seed=seed, n_init=1).history for seed in range(5)}) > 1


def test_the_global_generator_is_neither_used_nor_moved():
    x = rows(0)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = spherical_kmeans(x, 3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(spherical_kmeans(x, 3).centers, first.centers)


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_lengths_do_not_matter(seed):
    x = rows(seed)
    scale = torch.rand(len(x), 1, generator=torch.Generator().manual_seed(seed), dtype=x.dtype) * 100 + 0.01
    torch.testing.assert_close(spherical_kmeans(x * scale, 3).centers, spherical_kmeans(x, 3).centers)


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 3), min_size=12, max_size=12).filter(lambda w: sum(map(bool, w)) > 3), st.integers(0, 99)
)
def test_weight_n_equals_n_copies(weights, seed):
    x = rows(seed, n=12)
    weight = torch.tensor(weights)
    weighted = spherical_kmeans(x, 3, seed=seed, sample_weight=weight.double())
    copied = spherical_kmeans(x.repeat_interleave(weight, 0), 3, seed=seed)
    assert weighted.objective == pytest.approx(copied.objective, rel=1e-9, abs=1e-12)
    torch.testing.assert_close(weighted.centers, copied.centers)
    assert torch.equal(weighted.assignment.repeat_interleave(weight), copied.assignment)


def test_weights_may_be_of_another_type():
    x = rows(0)
    weight = torch.arange(1, len(x) + 1)
    whole, real = (spherical_kmeans(x, 3, sample_weight=w) for w in (weight.double(), weight.float()))
    assert torch.equal(whole.centers, real.centers)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    x = lumps(0).to(dtype)
    result = spherical_kmeans(x, 4)
    assert result.centers.dtype == torch.float32
    assert torch.equal(result.centers, spherical_kmeans(x.float(), 4).centers)


def test_finds_lumps():
    for seed in range(10):
        result = spherical_kmeans(lumps(seed), 4, n_init=2, seed=seed)
        assert len(result.assignment.view(4, 15).unique(dim=1).T) == 1  # every lump in one cluster
        assert len(result.assignment.unique()) == 4


def test_iterations_are_counted():
    x = rows(1, n=200)
    assert len(spherical_kmeans(x, 10, max_iter=1, n_init=1).history) == 2
    assert len(spherical_kmeans(x, 10, max_iter=3, n_init=1).history) == 4


def test_an_engine_takes_the_place_of_lloyd():
    calls = []

    def engine(x, centers, weight, *, max_iter):
        calls.append((centers.shape, max_iter))
        return lloyd(x, centers, weight, max_iter=max_iter)

    x = rows(2)
    result = spherical_kmeans(x, 3, n_init=2, max_iter=7, engine=engine)
    assert calls == [((3, 4), 7)] * 2
    assert result.history == spherical_kmeans(x, 3, n_init=2, max_iter=7).history


def test_no_gradient_is_recorded():
    assert not spherical_kmeans(rows(0).requires_grad_(), 2).centers.requires_grad


class TestSeeding:
    def test_seeds_are_rows_far_from_each_other(self):
        for seed in range(20):
            x = normalise(lumps(seed, n_lumps=5, spread=0.001))
            centers = seed_centers(x, 5, torch.Generator().manual_seed(seed), torch.ones(len(x)))
            assert all((center == x).all(1).any() for center in centers)
            closeness = centers @ centers.T - 2 * torch.eye(5)
            assert float(closeness.max()) < 0.999  # one of each lump

    def test_the_distance_is_the_cosine(self):
        # e1 is the only row with weight in the first draw; then -e1 (distance 2) beats e2 (distance 1): the sum that
        # is left is 1 with -e1 chosen and 2 with e2 chosen.
        x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        distance = kmeans._cosine_distance(x, x[:1])
        assert distance.tolist() == [[0.0, 1.0, 2.0]]
        x = torch.tensor([[1.0, 0.0]] + [[0.0, 1.0]] * 3 + [[-1.0, 0.0]])
        weight = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0])
        picked = [seed_centers(x, 2, torch.Generator().manual_seed(s), weight)[1].tolist() for s in range(40)]
        assert [0.0, 1.0] in picked

    def test_greedy_takes_the_candidate_that_leaves_least(self, monkeypatch):
        x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
        draws = iter([torch.tensor([0]), torch.tensor([1, 2])])
        monkeypatch.setattr(kmeans, "_draw", lambda mass, n, generator: next(draws))
        # After e1: choosing -e1 leaves 3 x 1; choosing e2 leaves the single 1 of -e1.
        centers = seed_centers(x, 2, torch.Generator(), torch.ones(5))
        assert centers.tolist() == [[1.0, 0.0], [0.0, 1.0]]

    def test_weight_counts_in_the_greedy_choice(self, monkeypatch):
        x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
        draws = iter([torch.tensor([0]), torch.tensor([1, 2])])
        monkeypatch.setattr(kmeans, "_draw", lambda mass, n, generator: next(draws))
        centers = seed_centers(x, 2, torch.Generator(), torch.tensor([1.0, 9.0, 1.0, 1.0, 1.0]))
        assert centers.tolist() == [[1.0, 0.0], [-1.0, 0.0]]

    def test_the_number_of_candidates(self, monkeypatch):
        asked = []
        draw = kmeans._draw

        def spy(mass, n, generator):
            asked.append(n)
            return draw(mass, n, generator)

        monkeypatch.setattr(kmeans, "_draw", spy)
        seed_centers(normalise(rows(0)), 8, torch.Generator(), torch.ones(40, dtype=torch.float64))
        assert asked == [1] + [2 + int(math.log(8))] * 7  # as many as scikit-learn tries

    def test_draws_follow_the_mass(self):
        mass = torch.tensor([[0.0, 1.0, 0.0, 3.0, 0.0]])
        drawn = kmeans._draw(mass, 20_000, torch.Generator().manual_seed(0))
        counts = torch.bincount(drawn, minlength=5).tolist()
        assert counts[0] == counts[2] == counts[4] == 0
        assert counts[3] / counts[1] == pytest.approx(3, rel=0.1)

    def test_a_draw_of_exactly_zero_is_no_row_without_mass(self, monkeypatch):
        monkeypatch.setattr(torch, "rand", lambda n, **options: torch.zeros(n, dtype=torch.float64))
        assert kmeans._draw(torch.tensor([0.0, 0.0, 2.0, 1.0]), 1, torch.Generator()).tolist() == [2]

    def test_coincident_rows_are_no_distance_apart(self):
        x = normalise(rows(0, n=200, d=50, dtype=torch.float32))
        twin = normalise(x * torch.linspace(0.1, 9, 200)[:, None])  # the same, but for rounding
        assert not torch.equal(x, twin)
        assert not kmeans._cosine_distance(x, twin).diagonal().any()
        copies = torch.cat([x[:3], twin[:3], x[:3]])
        assert len(seed_centers(copies, 9, torch.Generator().manual_seed(0), torch.ones(9))) == 3

    def test_a_weightless_row_is_no_seed(self):
        x = normalise(rows(0))
        weight = torch.zeros(len(x), dtype=x.dtype)
        weight[5:8] = 1
        for seed in range(20):
            centers = seed_centers(x, 3, torch.Generator().manual_seed(seed), weight)
            assert sorted(centers.tolist()) == sorted(x[5:8].tolist())


class TestDegenerate:
    def test_one_row(self):
        result = spherical_kmeans(torch.tensor([[0.0, 3.0]]), 1)
        assert result.centers.tolist() == [[0.0, 1.0]]
        assert (result.assignment.tolist(), result.objective) == ([0], 0.0)

    def test_fewer_rows_than_clusters(self):
        with pytest.warns(UserWarning, match="5 clusters were asked for, and the rows hold only 2 distinct directions"):
            result = spherical_kmeans(torch.eye(2), 5)
        assert len(result.centers) == 2
        assert result.objective == 0

    def test_the_warning_names_the_caller(self):
        # Loaded under another name, the module has no shape checks around its functions, as for users.
        spec = importlib.util.spec_from_file_location("plain_kmeans", kmeans.__file__)
        assert spec is not None
        assert spec.loader is not None
        plain = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(plain)
        with pytest.warns(UserWarning, match="distinct directions") as caught:
            plain.spherical_kmeans(torch.eye(2), 3)
        assert caught[0].filename == __file__

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_duplicates_are_one_direction(self, dtype):
        x = rows(0, n=3, dtype=dtype).repeat(20, 1) * torch.linspace(0.1, 9, 60, dtype=dtype)[:, None]
        with pytest.warns(UserWarning, match="only 3 distinct directions"):
            result = spherical_kmeans(x, 6)
        assert len(result.centers) == 3
        assert result.objective == pytest.approx(0, abs=1e-4)

    def test_empty_clusters_move_to_the_worst_served_rows(self):
        x = torch.eye(3)
        result = lloyd(x, x[[0, 0, 0]], torch.ones(3), max_iter=10)
        assert result.objective == 0
        assert len(result.centers) == 3

    def test_the_worst_served_row_is_the_one_that_costs_most(self):
        # All rows start at e1's centre. -e1 lies at distance 2, e2 at 1 with weight 3: e2 costs more.
        x, weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), torch.tensor([1.0, 3.0, 1.0])
        rows = kmeans._Rows(x, weight, x * weight[:, None])
        centers = kmeans._update(rows, x[[0, 0]], kmeans._assign(rows, x[[0, 0]]))
        assert centers[1].tolist() == [0.0, 1.0]

    def test_a_run_goes_on_after_a_cluster_was_moved(self):
        x = normalise(lumps(3, n_lumps=3))
        result = lloyd(x, x[[0, 0, 0]], torch.ones(len(x)), max_iter=50)
        assert len(result.centers) == 3
        assert all(later <= earlier + 1e-5 for earlier, later in itertools.pairwise(result.history))

    def test_more_empty_clusters_than_rows(self):
        x = torch.eye(2)
        result = lloyd(x, x[[0] * 5], torch.ones(2), max_iter=10)
        assert sorted(result.centers.tolist()) == [[0.0, 1.0], [1.0, 0.0]]

    def test_a_spare_cluster_is_left_out_and_the_others_keep_their_order(self):
        x = torch.eye(2)
        result = lloyd(x, torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]), torch.ones(2), max_iter=5)
        assert result.centers.tolist() == [[1.0, 0.0], [0.0, 1.0]]
        assert result.assignment.tolist() == [0, 1]

    def test_a_row_that_is_well_served_gets_no_second_centre(self):
        x = torch.eye(2)
        result = lloyd(x, torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.ones(2), max_iter=5)
        assert result.history == (0.0, 0.0)  # one iteration: nothing moved

    def test_rounding_makes_no_distance_negative(self):
        x = normalise(rows(0, n=500, dtype=torch.float32))
        assert bool(((x * x).sum(1) > 1).any())  # cosines above one do occur
        assigned = kmeans._assign(kmeans._Rows(x, torch.ones(500), x), x)
        assert float(assigned.distance.min()) == 0
        assert assigned.objective >= 0

    def test_a_weightless_row_gets_a_live_cluster(self):
        x = torch.eye(2)
        result = lloyd(x, x[[1, 0]], torch.tensor([1.0, 0.0]), max_iter=5)
        assert result.centers.tolist() == [[1.0, 0.0]]
        assert result.assignment.tolist() == [0, 0]

    def test_antipodal_rows_cancel_and_the_centre_stays(self):
        x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        result = spherical_kmeans(x, 1)
        assert result.objective == pytest.approx(2)
        assert abs(float(result.centers[0, 0])) == 1
        assert spherical_kmeans(x, 2).objective == 0

    def test_rows_that_almost_cancel_do_not_blow_up(self):
        x = torch.tensor([[1.0, 1e-9], [-1.0, 0.0], [1.0, 0.0], [-1.0, 1e-9]])
        result = spherical_kmeans(x, 1)
        torch.testing.assert_close(result.centers.norm(dim=1), torch.ones(1))
        assert result.objective == pytest.approx(4, abs=1e-5)

    def test_ties_go_to_the_first_centre(self):
        result = lloyd(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), torch.eye(2), torch.ones(3), max_iter=1)
        assert result.assignment[2] == 0


@pytest.mark.usefixtures("without_shape_checks")
class TestRejects:
    @pytest.mark.parametrize("x", [np.eye(2), torch.ones(3), torch.ones(2, 2, dtype=torch.int64)])
    def test_what_is_no_matrix_of_floats(self, x):
        with pytest.raises(TypeError, match=r"x must be a floating-point tensor of rows \(n, d\)"):
            spherical_kmeans(x, 1)

    @pytest.mark.parametrize("name", ["n_clusters", "n_init", "max_iter"])
    def test_counts(self, name):
        arguments: dict[str, Any] = {"n_clusters": 1, "n_init": 1, "max_iter": 1}
        with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
            spherical_kmeans(torch.eye(2), **{**arguments, name: 0})
        for value in (1.5, True):
            with pytest.raises(TypeError, match=f"{name} must be a whole number, not {value}"):
                spherical_kmeans(torch.eye(2), **{**arguments, name: value})
        spherical_kmeans(torch.eye(2), **{**arguments, name: np.int64(1)})

    def test_no_rows(self):
        with pytest.raises(ValueError, match="x has no rows to cluster"):
            spherical_kmeans(torch.zeros(0, 2), 1)

    @pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
    def test_rows_without_a_direction(self, bad):
        x = torch.ones(4, 2)
        x[2] = bad
        with pytest.raises(ValueError, match=r"x has a row without a direction \(zero or not finite\): row 2"):
            spherical_kmeans(x, 1)

    @pytest.mark.parametrize("weight", [[1.0, -1.0], [0.0, 0.0], [1.0, math.nan], [1.0, math.inf]])
    def test_weights(self, weight):
        with pytest.raises(ValueError, match="sample_weight must be finite and not negative, and not all zero"):
            spherical_kmeans(torch.eye(2), 1, sample_weight=torch.tensor(weight))

    def test_one_weight_per_row(self):
        with pytest.raises(ValueError, match=r"one entry per row: 2, not shape \(3,\)"):
            spherical_kmeans(torch.eye(2), 1, sample_weight=torch.ones(3))
