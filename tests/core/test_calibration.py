import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss

from tdumpra.core.calibration import (
    TEMPERATURE_RANGE,
    adjust_prior,
    apply_temperature,
    apply_temperature_and_bias,
    class_prior,
    fit_temperature,
    fit_temperature_and_bias,
)

DTYPES = [torch.float32, torch.float64]


def posterior(seed, n=30, c=4, dtype=torch.float64, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    p = (sharpness * torch.randn(n, c, generator=generator, dtype=torch.float64)).softmax(1).to(dtype)
    p[0] = torch.eye(c, dtype=dtype)[1]
    return p


def naive_temperature(p, temperature):
    table = []
    for row in p.double().tolist():
        powers = [value ** (1 / temperature) for value in row]
        table.append([value / sum(powers) for value in powers])
    return torch.tensor(table, dtype=torch.float64)


class TestApplyTemperature:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("temperature", [0.05, 0.5, 1.7, 20.0])
    @pytest.mark.parametrize("seed", range(3))
    def test_equals_the_power(self, seed, dtype, temperature):
        p = posterior(seed, dtype=dtype)
        scaled = apply_temperature(p, temperature)
        assert scaled.dtype == dtype
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(scaled.double(), naive_temperature(p, temperature), rtol=0, atol=tolerance)

    def test_by_hand(self):
        # T = 2 takes square roots: (0.8, 0.2) becomes 2 : 1
        assert apply_temperature(torch.tensor([[0.8, 0.2]]), 2.0)[0].tolist() == pytest.approx([2 / 3, 1 / 3])

    def test_one_returns_the_rows_themselves(self):
        p = posterior(0)
        assert apply_temperature(p, 1.0) is p

    def test_the_input_is_left_alone(self):
        p = posterior(0, dtype=torch.float32)
        before = p.clone()
        apply_temperature(p, 3.0)
        assert torch.equal(p, before)

    @given(
        st.lists(st.integers(-3, 3), min_size=2, max_size=9).filter(lambda steps: len(set(steps)) > 1),
        st.floats(0.05, 20),
    )
    @example([0, 1], 20.0)
    @example([0, 0, 1, 0, 0, 0, 0, 0, 1], 1.0000001)
    def test_the_label_stays_under_near_ties(self, steps, temperature):
        """Probabilities a few units in the last place apart, which scaling rounds to equality."""
        for dtype in DTYPES:
            base = torch.full((1, len(steps)), 1 / len(steps), dtype=dtype)
            eps = torch.finfo(dtype).eps / len(steps)
            p = base + torch.tensor([steps], dtype=dtype) * eps
            for rows in (p, p.flip(1), p.repeat(3, 1)):
                scaled = apply_temperature(rows, temperature)
                assert torch.equal(scaled.argmax(1), rows.argmax(1))
                torch.testing.assert_close(scaled.sum(1), torch.ones(len(rows), dtype=dtype))

    @given(st.integers(0, 10**6), st.floats(0.05, 20))
    def test_the_label_stays_in_general(self, seed, temperature):
        p = posterior(seed, dtype=torch.float32, n=100)
        assert torch.equal(apply_temperature(p, temperature).argmax(1), p.argmax(1))

    def test_near_ties_do_need_the_correction(self):
        # Without it the label of this row would become 0.
        p = torch.tensor([[0.5, torch.nextafter(torch.tensor(0.5), torch.tensor(1.0))]])
        plain = (p.log() / 20).softmax(1)
        assert int(plain.argmax()) == 0
        scaled = apply_temperature(p, 20.0)
        assert int(scaled.argmax()) == 1
        torch.testing.assert_close(scaled, plain, rtol=0, atol=1e-7)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_the_label_is_lifted_to_the_next_number(self, dtype):
        """For top probabilities all over their range, and at the powers of two where numbers grow twice as coarse."""
        generator = torch.Generator().manual_seed(3)
        halves = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)
        tops = torch.cat([torch.rand(2000, generator=generator, dtype=torch.float64) * 0.4 + 0.1, halves]).to(dtype)
        below = torch.nextafter(tops, torch.zeros_like(tops))
        p = torch.stack([below, tops, *[(1 - below - tops) / 8] * 8], 1)  # at a high temperature both come out equal
        scaled = apply_temperature(p, 20.0)
        plain = (p.log() / 20).t().contiguous().softmax(0).t()
        top, label = plain.max(1)
        expected = plain.clone()
        moved = label != p.argmax(1)
        assert moved.sum() > 50
        expected[moved, 1] = torch.nextafter(top, torch.full_like(top, math.inf))[moved]
        assert torch.equal(scaled, expected)

    def test_exact_ties_and_certainty(self):
        p = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.0, 0.5, 0.5, 0.0], [0.0, 0.0, 1.0, 0.0]])
        for temperature in (0.05, 0.7, 20.0):
            assert apply_temperature(p, temperature).tolist() == p.tolist()

    def test_warmer_is_flatter(self):
        p = posterior(1)[1:]
        tops = [apply_temperature(p, t).amax(1) for t in (0.5, 1.0, 2.0, 8.0)]
        assert all((a > b).all() for a, b in itertools.pairwise(tops))

    def test_no_rows(self):
        assert apply_temperature(torch.zeros(0, 3), 2.0).shape == (0, 3)


class TestFitTemperature:
    @pytest.mark.parametrize("true", [0.5, 1.0, 2.5])
    def test_recovers_the_temperature(self, true):
        rng = np.random.default_rng(0)
        logits = rng.normal(size=(20_000, 4)) * 2
        chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        y = (chances.cumsum(1) < rng.random((len(logits), 1))).sum(1)
        # a classifier whose logits are `true` times too large needs that temperature
        log_p = torch.from_numpy(logits * true).log_softmax(1)
        assert fit_temperature(log_p, torch.from_numpy(y)) == pytest.approx(true, rel=0.03)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    def test_equals_a_fine_search(self, dtype):
        generator = torch.Generator().manual_seed(3)
        scores = torch.randn(200, 3, generator=generator).to(dtype)
        y = torch.where(torch.rand(200, generator=generator) < 0.6, scores.float().argmax(1), 0)

        def loss(log_t):
            return log_loss(y, (scores.double() / math.exp(log_t)).softmax(1).numpy(), labels=[0, 1, 2])

        grid = np.linspace(math.log(TEMPERATURE_RANGE[0]), math.log(TEMPERATURE_RANGE[1]), 100)
        coarse = grid[np.argmin([loss(t) for t in grid])]
        fine = minimize_scalar(loss, bracket=(coarse - 0.1, coarse, coarse + 0.1), tol=1e-10).x
        assert fit_temperature(scores, y) == pytest.approx(math.exp(fine), rel=1e-4)

    def test_a_constant_per_row_does_not_matter(self):
        generator = torch.Generator().manual_seed(0)
        scores, shift = torch.randn(50, 3, generator=generator), torch.randn(50, 1, generator=generator)
        y = torch.randint(3, (50,), generator=generator)
        assert fit_temperature(scores + 10 * shift, y) == pytest.approx(fit_temperature(scores, y), rel=1e-3)

    def test_by_hand(self):
        # Scores (log 9, 0) and three labels out of four right: softmax is (3/4, 1/4) where log 9 / T = log 3, T = 2.
        scores = torch.tensor([[math.log(9), 0.0]] * 4, dtype=torch.float64)
        assert fit_temperature(scores, torch.tensor([0, 0, 0, 1])) == pytest.approx(2, rel=1e-4)

    def test_a_perfect_classifier_is_not_sharpened_to_certainty(self):
        scores = torch.tensor([[0.5, 0.0], [0.0, 0.5]])
        assert fit_temperature(scores, torch.tensor([0, 1])) == pytest.approx(TEMPERATURE_RANGE[0], rel=0.05)

    def test_a_useless_classifier_is_flattened(self):
        scores = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
        assert fit_temperature(scores, torch.tensor([0, 1])) == pytest.approx(TEMPERATURE_RANGE[1], rel=0.05)

    def test_probabilities_of_zero_and_one(self):
        p = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        temperature = fit_temperature(p.log(), torch.tensor([0, 1, 1]))
        assert TEMPERATURE_RANGE[0] <= temperature <= TEMPERATURE_RANGE[1]

    def test_one_row(self):
        assert TEMPERATURE_RANGE[0] <= fit_temperature(torch.tensor([[0.3, 0.1]]), torch.tensor([1])) <= 20


class TestPrior:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("exponent", [0.3, 1.0, -0.5])
    @pytest.mark.parametrize("seed", range(3))
    def test_adjusting_equals_the_quotient(self, seed, dtype, exponent):
        p, prior = posterior(seed, dtype=dtype), [0.5, 0.3, 0.15, 0.05]
        adjusted = adjust_prior(p, torch.tensor(prior, dtype=torch.float64), exponent)
        assert adjusted.dtype == dtype
        for row, found in zip(p.double().tolist(), adjusted.tolist(), strict=True):
            quotients = [value / share**exponent for value, share in zip(row, prior, strict=True)]
            assert found == pytest.approx([q / sum(quotients) for q in quotients], abs=1e-6)

    def test_adjusting_by_hand(self):
        # (0.6 / 0.75, 0.4 / 0.25) = (0.8, 1.6): the label moves
        adjusted = adjust_prior(torch.tensor([[0.6, 0.4]]), torch.tensor([0.75, 0.25]), 1.0)
        assert adjusted[0].tolist() == pytest.approx([1 / 3, 2 / 3])

    def test_exponent_zero_returns_the_rows_themselves(self):
        p = posterior(0)
        assert adjust_prior(p, torch.full((4,), 0.25), 0.0) is p

    def test_an_even_prior_changes_nothing(self):
        p = posterior(0)
        torch.testing.assert_close(adjust_prior(p, torch.full((4,), 0.25), 0.7), p)

    def test_shares(self):
        # 3, 1 and none, which counts as one: 3/5, 1/5, 1/5
        prior = class_prior(torch.tensor([0, 0, 1, 0]), 3)
        assert prior.tolist() == pytest.approx([0.6, 0.2, 0.2])
        assert prior.dtype == torch.float64

    @given(st.lists(st.integers(0, 4), min_size=1, max_size=50))
    def test_shares_equal_the_count(self, labels):
        counts = [max(1, labels.count(c)) for c in range(5)]
        assert class_prior(torch.tensor(labels), 5).tolist() == pytest.approx([n / sum(counts) for n in counts])


class TestBias:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_applying_equals_the_product(self, dtype):
        p, bias = posterior(0, dtype=dtype), (0.5, -2.0, 0.0, 1.0)
        product = p.double() ** 0.5 * torch.tensor(bias, dtype=torch.float64).exp()
        expected = product / product.sum(1, keepdim=True)
        torch.testing.assert_close(apply_temperature_and_bias(p, 2.0, bias).double(), expected, rtol=0, atol=1e-6)

    def test_without_bias_it_is_the_temperature_alone(self):
        p = posterior(0)
        assert apply_temperature_and_bias(p, 1.0, ()) is p
        assert torch.equal(apply_temperature_and_bias(p, 3.0, ()), apply_temperature(p, 3.0))

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("sure", [1.0, 40.0], ids=["", "with zeros"])
    def test_the_fit_is_the_minimum(self, seed, sure):
        """Of what is applied, rows whose zeros came of rounding included: both take the same logarithms."""
        p = posterior(seed, n=200)
        y = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(seed)).squeeze(1)
        p = (p**sure / (p**sure).sum(1, keepdim=True)).float().double()
        assert bool((p[2:] == 0).any()) == (sure > 1)

        def loss(temperature, bias):
            rows = apply_temperature_and_bias(p, temperature, tuple(bias)).log()
            return float(-rows[torch.arange(200), y].mean()) + sum(b**2 for b in bias) / 400

        temperature, bias = fit_temperature_and_bias(p, y)
        best = loss(temperature, bias)
        assert math.isfinite(best)
        for i, step in itertools.product(range(5), (-1e-3, 1e-3)):
            moved = [math.log(temperature), *bias]
            moved[i] += step
            assert loss(math.exp(moved[0]), moved[1:]) > best - 1e-9

    def test_recovers_shares_that_changed(self):
        generator = torch.Generator().manual_seed(0)
        p = (2 * torch.randn(4000, 3, generator=generator, dtype=torch.float64)).softmax(1)
        there = apply_temperature_and_bias(p, 1.0, (1.0, 0.0, -1.0))
        y = torch.multinomial(there, 1, generator=generator).squeeze(1)
        temperature, bias = fit_temperature_and_bias(p, y)
        assert temperature == pytest.approx(1, abs=0.1)
        assert bias[0] - bias[2] == pytest.approx(2, abs=0.2)

    def test_a_class_without_a_row_keeps_its_standing(self):
        p = posterior(0)
        _, bias = fit_temperature_and_bias(p, torch.randint(3, (30,), generator=torch.Generator().manual_seed(0)))
        assert bias[3] == 0
        assert all(bias[:3])

    def test_a_very_sure_classifier_is_fitted(self):
        p = torch.tensor(
            [[1 - 2e-12, 1e-12, 1e-12], [1e-12, 1 - 2e-12, 1e-12], [1.0, 0.0, 0.0]] * 20, dtype=torch.float64
        )
        y = torch.tensor([0, 1, 1] * 20)
        temperature, bias = fit_temperature_and_bias(p, y)
        assert math.isfinite(temperature)
        assert all(map(math.isfinite, bias))
        assert TEMPERATURE_RANGE[0] <= temperature <= TEMPERATURE_RANGE[1]
