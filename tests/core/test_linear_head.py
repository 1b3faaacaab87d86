"""The linear head: scikit-learn's optimum, weights as copies, and the same head in directions and on features."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from tdumpra.core.linear_head import ABSENT, LinearHead, Moments, fit_linear_head, principal_directions


def rows(n: int = 120, f: int = 6, n_classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, f)) * np.linspace(0.1, 3, f)
    y = (x @ rng.normal(size=(f, n_classes)) + 2 * rng.normal(size=(n, n_classes))).argmax(1)
    return x, y, rng.uniform(0.2, 3, n)


def loss_of(head: LinearHead, x: np.ndarray, y: np.ndarray, w: np.ndarray, l2: float) -> float:
    log_p = log_softmax(head.logits(x), axis=1)
    return float(-(w * log_p[np.arange(len(y)), y]).sum() / w.sum() + l2 / 2 * (head.weight**2).sum())


@pytest.mark.parametrize("l2", [1e-3, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_is_scikit_learns(seed: int, l2: float) -> None:
    x, y, w = rows(seed=seed)
    ours = fit_linear_head(x, y, w, n_classes=4, l2=l2, tolerance=1e-13)
    theirs = LogisticRegression(C=1 / (l2 * w.sum()), tol=1e-10, max_iter=10_000).fit(x, y, sample_weight=w)
    np.testing.assert_allclose(ours.weight, theirs.coef_, atol=2e-5)
    np.testing.assert_allclose(ours.bias - ours.bias.mean(), theirs.intercept_ - theirs.intercept_.mean(), atol=2e-5)


def test_a_value_worked_out_by_hand() -> None:
    """Without a useful feature the head is the log of the weighted shares: 3/4 and 1/4 differ by log 3."""
    head = fit_linear_head(np.zeros((4, 1)), np.array([0, 0, 1, 1]), np.array([2.0, 1, 0.5, 0.5]), n_classes=2, l2=0.1)
    assert head.bias[0] - head.bias[1] == pytest.approx(np.log(3), abs=1e-5)
    assert not head.weight.any()


def test_a_weight_of_two_is_two_copies() -> None:
    x, y, w = rows()
    w = np.where(np.arange(len(y)) < 40, 2.0, 1.0)
    copied = fit_linear_head(
        np.vstack([x, x[:40]]), np.append(y, y[:40]), np.ones(160), n_classes=4, l2=0.01, tolerance=1e-13
    )
    weighted = fit_linear_head(x, y, w, n_classes=4, l2=0.01, tolerance=1e-13)
    np.testing.assert_allclose(weighted.weight, copied.weight, atol=1e-5)


def test_all_directions_lose_nothing_and_few_of_them_little() -> None:
    x, y, w = rows(f=20)
    x += 5  # away from the origin
    directions = principal_directions(Moments.of(x))
    head = directions.on_features(fit_linear_head(directions.coordinates(x), y, w, n_classes=4, l2=1e-3))
    inside = fit_linear_head(directions.coordinates(x), y, w, n_classes=4, l2=1e-3)
    np.testing.assert_allclose(head.logits(x), inside.logits(directions.coordinates(x)), atol=1e-9)
    assert (directions.coordinates(x) ** 2).sum(1).mean() == pytest.approx(1)
    few = principal_directions(Moments.of(x), most=12)
    assert few.basis.shape == (20, 12)
    kept = fit_linear_head(few.coordinates(x), y, w, n_classes=4, l2=1e-3)
    assert loss_of(kept, few.coordinates(x), y, w, 0) < loss_of(inside, directions.coordinates(x), y, w, 0) + 0.1


def test_fewer_rows_than_features_give_the_same_directions() -> None:
    x = np.random.default_rng(0).normal(size=(15, 40))
    wide = principal_directions(Moments.of(x))
    assert wide.basis.shape == (40, 14)  # centred rows span one direction less
    _, values, vectors = np.linalg.svd(x - x.mean(0), full_matrices=False)
    overlap = np.abs(vectors[:14] @ wide.basis) * np.sqrt((values**2).sum() / 15)
    np.testing.assert_allclose(overlap, np.eye(14), atol=1e-7)


def test_a_class_without_rows_stays_possible_and_unlikely() -> None:
    x, y, w = rows()
    head = fit_linear_head(x, np.where(y == 2, 1, y), w, n_classes=4, l2=0.1)
    assert not head.weight[2].any()
    assert head.bias[2] == head.bias[[0, 1, 3]].min() - ABSENT


def test_the_same_rows_give_the_same_bits() -> None:
    x, y, w = rows(n=300, f=30)
    first, second = (fit_linear_head(x, y, w, n_classes=4, l2=0.01) for _ in range(2))
    assert np.array_equal(first.weight, second.weight)
    assert np.array_equal(first.bias, second.bias)


def test_rows_that_a_line_separates_have_a_finite_head() -> None:
    x = np.array([[-1.0], [-0.5], [0.5], [1.0]])
    head = fit_linear_head(x, np.array([0, 0, 1, 1]), np.ones(4), n_classes=2, l2=1e-4)
    assert np.isfinite(head.weight).all()
    assert (head.logits(x).argmax(1) == [0, 0, 1, 1]).all()


def test_rows_that_are_all_the_same_have_no_direction() -> None:
    x = np.ones((5, 3))
    directions = principal_directions(Moments.of(x))
    head = directions.on_features(
        fit_linear_head(directions.coordinates(x), np.array([0, 1, 1, 1, 1]), np.ones(5), n_classes=2, l2=0.1)
    )
    assert head.logits(x)[0] @ [-1, 1] == pytest.approx(np.log(4), abs=1e-5)


def test_directions_are_found_from_nearly_right_ones() -> None:
    """From those of some of the rows, with others to come that vary where these do not."""
    rng = np.random.default_rng(0)
    scale = np.exp(-np.arange(80) / 8)
    home, local = (rng.normal(size=(n, 80)) * scale for n in (400, 120))
    local[:, 70] += 2 * rng.normal(size=120)
    both = np.concatenate([home, local])
    near = principal_directions(Moments.of(home), 14).basis
    exact, found = (principal_directions(Moments.of(both), 10, near=start) for start in (None, near))
    np.testing.assert_allclose(exact.mean, found.mean)
    span = [np.linalg.qr(each.basis)[0] for each in (exact, found)]
    cosines = np.linalg.svd(span[0].T @ span[1])[1]
    assert cosines[:-2].min() > 0.999  # the last of them hardly differ from those that come next
    variance = [(((both - exact.mean) @ each) ** 2).sum() for each in span]
    assert variance[1] > 0.995 * variance[0]
    # the spare directions of the start are not kept
    assert found.basis.shape == (80, 10)


def test_moments_of_some_rows_are_those_of_all_without_the_others() -> None:
    x = np.random.default_rng(0).normal(size=(50, 7)) + 3
    one, other = Moments.of(x[:20]), Moments.of(x).plus(Moments.of(x[20:]), -1)
    assert one.n == other.n
    np.testing.assert_allclose(one.total, other.total)
    np.testing.assert_allclose(one.products, other.products)
