import dataclasses
import itertools
import math
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy as scipy_entropy

from tdumpra.core.gate import (
    LN2,
    GateSignals,
    GateThresholds,
    entropy,
    fuse,
    fuse_linear,
    fuse_log_linear,
    fuse_rows,
    fuse_where_open,
    gate_opens,
    gate_signals,
    js_divergence,
)

DTYPES = [torch.float32, torch.float64]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def posteriors(seed, n=200, c=4, dtype=torch.float64, sharpness=2.0):
    """Two posteriors of which some rows agree, some do not, and some hold exact zeros and ones."""
    generator = torch.Generator().manual_seed(seed)
    p, q = (
        (sharpness * torch.randn(n, c, generator=generator, dtype=torch.float64)).softmax(1).to(dtype) for _ in range(2)
    )
    p[0], q[1] = torch.eye(c, dtype=dtype)[0], torch.eye(c, dtype=dtype)[1]
    return p, q


def naive_entropy(p):
    return -sum(value * math.log(value) for value in p if value > 0)


def naive_js(p, q):
    """Half of each Kullback–Leibler divergence to the middle, in nats."""

    def to_middle(a, b):
        return sum(x * math.log(x / ((x + y) / 2)) for x, y in zip(a, b, strict=True) if x > 0)

    return (to_middle(p, q) + to_middle(q, p)) / 2


def naive_opens(p, q, t):
    """Equation gate_full for one row."""
    first, second = sorted(q, reverse=True)[:2]
    clauses = [
        max(p) < t.theta,
        first > t.beta,
        first - second > t.margin,
        naive_js(p, q) > t.delta,
        p.index(max(p)) != q.index(max(q)),
    ]
    if t.entropy is not None:
        clauses.append(naive_entropy(p) > t.entropy)
    return all(clauses)


THRESHOLDS = GateThresholds(theta=0.8, beta=0.4, margin=0.1, delta=0.05, alpha=0.3)

dyadic = st.integers(0, 64).map(lambda k: k / 64)  # sums and products of these are exact, also in float32


@st.composite
def dyadic_posterior(draw, c=4):
    cuts = sorted(draw(st.lists(st.integers(0, 64), min_size=c - 1, max_size=c - 1)))
    return [(b - a) / 64 for a, b in zip([0, *cuts], [*cuts, 64], strict=True)]


class TestSignals:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_equal_the_naive_ones(self, seed, dtype):
        p, q = posteriors(seed, dtype=dtype)
        signals = gate_signals(p, q)
        for i, (a, b) in enumerate(zip(p.double().tolist(), q.double().tolist(), strict=True)):
            ordered = sorted(b, reverse=True)
            expected = {
                "gamma_cls": max(a),
                "entropy_cls": naive_entropy(a),
                "gamma_sim": ordered[0],
                "margin_sim": ordered[0] - ordered[1],
                "js": naive_js(a, b),
                "label_cls": a.index(max(a)),
                "label_sim": b.index(max(b)),
            }
            found = {name: float(signal[i]) for name, signal in signals._asdict().items()}
            assert found == pytest.approx(expected, abs=TOLERANCE[dtype])
        assert signals.js.dtype == dtype

    def test_by_hand(self):
        # gamma 0.5; H = 0.5 log 2 + 2 x 0.25 log 4 = 1.5 log 2; second posterior leads by 0.7 - 0.2
        signals = gate_signals(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.1, 0.7, 0.2]]))
        assert float(signals.gamma_cls) == 0.5
        assert float(signals.entropy_cls) == pytest.approx(1.5 * LN2)
        assert float(signals.gamma_sim) == pytest.approx(0.7)
        assert float(signals.margin_sim) == pytest.approx(0.5)
        assert (int(signals.label_cls), int(signals.label_sim)) == (0, 1)

    def test_ties_belong_to_the_first_class(self):
        even = torch.full((1, 4), 0.25)
        signals = gate_signals(even, torch.tensor([[0.0, 0.5, 0.0, 0.5]]))
        assert (int(signals.label_cls), int(signals.label_sim)) == (0, 1)
        assert float(signals.margin_sim) == 0

    def test_two_classes(self):
        # the lead is 2 x top - 1
        signals = gate_signals(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.1, 0.9]]))
        assert float(signals.margin_sim) == pytest.approx(2 * float(signals.gamma_sim) - 1)

    def test_no_rows(self):
        assert all(len(signal) == 0 for signal in gate_signals(torch.zeros(0, 3), torch.zeros(0, 3)))


class TestEntropy:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("seed", range(3))
    def test_equals_the_naive_one_and_scipys(self, seed, dtype):
        p, _ = posteriors(seed, dtype=dtype)
        expected = [naive_entropy(row) for row in p.double().tolist()]
        assert entropy(p).tolist() == pytest.approx(expected, abs=TOLERANCE[dtype])
        np.testing.assert_allclose(entropy(p).double(), scipy_entropy(p.double(), axis=1), atol=1e-6)

    def test_by_hand(self):
        # even over 4 classes: log 4; certain: 0
        p = torch.tensor([[0.25] * 4, [0.0, 1.0, 0.0, 0.0]])
        assert entropy(p).tolist() == [pytest.approx(math.log(4)), 0.0]


class TestJensenShannon:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("seed", range(3))
    def test_equals_the_naive_one_and_the_square_of_scipys(self, seed, dtype):
        p, q = posteriors(seed, dtype=dtype)
        found = js_divergence(p, q)
        expected = [naive_js(a, b) for a, b in zip(p.double().tolist(), q.double().tolist(), strict=True)]
        assert found.tolist() == pytest.approx(expected, abs=TOLERANCE[dtype])
        np.testing.assert_allclose(found.double(), jensenshannon(p.double(), q.double(), axis=1) ** 2, atol=1e-6)

    def test_by_hand(self):
        # (1, 0) and (1/2, 1/2), middle (3/4, 1/4):
        # half of log(4/3), plus half of (1/2 log(2/3) + 1/2 log 2) = 0.2158
        found = js_divergence(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
        assert float(found) == pytest.approx(0.5 * math.log(4 / 3) + 0.25 * math.log(4 / 3), rel=1e-5)

    def test_the_ends(self):
        p = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
        assert js_divergence(p, p).tolist() == [0.0, 0.0]
        apart = js_divergence(p[:1], torch.tensor([[0.0, 0.5, 0.5]]))
        assert float(apart) == pytest.approx(LN2)

    @given(dyadic_posterior(), dyadic_posterior())
    def test_symmetric_and_bounded(self, a, b):
        for dtype in DTYPES:
            p, q = torch.tensor([a], dtype=dtype), torch.tensor([b], dtype=dtype)
            found = js_divergence(p, q)
            assert torch.equal(found, js_divergence(q, p))
            assert 0 <= float(found) <= torch.tensor(LN2, dtype=dtype)
            assert (float(found) < 1e-7) == (a == b)

    @pytest.mark.parametrize("tiny", [1e-45, 1e-38, 1e-30])
    def test_the_smallest_probabilities(self, tiny):
        p, q = torch.tensor([[1.0, tiny, 0.0]]), torch.tensor([[1.0, 0.0, tiny]])
        assert float(js_divergence(p, q)) == pytest.approx(0, abs=1e-29)

    def test_rows_that_sum_to_more_than_one_stay_in_range(self):
        p, q = torch.tensor([[1.0005, 0.0]]), torch.tensor([[0.0, 1.0005]])
        assert js_divergence(p, q).tolist() == torch.tensor([LN2]).tolist()


class TestThresholds:
    def test_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            THRESHOLDS.theta = 0.1  # type: ignore[misc]

    @pytest.mark.parametrize("name", ["theta", "beta", "margin", "delta", "alpha", "entropy"])
    @pytest.mark.parametrize("value", [-0.01, math.nan, -math.inf])
    def test_outside_their_range(self, name, value):
        with pytest.raises(ValueError, match=f"{name} must lie between 0 and .*, not {value}"):
            dataclasses.replace(THRESHOLDS, **{name: value})

    @pytest.mark.parametrize(
        ("name", "upper", "shown"),
        [("theta", 1.0, "1"), ("beta", 1.0, "1"), ("margin", 1.0, "1"), ("delta", LN2, "0.6931"), ("alpha", 1.0, "1")],
    )
    def test_both_ends_belong_to_the_range(self, name, upper, shown):
        for value in (0.0, upper):
            assert getattr(dataclasses.replace(THRESHOLDS, **{name: value}), name) == value
        with pytest.raises(ValueError, match=f"{name} must lie between 0 and {shown}, not"):
            dataclasses.replace(THRESHOLDS, **{name: upper + 1e-9})

    @pytest.mark.usefixtures("without_shape_checks")
    @pytest.mark.parametrize("name", ["theta", "beta", "margin", "delta", "alpha", "entropy"])
    @pytest.mark.parametrize("value", ["0.5", True, [0.5], np.array([0.5])])
    def test_what_is_no_number(self, name, value):
        with pytest.raises(TypeError, match=f"{name} must be a number, not "):
            dataclasses.replace(THRESHOLDS, **{name: value})

    @pytest.mark.usefixtures("without_shape_checks")
    def test_only_entropy_may_be_none(self):
        assert dataclasses.replace(THRESHOLDS, entropy=None).entropy is None
        with pytest.raises(TypeError, match="theta must be a number, not None"):
            dataclasses.replace(THRESHOLDS, theta=None)  # type: ignore[arg-type]

    @pytest.mark.usefixtures("without_shape_checks")
    @pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), np.int64(0), 0, 1])
    def test_numbers_of_any_kind_become_floats(self, value):
        assert type(dataclasses.replace(THRESHOLDS, theta=value).theta) is float
        assert dataclasses.replace(THRESHOLDS, theta=value).theta == value

    def test_shut_never_opens(self):
        p, q = posteriors(0)
        p[2], q[2] = torch.tensor([0.25] * 4), torch.tensor([0.0, 1.0, 0.0, 0.0])
        assert not gate_opens(gate_signals(p, q), GateThresholds.shut()).any()


class TestGate:
    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("sixth", [None, 0.5])
    def test_equals_the_equation(self, seed, dtype, sixth):
        p, q = posteriors(seed, dtype=dtype)
        thresholds = dataclasses.replace(THRESHOLDS, entropy=sixth)
        opened = gate_opens(gate_signals(p, q), thresholds)
        expected = [naive_opens(a, b, thresholds) for a, b in zip(p.tolist(), q.tolist(), strict=True)]
        assert opened.tolist() == expected
        assert 5 < sum(expected) < 150  # rows of both kinds

    # One row for which every clause holds by a little.
    signals: ClassVar[dict[str, Any]] = {
        "gamma_cls": 0.75,
        "entropy_cls": 0.75,
        "gamma_sim": 0.75,
        "margin_sim": 0.5,
        "js": 0.25,
        "label_cls": 0,
        "label_sim": 1,
    }
    thresholds: ClassVar[dict[str, float]] = {
        "theta": 0.8,
        "beta": 0.7,
        "margin": 0.4,
        "delta": 0.2,
        "alpha": 0.5,
        "entropy": 0.7,
    }

    def opens(self, signals, thresholds, dtype=torch.float32):
        tensors = {
            name: torch.tensor([value], dtype=torch.int64 if name.startswith("label") else dtype)
            for name, value in signals.items()
        }
        return bool(gate_opens(GateSignals(**tensors), GateThresholds(**thresholds)))

    def test_opens_when_all_clauses_hold(self):
        assert self.opens(self.signals, self.thresholds)

    @pytest.mark.parametrize(
        ("signal", "value"),
        [
            ("gamma_cls", 0.9),
            ("gamma_sim", 0.6),
            ("margin_sim", 0.3),
            ("js", 0.1),
            ("label_sim", 0),
            ("entropy_cls", 0.6),
        ],
    )
    def test_every_clause_is_necessary(self, signal, value):
        assert not self.opens({**self.signals, signal: value}, self.thresholds)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize(
        ("signal", "threshold"),
        [
            ("gamma_cls", "theta"),
            ("gamma_sim", "beta"),
            ("margin_sim", "margin"),
            ("js", "delta"),
            ("entropy_cls", "entropy"),
        ],
    )
    def test_every_clause_is_strict(self, signal, threshold, dtype):
        # 0.3 is not the same number in float32; the comparison is made in the signal's own precision
        for value in (0.3, self.signals[signal]):
            assert not self.opens({**self.signals, signal: value}, {**self.thresholds, threshold: value}, dtype)
        toward = math.inf if signal == "gamma_cls" else -math.inf
        nearest = float(torch.nextafter(torch.tensor(0.3, dtype=dtype), torch.tensor(toward, dtype=dtype)))
        assert self.opens({**self.signals, signal: 0.3}, {**self.thresholds, threshold: nearest}, dtype)

    def test_entropy_counts_only_when_it_is_asked_for(self):
        without = {name: value for name, value in self.thresholds.items() if name != "entropy"}
        assert self.opens({**self.signals, "entropy_cls": 0.0}, without)

    @given(st.integers(0, 10**6), st.sampled_from(["theta", "beta", "margin", "delta"]), dyadic, dyadic)
    def test_a_looser_threshold_opens_at_least_the_same_rows(self, seed, name, a, b):
        p, q = posteriors(seed, n=50)
        signals = gate_signals(p, q)
        loose, strict = (max, min) if name == "theta" else (min, max)
        a, b = (LN2 * a, LN2 * b) if name == "delta" else (a, b)
        more = gate_opens(signals, dataclasses.replace(THRESHOLDS, **{name: loose(a, b)}))
        fewer = gate_opens(signals, dataclasses.replace(THRESHOLDS, **{name: strict(a, b)}))
        assert (more | ~fewer).all()


class TestFusion:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9, 1.0])
    def test_linear_equals_the_equation(self, dtype, alpha):
        p, q = posteriors(1, dtype=dtype)
        fused = fuse_linear(p, q, alpha=alpha)
        expected = [
            [alpha * x + (1 - alpha) * y for x, y in zip(a, b, strict=True)]
            for a, b in zip(p.double().tolist(), q.double().tolist(), strict=True)
        ]
        torch.testing.assert_close(
            fused.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=TOLERANCE[dtype]
        )

    def test_linear_by_hand(self):
        # The paper's example: 0.9 x 0.4 + 0.1 x 1 = 0.46 for MEL, not 0.9.
        fused = fuse_linear(torch.tensor([[0.4, 0.6]]), torch.tensor([[1.0, 0.0]]), alpha=0.9)
        assert fused[0].tolist() == pytest.approx([0.46, 0.54])

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9, 1.0])
    def test_log_linear_equals_the_equation(self, dtype, alpha):
        p, q = posteriors(2, dtype=dtype)
        fused = fuse_log_linear(p, q, alpha=alpha)
        for a, b, found in zip(p.double().tolist(), q.double().tolist(), fused.tolist(), strict=True):
            products = [x**alpha * y ** (1 - alpha) for x, y in zip(a, b, strict=True)]  # 0 ** 0 is 1
            assert found == pytest.approx([value / sum(products) for value in products], abs=TOLERANCE[dtype])

    def test_log_linear_by_hand(self):
        # sqrt(0.8 x 0.2) = 0.4 and sqrt(0.2 x 0.05) = 0.1, sqrt(0 x 0.75) = 0: 4/5, 1/5, 0
        fused = fuse_log_linear(torch.tensor([[0.8, 0.2, 0.0]]), torch.tensor([[0.2, 0.05, 0.75]]), alpha=0.5)
        assert fused[0].tolist() == pytest.approx([0.8, 0.2, 0.0])

    def test_what_one_path_rules_out_stays_ruled_out(self):
        fused = fuse_log_linear(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.0, 0.5, 0.5]]), alpha=0.3)
        assert fused.tolist() == [[0.0, 1.0, 0.0]]

    def test_a_path_of_weight_zero_has_no_say(self):
        p, q = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 0.25, 0.75]])
        assert fuse_log_linear(p, q, alpha=0.0).tolist() == [pytest.approx(q[0].tolist())]
        assert fuse_log_linear(p, q, alpha=1.0).tolist() == [pytest.approx(p[0].tolist())]

    def test_paths_that_rule_out_everything_are_averaged(self):
        p, q = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.0, 1.0], [0.5, 0.5]])
        assert fuse_log_linear(p, q, alpha=0.3).tolist() == [pytest.approx([0.3, 0.7]), pytest.approx([0.5, 0.5])]

    @given(st.integers(0, 10**6), st.floats(0, 1))
    def test_rows_stay_probabilities(self, seed, alpha):
        p, q = posteriors(seed, n=20, dtype=torch.float32)
        for rule in (fuse_linear, fuse_log_linear):
            fused = rule(p, q, alpha=alpha)
            assert ((fused >= 0) & (fused <= 1 + 1e-6)).all()
            torch.testing.assert_close(fused.sum(1), torch.ones(20))

    def test_only_open_rows_are_fused(self):
        p, q = posteriors(3, n=6)
        opened = torch.tensor([True, False, True, False, False, True])
        for rule, fusion in (("linear", fuse_linear), ("log-linear", fuse_log_linear)):
            final = fuse_where_open(p, q, opened, alpha=0.3, rule=rule)  # type: ignore[arg-type]
            assert torch.equal(final[opened], fusion(p[opened], q[opened], alpha=0.3))
            assert torch.equal(final[~opened], p[~opened])

    def test_final_posterior_equals_the_equation(self):
        # p = (1 - g) p_cls + g p_fuse, row by row
        p, q = posteriors(4)
        fused = fuse(p, q, THRESHOLDS, rule="linear")
        g = [float(naive_opens(a, b, THRESHOLDS)) for a, b in zip(p.tolist(), q.tolist(), strict=True)]
        for i, (a, b) in enumerate(zip(p.tolist(), q.tolist(), strict=True)):
            expected = [(1 - g[i]) * x + g[i] * (0.3 * x + 0.7 * y) for x, y in zip(a, b, strict=True)]
            assert fused.p[i].tolist() == pytest.approx(expected)
        assert fused.opened.tolist() == [value == 1 for value in g]
        assert torch.equal(fused.signals.js, js_divergence(p, q))


class TestPriorPower:
    """Ours: where the gate is open, the fused posterior is divided by a power of the class prior."""

    PRIOR = torch.tensor([0.6, 0.25, 0.1, 0.05], dtype=torch.float64)

    @pytest.mark.parametrize("rule", ["linear", "log-linear"])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_equals_the_quotient(self, rule, dtype):
        p, q = posteriors(0, dtype=dtype)
        found = fuse_rows(p, q, alpha=0.3, rule=rule, prior=self.PRIOR, exponent=0.7)
        assert found.dtype == dtype
        for row, a, b in zip(found.tolist(), p.tolist(), q.tolist(), strict=True):
            pairs = list(zip(a, b, strict=True))
            fused = [0.3 * x + 0.7 * y for x, y in pairs] if rule == "linear" else [x**0.3 * y**0.7 for x, y in pairs]
            divided = [value / share**0.7 for value, share in zip(fused, self.PRIOR.tolist(), strict=True)]
            assert row == pytest.approx([value / sum(divided) for value in divided], abs=TOLERANCE[dtype])

    def test_by_hand(self):
        # linear at one half: (0.6, 0.4); over priors 0.9 and 0.1 that is (2/3, 4), a share of 6/7 for the rare class
        p, q = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.3, 0.7]])
        found = fuse_rows(p, q, alpha=0.5, rule="linear", prior=torch.tensor([0.9, 0.1]), exponent=1.0)
        assert found[0].tolist() == pytest.approx([1 / 7, 6 / 7])

    @pytest.mark.parametrize("rule", ["linear", "log-linear"])
    def test_without_prior_or_power_it_is_plain_fusion_to_the_bit(self, rule):
        p, q = posteriors(1)
        plain = (fuse_linear if rule == "linear" else fuse_log_linear)(p, q, alpha=0.4)
        assert torch.equal(fuse_rows(p, q, alpha=0.4, rule=rule), plain)
        assert torch.equal(fuse_rows(p, q, alpha=0.4, rule=rule, prior=self.PRIOR), plain)
        assert torch.equal(fuse_rows(p, q, alpha=0.4, rule=rule, exponent=0.5), plain)  # no prior to take a power of

    @pytest.mark.parametrize("rule", ["linear", "log-linear"])
    def test_shut_rows_come_back_bit_for_bit(self, rule):
        p, q = posteriors(2)
        opened = gate_opens(gate_signals(p, q), THRESHOLDS)
        assert 0 < opened.sum() < len(p)
        final = fuse_where_open(p, q, opened, alpha=0.3, rule=rule, prior=self.PRIOR, exponent=0.5)
        assert torch.equal(final[~opened], p[~opened])
        plain = fuse_where_open(p, q, opened, alpha=0.3, rule=rule)
        assert (final[opened] != plain[opened]).any(1).all()
        assert (final[opened][:, 0] <= plain[opened][:, 0]).all()  # the commonest class never gains


class TestPropositionA1:
    """Where the gate is shut, the final posterior is the classifier's."""

    @pytest.mark.parametrize("rule", ["linear", "log-linear"])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_shut_rows_come_back_bit_for_bit(self, rule, dtype):
        for seed in range(5):
            p, q = posteriors(seed, dtype=dtype)
            before = p.clone()
            fused = fuse(p, q, THRESHOLDS, rule=rule)
            assert fused.opened.any()
            assert not fused.opened.all()
            assert torch.equal(fused.p[~fused.opened], p[~fused.opened])
            assert (fused.p[fused.opened] != p[fused.opened]).any(1).all()
            assert torch.equal(p, before)

    @given(dyadic_posterior(), dyadic_posterior(), dyadic, dyadic, dyadic, st.floats(0, LN2), dyadic)
    def test_for_any_thresholds(self, a, b, theta, beta, margin, delta, alpha):
        p, q = torch.tensor([a]), torch.tensor([b])
        thresholds = GateThresholds(theta, beta, margin, delta, alpha)
        fused = fuse(p, q, thresholds, rule="linear")
        if not fused.opened[0]:
            assert fused.p.numpy().tobytes() == p.numpy().tobytes()

    def test_a_shut_gate_returns_the_classifier(self):
        p, q = posteriors(0)
        assert torch.equal(fuse(p, q, GateThresholds.shut(), rule="linear").p, p)


class TestAlphaBound:
    """Appendix: an open gate follows retrieval if (1 - alpha) margin >= alpha theta."""

    @given(dyadic_posterior(), dyadic_posterior(), dyadic, dyadic, dyadic)
    def test_flip_condition(self, a, b, alpha, theta, margin):
        # p_fuse(s) > p_fuse(c) exactly where (1 - alpha)(q_s - q_c) > alpha (p_c - p_s)
        c, s = a.index(max(a)), b.index(max(b))
        fused = fuse_linear(torch.tensor([a]), torch.tensor([b]), alpha=alpha)[0]
        weight = Fraction(alpha)
        lead_sim, lead_cls = Fraction(b[s]) - Fraction(b[c]), Fraction(a[c]) - Fraction(a[s])
        assert bool(fused[s] > fused[c]) == ((1 - weight) * lead_sim > weight * lead_cls)

    @given(dyadic_posterior(), dyadic_posterior(), dyadic, dyadic, dyadic)
    def test_an_open_gate_follows_retrieval(self, a, b, theta, margin, alpha):
        thresholds = GateThresholds(theta, 0.0, margin, 0.0, alpha)
        for dtype in DTYPES:
            fused = fuse(torch.tensor([a], dtype=dtype), torch.tensor([b], dtype=dtype), thresholds, rule="linear")
            if fused.opened[0] and thresholds.guarantees_similarity:
                assert fused.p.argmax(1) == fused.signals.label_sim

    @pytest.mark.parametrize("seed", range(5))
    def test_an_open_gate_follows_retrieval_on_many_rows(self, seed):
        p, q = posteriors(seed, n=2000, c=3, sharpness=1.0)
        for theta, margin in [(0.5, 0.1), (0.6, 0.3), (0.9, 0.5), (1.0, 0.0)]:
            alpha = math.nextafter(margin / (margin + theta), 0) if margin else 0.0
            thresholds = GateThresholds(theta, 0.0, margin, 0.0, alpha)
            assert thresholds.guarantees_similarity
            fused = fuse(p, q, thresholds, rule="linear")
            assert fused.opened.any()
            assert torch.equal(fused.p.argmax(1)[fused.opened], fused.signals.label_sim[fused.opened])

    @given(st.integers(1, 63), st.integers(1, 62), st.integers(1, 63))
    def test_without_the_bound_some_open_gate_does_not(self, theta, margin, alpha):
        """The bound is tight: where it fails, this pair of posteriors opens the gate and keeps the classifier's label.

        The classifier: just below theta on c, nothing on s, the rest spread thinly. Retrieval: just above the margin
        ahead on s, with c its second.
        """
        thresholds = GateThresholds(theta / 64, 0.0, margin / 64, 0.0, alpha / 64)
        if thresholds.guarantees_similarity:
            return
        step, spread = 2.0**-20, 4096
        top, lead = theta / 64 - step, margin / 64 + step
        p, q = torch.zeros(1, spread + 2, dtype=torch.float64), torch.zeros(1, spread + 2, dtype=torch.float64)
        p[0, 0], p[0, 2:] = top, (1 - top) / spread
        rest = (1 - lead) / (spread + 2)
        q[0], q[0, 1] = rest, rest + lead
        fused = fuse(p, q, thresholds, rule="linear")
        assert fused.opened[0]
        assert int(fused.p.argmax()) == 0

    def test_the_bound_of_the_paper(self):
        # margin / (margin + theta) = 0.3 / 0.9 = 1/3
        def thresholds(alpha):
            return GateThresholds(theta=0.6, beta=0.5, margin=0.3, delta=0.05, alpha=alpha)

        assert thresholds(0.33).guarantees_similarity
        assert not thresholds(0.34).guarantees_similarity

    def test_equality_suffices(self):
        # (1 - 1/2) x 1/2 = 1/2 x 1/2, and the gate's own inequalities are strict
        assert GateThresholds(theta=0.5, beta=0.5, margin=0.5, delta=0.05, alpha=0.5).guarantees_similarity

    def test_the_papers_own_setting_has_no_guarantee(self):
        # alpha = 0.9 would need a margin of nine times theta
        for theta in (0.5, 0.7, 0.9):
            assert not GateThresholds(theta=theta, beta=0.5, margin=1.0, delta=0.05, alpha=0.9).guarantees_similarity

    def test_a_classifier_with_all_the_weight_is_never_left(self):
        # alpha = 1 and theta = 0 satisfy 0 >= 0
        assert not GateThresholds(theta=0.0, beta=0.5, margin=0.5, delta=0.05, alpha=1.0).guarantees_similarity

    def test_rounding_can_make_a_tie_and_no_more(self):
        # In float32, one unit in the last place inside both thresholds.
        ties = 0
        for theta, margin in itertools.product(np.arange(0.4, 1, 0.05), np.arange(0.05, 0.9, 0.01)):
            alpha = margin / (margin + theta)
            while (1 - alpha) * margin < alpha * theta:
                alpha = math.nextafter(alpha, 0)
            top, lead = np.nextafter(np.float32(theta), np.float32(0)), np.nextafter(np.float32(margin), np.float32(1))
            second = np.float32((1 - lead) / 4)
            p = torch.tensor([[top, 0.0, *[(1 - top) / 3] * 3]])
            q = torch.tensor([[second, second + lead, *[second * 0.6] * 3]])
            thresholds = GateThresholds(float(theta), 0.0, float(margin), 0.0, float(alpha))
            assert thresholds.guarantees_similarity
            fused = fuse(p, q, thresholds, rule="linear")
            if fused.opened[0]:
                assert float(fused.p[0, 1]) >= float(fused.p[0, 0]) - 1.2e-7
                ties += int(fused.p.argmax()) != 1
        assert ties > 0  # the docstring's reservation is not idle
