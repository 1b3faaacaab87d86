import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tdumpra.core.posterior import prototype_similarity, similarity_posterior, vmf_class_scores
from tdumpra.core.rowwise import normalise


def case(seed, n=5, c=4, k=3, d=6, dtype=torch.float64):
    """Rows, prototypes, and a mask with at least one live prototype per class."""
    generator = torch.Generator().manual_seed(seed)
    z = normalise(torch.randn(n, d, generator=generator, dtype=torch.float64)).to(dtype)
    prototypes = normalise(torch.randn(c, k, d, generator=generator, dtype=torch.float64)).to(dtype)
    mask = torch.rand(c, k, generator=generator) < 0.6
    mask[:, 0] = True
    return z, prototypes, mask


def posterior(z, prototypes, mask, kappa, tau):
    return similarity_posterior(vmf_class_scores(prototype_similarity(z, prototypes), mask, kappa=kappa), tau=tau)


def reference(z, prototypes, mask, kappa, tau):
    """Equations vmf_mixture_score and sim_posterior, with log(K / K_c), in plain floats."""
    widest = max(sum(row) for row in mask.tolist())
    table = []
    for row in z.double().tolist():
        scores = []
        for of_class, live in zip(prototypes.double().tolist(), mask.tolist(), strict=True):
            total = sum(
                math.exp(kappa * sum(a * b for a, b in zip(row, prototype, strict=True)))
                for prototype, alive in zip(of_class, live, strict=True)
                if alive
            )
            scores.append(math.log(total) + math.log(widest / sum(live)))
        weights = [math.exp(score / tau) for score in scores]
        table.append([weight / sum(weights) for weight in weights])
    return torch.tensor(table, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kappa", "tau"), [(20.0, 1.0), (5.0, 0.4), (1.0, 3.0)])
def test_equals_the_equations(seed, dtype, kappa, tau):
    z, prototypes, mask = case(seed, dtype=dtype)
    p = posterior(z, prototypes, mask, kappa, tau)
    assert p.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(p.double(), reference(z, prototypes, mask, kappa, tau), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(3))
def test_similarity_is_the_inner_product(seed):
    z, prototypes, _ = case(seed)
    similarity = prototype_similarity(z, prototypes)
    for i, c, k in [(0, 0, 0), (4, 3, 2), (2, 1, 2)]:
        assert float(similarity[i, c, k]) == pytest.approx(sum((z[i] * prototypes[c, k]).tolist()))


def test_similarity_by_hand():
    # (0.6, 0.8) with e1, e2, -e1, -e2
    prototypes = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, -1.0]]])
    similarity = prototype_similarity(torch.tensor([[0.6, 0.8]]), prototypes)
    assert similarity.tolist() == [[pytest.approx([0.6, 0.8]), pytest.approx([-0.6, -0.8])]]


def test_scores_by_hand():
    # log(e^2 + e^0) = 2.1269 with both alive; with one alive 2 x 1 + log(2 / 1) = 2.6931
    similarity = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    scores = vmf_class_scores(similarity, torch.tensor([[True, True], [True, False]]), kappa=2.0)
    assert scores[0].tolist() == pytest.approx([math.log(math.exp(2) + 1), 2 + math.log(2)])


def test_posterior_by_hand():
    # e^2 / (e^2 + 1) = 0.8808; at tau = 2, e / (e + 1) = 0.7311
    scores = torch.tensor([[2.0, 0.0]])
    assert float(similarity_posterior(scores, tau=1.0)[0, 0]) == pytest.approx(0.880797, rel=1e-5)
    assert float(similarity_posterior(scores, tau=2.0)[0, 0]) == pytest.approx(0.731059, rel=1e-5)


@given(st.integers(0, 10**6), st.floats(0.1, 1e5), st.floats(0.05, 20))
def test_rows_are_probabilities_for_any_kappa(seed, kappa, tau):
    z, prototypes, mask = case(seed, dtype=torch.float32)
    p = posterior(z, prototypes, mask, kappa, tau)
    assert (p >= 0).all()
    torch.testing.assert_close(p.sum(1), torch.ones(len(p)))


@given(st.integers(0, 10**6))
def test_invariants(seed):
    z, prototypes, mask = case(seed)
    p = posterior(z, prototypes, mask, 20.0, 1.0)
    # the order of a class's prototypes
    torch.testing.assert_close(posterior(z, prototypes.flip(1), mask.flip(1), 20.0, 1.0), p)
    # the order of the classes
    torch.testing.assert_close(posterior(z, prototypes.flip(0), mask.flip(0), 20.0, 1.0), p.flip(1))
    # every prototype twice
    doubled = posterior(z, prototypes.repeat(1, 2, 1), mask.repeat(1, 2), 20.0, 1.0)
    torch.testing.assert_close(doubled, p)
    # more dead slots
    padded = posterior(z, torch.cat([prototypes, prototypes], 1), torch.cat([mask, mask & False], 1), 20.0, 1.0)
    torch.testing.assert_close(padded, p)
    # a rotation of the space
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(seed), dtype=z.dtype)).Q
    torch.testing.assert_close(posterior(z @ rotation, prototypes @ rotation, mask, 20.0, 1.0), p)


def test_fewer_prototypes_are_no_handicap():
    # All cosines equal: three live prototypes against one must be even.
    mask = torch.tensor([[True, True, True], [True, False, False]])
    p = similarity_posterior(vmf_class_scores(torch.full((1, 2, 3), 0.3), mask, kappa=20.0), tau=1.0)
    assert p[0].tolist() == pytest.approx([0.5, 0.5])


def test_equal_numbers_are_the_papers_equation():
    similarity = torch.rand(3, 4, 2, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True, False]] * 4)
    torch.testing.assert_close(vmf_class_scores(similarity, mask, kappa=7.0), 7 * similarity[..., 0])


@pytest.mark.parametrize("junk", [math.nan, math.inf, 1e9])
def test_dead_slots_are_not_read(junk):
    similarity = torch.tensor([[[0.5, junk], [0.1, 0.2]]])
    mask = torch.tensor([[True, False], [True, True]])
    clean = similarity.nan_to_num(0.0, posinf=0.0).clamp(max=1)
    assert torch.equal(vmf_class_scores(similarity, mask, kappa=3.0), vmf_class_scores(clean, mask, kappa=3.0))


def test_a_class_without_prototypes_has_probability_zero():
    similarity = torch.tensor([[[0.5, 0.4], [0.9, 0.9], [0.1, 0.2]]])
    mask = torch.tensor([[True, True], [False, False], [True, False]])
    scores = vmf_class_scores(similarity, mask, kappa=20.0)
    assert scores[0, 1] == -math.inf
    p = similarity_posterior(scores, tau=0.5)
    assert p[0, 1] == 0
    assert float(p.sum()) == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_kappa_is_the_nearest_prototype(dtype):
    z, prototypes, mask = case(1, dtype=dtype)
    similarity = prototype_similarity(z, prototypes)
    p = posterior(z, prototypes, mask, 1e5, 1.0)
    assert p.isfinite().all()
    nearest = similarity.masked_fill(~mask, -math.inf).amax(-1).argmax(1)
    assert torch.equal(p.argmax(1), nearest)
    assert (p.amax(1) > 0.999).all()


def test_ties_are_even():
    p = similarity_posterior(torch.tensor([[1e5, 1e5, -1e5]]), tau=1.0)
    assert p.tolist() == [[0.5, 0.5, 0.0]]


def test_no_rows_and_one_prototype():
    z, prototypes, _ = case(0, k=1)
    mask = torch.ones(4, 1, dtype=torch.bool)
    assert posterior(z[:0], prototypes, mask, 20.0, 1.0).shape == (0, 4)
    # with one prototype per class the score is kappa times the cosine
    scores = vmf_class_scores(prototype_similarity(z, prototypes), mask, kappa=20.0)
    torch.testing.assert_close(scores, 20 * z @ prototypes[:, 0].T)
