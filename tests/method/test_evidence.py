from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import SMALL, THRESHOLDS, fit_and_tune, make_problem

from tdumpra import GateThresholds, PrototypeBank
from tdumpra.core.gate import gate_opens
from tdumpra.method.decision import Decision
from tdumpra.method.evidence import Evidence, explain

NAMES = ("nevus", "melanoma", "keratosis")


@pytest.fixture(scope="module")
def decision() -> Decision:
    """Two prototypes of nevus, one of each other class, along the axes of four dimensions."""
    z = np.eye(4).repeat(2, 0) + 0.01 * np.eye(4)[[1, 2, 0, 3, 3, 1, 2, 0]]
    groups = ["a", "b", "c", "d", "e", "e", "g", "g"]
    with pytest.warns(UserWarning, match="class 1 has 1, class 2 has 1"):
        bank = PrototypeBank.fit(z, [0, 0, 0, 0, 1, 1, 2, 2], 2, groups, ids=list("ABCDEFGH"))
    return Decision(bank=bank, thresholds=THRESHOLDS, kappa=4.0, tau=1.0, prior=torch.ones(3) / 3)


def evidence(decision: Decision, p: list[float], z: list[float], **arguments: Any) -> Evidence:
    rows = (torch.tensor([row], dtype=torch.float64) for row in (p, z))
    return explain(decision, *rows, class_names=NAMES, **arguments)


UNSURE, MELANOMA = [0.5, 0.3, 0.2], [0.1, 0.1, 1.0, 0.1]  # the classifier wavers; retrieval is sure of class 1

THIRD = GateThresholds(theta=0.6, beta=0.0, margin=0.0, delta=0.0, alpha=0.5)
BETWEEN = [0.5, 0.48, 0.02], [0.0, 0.0, 1.0, 1.05]  # melanoma is each path's close second


class TestSentence:
    def test_opened_and_moved(self, decision):
        found = evidence(decision, UNSURE, MELANOMA)
        assert found.opened
        assert (found.label, found.label_classifier, found.label_similarity) == (1, 0, 1)
        assert found.sentence.endswith(": prediction moved from nevus to melanoma")
        assert found.sentence.startswith("classifier unsure (0.50 < 0.60); retrieval decisive (0.")
        assert "labels disagree (nevus against melanoma)" in found.sentence

    def test_a_third_class_wins(self, decision):
        found = evidence(replace(decision, thresholds=THIRD), *BETWEEN)
        assert found.opened
        assert (found.label, found.label_classifier, found.label_similarity) == (1, 0, 2)
        assert found.is_third
        assert found.sentence.endswith(": prediction moved from nevus to melanoma, neither path's first choice")
        assert not evidence(decision, UNSURE, MELANOMA).is_third

    def test_opened_and_not_moved(self, decision):
        cautious = replace(decision, thresholds=replace(THRESHOLDS, alpha=0.95))
        found = evidence(cautious, UNSURE, MELANOMA)
        assert found.opened
        assert found.label == 0
        assert found.p != found.p_classifier
        assert found.sentence.endswith(": prediction stays nevus")

    def test_a_clause_without_a_threshold_says_so(self, decision):
        found = evidence(replace(decision, thresholds=replace(THRESHOLDS, theta=1.0, margin=0.0)), UNSURE, MELANOMA)
        said = {clause.name: clause.statement for clause in found.clauses}
        assert found.opened
        assert said["theta"].startswith("classifier's confidence 0.")
        assert said["margin"] == "retrieval's lead 0.92 (this gate does not ask)"
        assert [clause.name for clause in found.clauses if not clause.asked] == ["theta", "margin"]
        assert "does not ask" not in said["beta"] + found.sentence

    @pytest.mark.parametrize(
        ("p", "z", "changes", "reason"),
        [
            ([0.8, 0.1, 0.1], MELANOMA, {}, "classifier sure (0.80 ≥ 0.60)"),
            ([0.6, 0.2, 0.2], MELANOMA, {}, "classifier sure (0.60 ≥ 0.60)"),
            ([0.60001, 0.2, 0.19999], MELANOMA, {}, "classifier sure (0.60001 ≥ 0.60000)"),
            (UNSURE, MELANOMA, {"beta": 0.97}, "retrieval not decisive (0.94 ≤ 0.97)"),
            (UNSURE, MELANOMA, {"margin": 0.95}, "retrieval's lead small (0.92 ≤ 0.95)"),
            (UNSURE, MELANOMA, {"delta": 0.6}, "posteriors alike (0.25 ≤ 0.60)"),
            (UNSURE, MELANOMA, {"entropy": 1.05}, "classifier concentrated (1.03 ≤ 1.05)"),
            ([0.4, 0.5, 0.1], MELANOMA, {}, "both say melanoma"),
            ([0.1, 0.8, 0.1], MELANOMA, {}, "both say melanoma"),  # and not that the classifier is sure
        ],
    )
    def test_shut_with_the_first_reason(self, decision, p, z, changes, reason):
        # Retrieval by hand: cosines 1/√1.03 = 0.985 with melanoma and about 0.10 with the others, so q = 4.63 and twice
        # 1.09 (log 2 for the missing prototype included), p_sim = 0.945 and twice 0.027
        gate = replace(decision, thresholds=replace(THRESHOLDS, **changes))
        found = evidence(gate, p, z)
        assert not found.opened
        assert found.p == found.p_classifier
        assert found.sentence == f"retrieval did not change this prediction ({NAMES[found.label]}): {reason}"

    def test_shut_by_tuning(self, decision):
        found = evidence(replace(decision, thresholds=GateThresholds.shut()), UNSURE, MELANOMA)
        assert not found.opened
        assert found.sentence == ("retrieval did not change this prediction (nevus): tuning left the gate shut")

    def test_a_float32_signal_at_its_threshold_reads_true(self, decision):
        # float32(0.6) is 0.60000002 and float32(0.7) is 0.69999999: neither is below its threshold in float32
        for top in (0.6, 0.7):
            gate = replace(decision, thresholds=replace(THRESHOLDS, theta=top))
            p = torch.tensor([[top, 0.2, 0.8 - top]], dtype=torch.float32)
            found = explain(gate, p, torch.tensor([MELANOMA]), class_names=NAMES)
            assert f"classifier sure ({top:.2f} ≥ {top:.2f})" in found.sentence


class TestClauses:
    def test_names_values_and_thresholds(self, decision):
        found = evidence(decision, UNSURE, MELANOMA)
        s, t = found.p_similarity, THRESHOLDS
        first, second = sorted(s, reverse=True)[:2]
        middle = [(a + b) / 2 for a, b in zip(UNSURE, s, strict=True)]
        js = sum(a * math.log(a / m) + b * math.log(b / m) for a, b, m in zip(UNSURE, s, middle, strict=True)) / 2
        expected = {
            "theta": (0.5, t.theta),
            "beta": (first, t.beta),
            "margin": (first - second, t.margin),
            "delta": (js, t.delta),
            "disagreement": (1.0, 0.0),
        }
        assert [clause.name for clause in found.clauses] == list(expected)
        for clause in found.clauses:
            assert (clause.value, clause.threshold) == pytest.approx(expected[clause.name])
            assert clause.holds
        assert found.entropy == pytest.approx(-sum(q * math.log(q) for q in UNSURE))

    def test_entropy_is_a_sixth_where_asked_for(self, decision):
        gate = replace(decision, thresholds=replace(THRESHOLDS, entropy=0.5))
        clause = evidence(gate, UNSURE, MELANOMA).clauses[4]
        assert (clause.name, clause.threshold, clause.holds) == ("entropy", 0.5, True)
        assert clause.statement == "classifier spread (1.03 > 0.50)"

    def test_all_hold_exactly_where_the_gate_opens(self):
        """The evidence never contradicts the decision, in any precision, row by row."""
        for dtype in (np.float16, np.float32, np.float64):
            problem = make_problem(dtype=dtype)
            fitted = fit_and_tune(problem, preset=SMALL).decision_
            fitted = replace(fitted, thresholds=replace(THRESHOLDS, entropy=0.9))
            p, z = torch.from_numpy(problem.test.p[:60]), torch.from_numpy(problem.test.z[:60])
            decided = fitted.decide(p, z)
            opens = gate_opens(decided.signals, fitted.thresholds)
            assert 0 < opens.sum() < 60
            for i in range(60):
                found = explain(fitted, p[i : i + 1], z[i : i + 1])
                assert found.opened == bool(opens[i]) == all(clause.holds for clause in found.clauses)
                assert found.label == int(decided.p[i].argmax())
                assert ("moved from" in found.sentence) == (found.label != found.label_classifier)
                assert ("did not change" in found.sentence) == (not found.opened)


class TestMatches:
    def test_nearest_first_with_cosine_and_weight(self, decision):
        found = evidence(decision, UNSURE, [1.0, 0.5, 0.9, 0.2])
        bank = decision.bank
        query = np.array([1.0, 0.5, 0.9, 0.2]) / math.sqrt(2.1)
        cosines = {(c, k): float(bank.prototypes[c, k].numpy() @ query) for c, k in ((0, 0), (0, 1), (1, 0), (2, 0))}
        assert [(m.label, m.prototype) for m in found.matches] == sorted(cosines, key=lambda each: -cosines[each])
        for match in found.matches:
            assert match.cosine == pytest.approx(cosines[match.label, match.prototype])
            assert match.weight == float(bank.weight[match.label, match.prototype])
            assert match.name == NAMES[match.label]

    @pytest.mark.parametrize("tau", [1.0, 0.4])
    def test_shares_divide_retrievals_posterior(self, decision, tau):
        found = evidence(replace(decision, tau=tau), UNSURE, [1.0, 0.5, 0.9, 0.2])
        assert sum(match.share for match in found.matches) == pytest.approx(1)
        for c in range(3):  # nevus has two prototypes, and their shares are as e^(kappa cosine)
            assert sum(m.share for m in found.matches if m.label == c) == pytest.approx(found.p_similarity[c])
        first, second = (m for m in found.matches if m.label == 0)
        assert first.share / second.share == pytest.approx(math.exp(4 * (first.cosine - second.cosine)))

    def test_the_strongest_opposing_prototype(self, decision):
        found = evidence(decision, UNSURE, MELANOMA)
        assert found.label == 1
        assert found.opposing is not None
        assert found.opposing.label != 1
        assert found.opposing == next(match for match in found.matches if match.label != 1)

    def test_no_more_than_five_are_shown(self):
        problem = make_problem()
        fitted = fit_and_tune(problem, preset=SMALL).decision_
        found = explain(fitted, torch.from_numpy(problem.test.p[:1]), torch.from_numpy(problem.test.z[:1]))
        assert len(found.matches) == 5
        assert [m.cosine for m in found.matches] == sorted((m.cosine for m in found.matches), reverse=True)

    def test_classes_without_prototypes_are_never_named(self):
        z = np.eye(3)[[0, 0, 2, 2]] + 0.1 * np.eye(3)[[1, 2, 0, 1]]
        bank = PrototypeBank.fit(z, [0, 0, 2, 2], 1, n_classes=3)
        decision = Decision(bank=bank, thresholds=THRESHOLDS, prior=torch.ones(3) / 3)
        found = evidence(decision, UNSURE, [0.1, 0.2, 0.9])
        assert {match.label for match in found.matches} == {0, 2}
        assert sum(match.share for match in found.matches) == pytest.approx(1)

    @pytest.mark.parametrize(("group", "left"), [(None, "EF"), ("e", ""), ("a", "EF")])
    def test_the_cases_own_lesion_is_left_out(self, decision, group, left):
        match = evidence(decision, UNSURE, MELANOMA, group=group).matches[0]
        assert match.label == 1
        # E and F are of one lesion, of which the nearer is kept
        assert len(match.exemplars) == min(1, len(left))
        assert all(each.id in left for each in match.exemplars)

    def test_also_where_groups_are_numbers(self):
        z = np.array([[1.0, 0.0], [0.99, 0.1], [0.0, 1.0], [0.1, 0.99]])
        bank = PrototypeBank.fit(z, [0, 0, 1, 1], 1, groups=np.array([7, 8, 9, 10]))
        decision = Decision(bank=bank, thresholds=THRESHOLDS, prior=torch.ones(2) / 2)
        p, row = torch.tensor([[0.6, 0.4]]), torch.tensor([[1.0, 0.0]])
        for own in ("7", 7, np.int64(7)):
            found = explain(decision, p, row, group=own)  # type: ignore[arg-type]
            assert [each.group for each in found.matches[0].exemplars] == ["8"]


class TestTheRest:
    def test_posteriors_familiarity_and_guarantee(self, decision):
        found = evidence(decision, UNSURE, MELANOMA)
        assert found.p_classifier == tuple(UNSURE)
        assert found.p_similarity == pytest.approx(decision.bank.posterior(np.array([MELANOMA]), kappa=4.0)[0])
        assert found.p == pytest.approx([0.1 * c + 0.9 * s for c, s in zip(UNSURE, found.p_similarity, strict=True)])
        assert found.guarantees_similarity
        assert not evidence(replace(decision, rule="log-linear"), UNSURE, MELANOMA).guarantees_similarity
        assert found.familiarity == 0  # cosine 0.985, where every training row has 0.9999
        assert evidence(decision, UNSURE, decision.bank.prototypes[0, 0].tolist()).familiarity == 100

    def test_classes_are_numbered_where_no_name_is_given(self, decision):
        p, z = torch.tensor([UNSURE]), torch.tensor([MELANOMA])
        assert explain(decision, p, z).class_names == ("0", "1", "2")
        assert "moved from 0 to 1" in explain(decision, p, z).sentence
