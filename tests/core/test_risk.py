"""Propositions A.2 to A.5 of the paper's appendix, on data and on what our gate makes of them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tdumpra.core.gate import GateThresholds, fuse
from tdumpra.core.risk import bayes_gate, gap_favours_similarity, regret, risk_decomposition, share_upper
from tdumpra.core.significance import clopper_pearson_upper

sizes = st.shared(st.integers(1, 12), key="rows")
risks = sizes.flatmap(lambda n: hnp.arrays(np.float64, n, elements=st.integers(0, 8).map(lambda k: k / 8)))
gates = sizes.flatmap(lambda n: hnp.arrays(np.bool_, n))


def gated_errors(seed, alpha, n=400):
    """What our gate does to two posteriors with labels: who was wrong, and where it opened."""
    generator = torch.Generator().manual_seed(seed)
    p, q = ((1.5 * torch.randn(n, 3, generator=generator)).softmax(1) for _ in range(2))
    y = torch.where(torch.rand(n, generator=generator) < 0.5, q.argmax(1), p.argmax(1))
    thresholds = GateThresholds(theta=0.8, beta=0.5, margin=0.2, delta=0.05, alpha=alpha)
    fused = fuse(p, q, thresholds, rule="linear")
    wrong = [(rows.argmax(1) != y).double().numpy() for rows in (p, q, fused.p)]
    return *wrong, fused.opened.numpy(), thresholds


class TestRiskDecomposition:
    @given(risks, risks, gates)
    def test_equals_the_equation(self, risk_cls, risk_final, opened):
        found = risk_decomposition(risk_cls, risk_final, opened)
        n = len(opened)
        assert found.change == pytest.approx(
            sum(b - a for a, b in zip(risk_cls.tolist(), risk_final.tolist(), strict=True)) / n, abs=1e-12
        )
        assert found.open_share == pytest.approx(sum(opened.tolist()) / n)
        inside = [b - a for a, b, g in zip(risk_cls.tolist(), risk_final.tolist(), opened.tolist(), strict=True) if g]
        if inside:
            assert found.change_where_open == pytest.approx(sum(inside) / len(inside), abs=1e-12)
        else:
            assert math.isnan(found.change_where_open)

    @given(risks, risks, gates)
    def test_the_change_comes_from_the_open_rows_alone(self, risk_cls, risk_sim, opened):
        risk_final = np.where(opened, risk_sim, risk_cls)
        found = risk_decomposition(risk_cls, risk_final, opened)
        if opened.any():
            assert found.change == pytest.approx(found.open_share * found.change_where_open, abs=1e-12)
        else:
            assert found.change == 0

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
    def test_holds_for_our_gate(self, seed, alpha):
        wrong_cls, _, wrong, opened, _ = gated_errors(seed, alpha)
        found = risk_decomposition(wrong_cls, wrong, opened)
        assert opened.any()
        assert found.change == pytest.approx(found.open_share * found.change_where_open)

    def test_by_hand(self):
        # Four rows, two open: one fixed, one kept. -1/4 = 1/2 x (-1/2)
        found = risk_decomposition(
            np.array([1.0, 1.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0, 1.0]), np.array([True, True, False, False])
        )
        assert found == (-0.25, 0.5, -0.5)


class TestSufficientCondition:
    """Proposition A.2."""

    @pytest.mark.parametrize("seed", range(8))
    def test_a_better_retrieval_on_open_rows_lowers_the_risk(self, seed):
        # alpha below margin / (margin + theta) = 0.2: on open rows the label is retrieval's
        wrong_cls, wrong_sim, wrong, opened, thresholds = gated_errors(seed, alpha=0.15)
        assert thresholds.guarantees_similarity
        gap = (1 - wrong_sim[opened]).mean() - (1 - wrong_cls[opened]).mean()
        assert np.array_equal(wrong[opened], wrong_sim[opened])
        if gap > 0:
            assert wrong.mean() < wrong_cls.mean()
        assert wrong.mean() <= wrong_cls.mean() - opened.mean() * gap + 1e-12

    @given(risks, risks, gates)
    def test_as_an_identity(self, risk_cls, risk_sim, opened):
        final = np.where(opened, risk_sim, risk_cls)
        found = risk_decomposition(risk_cls, final, opened)
        if opened.any() and (1 - risk_sim[opened]).mean() > (1 - risk_cls[opened]).mean() + 1e-12:
            assert found.change < 0


class TestBayesGate:
    """Proposition A.3."""

    @given(risks, risks, gates)
    def test_no_gate_has_a_lower_risk(self, risk_cls, risk_sim, other):
        best = np.where(bayes_gate(risk_cls, risk_sim), risk_sim, risk_cls)
        assert best.mean() <= np.where(other, risk_sim, risk_cls).mean()
        assert best.tolist() == [min(a, b) for a, b in zip(risk_cls.tolist(), risk_sim.tolist(), strict=True)]

    @given(risks, risks, gates)
    def test_unique_where_the_risks_differ(self, risk_cls, risk_sim, other):
        best = bayes_gate(risk_cls, risk_sim)
        differs = (other != best) & (risk_cls != risk_sim)
        excess = np.where(other, risk_sim, risk_cls) - np.where(best, risk_sim, risk_cls)
        assert (excess[differs] > 0).all()

    def test_by_hand_ties_stay_with_the_classifier(self):
        assert bayes_gate(np.array([0.3, 0.2, 0.1]), np.array([0.2, 0.2, 0.5])).tolist() == [True, False, False]

    def test_errors_are_risks_too(self):
        assert bayes_gate(np.array([True, False, True]), np.array([False, True, True])).tolist() == [True, False, False]


class TestGapCondition:
    """Proposition A.4."""

    @given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.3), st.floats(0, 0.3), st.floats(-1, 1), st.floats(-1, 1))
    def test_the_bayes_gate_selects_retrieval(self, gamma_cls, gamma_sim, error_cls, error_sim, u, v):
        # any accuracy within the stated error of its confidence
        a_cls, a_sim = gamma_cls + u * error_cls, gamma_sim + v * error_sim
        favours = gap_favours_similarity(np.array([gamma_cls]), np.array([gamma_sim]), error_cls, error_sim)
        if favours[0] and gamma_sim - gamma_cls - error_cls - error_sim > 1e-12:
            assert a_sim > a_cls
            assert bayes_gate(np.array([1 - a_cls]), np.array([1 - a_sim]))[0] or a_sim - a_cls < 1e-15

    def test_tight(self):
        # a gap equal to the errors leaves room for a tie
        found = gap_favours_similarity(np.array([0.25, 0.25]), np.array([0.75, 0.8125]), 0.25, 0.25)
        assert found.tolist() == [False, True]

    @pytest.mark.parametrize("seed", range(3))
    def test_equals_the_loop(self, seed):
        a, b = np.random.default_rng(seed).random((2, 50))
        expected = [y - x > 0.1 + 0.2 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert gap_favours_similarity(a, b, 0.1, 0.2).tolist() == expected


class TestRegret:
    """Proposition A.5."""

    @given(risks, risks, gates)
    def test_the_excess_is_at_most_the_misranked_share(self, risk_cls, risk_sim, opened):
        risk_gate = np.where(opened, risk_sim, risk_cls)
        found = regret(risk_cls, risk_sim, risk_gate)
        assert -1e-12 <= found.excess <= found.misranked + 1e-12
        best = [min(a, b) for a, b in zip(risk_cls.tolist(), risk_sim.tolist(), strict=True)]
        pairs = list(zip(risk_gate.tolist(), best, strict=True))
        assert found.excess == pytest.approx(sum(a - b for a, b in pairs) / len(pairs), abs=1e-12)
        assert found.misranked == pytest.approx(sum(a > b for a, b in pairs) / len(pairs))

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("alpha", [0.1, 0.9])
    def test_holds_for_our_gate_with_equality_on_errors(self, seed, alpha):
        # with 0-1 risks every misranked row costs exactly one
        wrong_cls, wrong_sim, wrong, opened, _ = gated_errors(seed, alpha)
        followed = np.where(opened & (wrong != wrong_cls), wrong_sim, wrong_cls)
        found = regret(wrong_cls, wrong_sim, followed)
        assert found.excess == pytest.approx(found.misranked)
        assert found.misranked > 0

    def test_the_bayes_gate_has_none(self):
        risk_cls, risk_sim = np.array([0.3, 0.1]), np.array([0.2, 0.4])
        assert regret(risk_cls, risk_sim, np.array([0.2, 0.1])) == (0.0, 0.0)

    def test_by_hand(self):
        # one of two rows misranked by 0.25: excess 0.125, share 0.5
        found = regret(np.array([0.5, 0.25]), np.array([0.25, 0.75]), np.array([0.5, 0.25]))
        assert found == (0.125, 0.5)


class TestShareUpper:
    @pytest.mark.parametrize(("events", "rows"), [(0, 30), (3, 40), (39, 40), (40, 40)])
    def test_single_rows_give_the_plain_bound(self, events, rows):
        found = share_upper(np.arange(rows) < events, np.arange(rows))
        assert found == pytest.approx(clopper_pearson_upper(events, rows))

    @pytest.mark.parametrize("events", [0, 4, 10])
    def test_copies_of_a_row_add_nothing(self, events):
        alone, copied = np.arange(10) < events, np.repeat(np.arange(10) < events, 6)
        bound = share_upper(copied, np.repeat(np.arange(10), 6))
        assert bound == pytest.approx(clopper_pearson_upper(int(alone.sum()), 10))

    def test_it_holds_where_events_cluster(self):
        """Lesions of five images, all or none of them broken: the plain bound is exceeded far too often."""
        rng, rate = np.random.default_rng(0), 0.1
        lesion, above, plainly_above = np.repeat(np.arange(120), 5), 0, 0
        for _ in range(400):
            event = np.repeat(rng.random(120) < rate, 5)
            above += share_upper(event, lesion) < rate
            plainly_above += clopper_pearson_upper(int(event.sum()), 600) < rate
        assert above / 400 <= 0.08
        assert plainly_above / 400 > 0.15

    def test_no_row(self):
        assert share_upper(np.zeros(0, dtype=bool), np.zeros(0, dtype=np.int64)) == 1.0
