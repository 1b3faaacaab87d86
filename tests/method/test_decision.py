from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support import THRESHOLDS, Array, equal_tensors, make_problem, random_posterior

from tdumpra import GateThresholds, PrototypeBank
from tdumpra.errors import ArtifactError
from tdumpra.method.decision import Decision


@pytest.fixture(scope="module")
def decision() -> Decision:
    train = make_problem(dtype=np.float64).train
    return Decision(
        bank=PrototypeBank.fit(train.z, train.y, 3, train.groups),
        thresholds=THRESHOLDS,
        kappa=8.0,
        tau=0.7,
        temperature=1.3,
        prior=torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64),
    )


def rows(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(random_posterior(rng, n, 4)), torch.from_numpy(rng.normal(size=(n, 8)))


def powers(p: Array, exponent: float) -> Array:
    scaled: Array = p**exponent
    return scaled / scaled.sum(1, keepdims=True)  # type: ignore[no-any-return]


class TestClassifier:
    def test_nothing_fitted_gives_the_very_rows_back(self, decision):
        p, _ = rows(5)
        assert replace(decision, temperature=1.0).classifier(p) is p

    def test_temperature_then_prior(self, decision):
        p, _ = rows(50)
        np.testing.assert_allclose(decision.classifier(p), powers(p.numpy(), 1 / 1.3), atol=1e-14)
        adjusted = powers(p.numpy(), 1 / 1.3) / np.array([0.4, 0.3, 0.2, 0.1]) ** 0.5
        found = replace(decision, prior_exponent=0.5).classifier(p)
        np.testing.assert_allclose(found, adjusted / adjusted.sum(1, keepdims=True), atol=1e-14)

    def test_a_bias_multiplies_after_the_temperature(self, decision):
        p, _ = rows(50)
        bias = (1.0, -1.0, 0.0, 0.5)
        raised = powers(p.numpy(), 1 / 1.3) * np.exp(bias)
        found = replace(decision, class_bias=bias).classifier(p)
        np.testing.assert_allclose(found, raised / raised.sum(1, keepdims=True), atol=1e-14)


class TestDecide:
    @pytest.mark.parametrize("rule", ["linear", "log-linear"])
    def test_row_by_row_in_plain_numbers(self, decision, rule):
        p, z = rows(300)
        decided = replace(decision, rule=rule).decide(p, z)
        p_cls, p_sim = powers(p.numpy(), 1 / 1.3), decision.bank.posterior(z.numpy(), kappa=8.0, tau=0.7)
        np.testing.assert_allclose(decided.p_sim, p_sim, atol=1e-12)
        for i in range(300):
            c, s = p_cls[i], p_sim[i]
            first, second = sorted(s)[::-1][:2]
            middle = (c + s) / 2
            js = (c * np.log(c / middle) + s * np.log(s / middle)).sum() / 2
            opens = c.max() < 0.6 and first > 0.5 and first - second > 0.2 and js > 0.05 and c.argmax() != s.argmax()
            fused = 0.1 * c + 0.9 * s if rule == "linear" else c**0.1 * s**0.9
            np.testing.assert_allclose(decided.p[i], fused / fused.sum() if opens else c, atol=1e-12)
            assert bool(decided.opened[i]) == opens
            assert decided.signals.js[i] == pytest.approx(js)
        assert 20 < decided.opened.sum() < 280

    def test_shut_rows_are_the_classifiers_to_the_bit(self, decision):
        p, z = rows(500)
        for dtype in (torch.float16, torch.float32, torch.float64):
            decided = decision.decide(p.to(dtype), z)
            shut = ~decided.opened
            assert shut.any()
            assert torch.equal(decided.p[shut], decided.p_cls[shut])
            assert torch.equal(decided.p_cls, decision.classifier(p.to(dtype).to(decided.p.dtype)))

    def test_the_entropy_clause_only_shuts(self, decision):
        p, z = rows(300)
        without, with_it = (
            replace(decision, thresholds=replace(THRESHOLDS, entropy=limit)).decide(p, z) for limit in (None, 1.2)
        )
        spread = without.signals.entropy_cls > 1.2
        assert torch.equal(with_it.opened, without.opened & spread)
        assert (without.opened & ~spread).any()

    def test_many_rows_go_in_pieces_and_come_back_in_order(self, decision, monkeypatch):
        monkeypatch.setattr("tdumpra.method.decision._CHUNK", 4096)
        p, z = rows(4096 + 40)
        whole = decision.decide(p, z)
        assert [len(part.p) for part in decision.chunks(p, z)] == [4096, 40]
        backwards = decision.decide(p.flip(0), z.flip(0))
        assert torch.equal(whole.opened, backwards.opened.flip(0))
        for name in ("p", "p_cls", "p_sim"):
            torch.testing.assert_close(getattr(whole, name), getattr(backwards, name).flip(0))
        torch.testing.assert_close(whole.signals.margin_sim, backwards.signals.margin_sim.flip(0))

    @pytest.mark.parametrize("rule", ["linear", "log-linear"])
    def test_a_power_of_the_prior_where_the_gate_is_open(self, decision, rule):
        p, z = rows(300)
        plain, tilted = (replace(decision, rule=rule, fused_exponent=t).decide(p, z) for t in (0.0, 0.6))
        assert torch.equal(tilted.opened, plain.opened)
        assert torch.equal(tilted.p[~plain.opened], plain.p[~plain.opened])
        expected = plain.p[plain.opened].numpy() / np.array([0.4, 0.3, 0.2, 0.1]) ** 0.6
        np.testing.assert_allclose(tilted.p[plain.opened], expected / expected.sum(1, keepdims=True), atol=1e-12)
        assert not torch.equal(tilted.p.argmax(1), plain.p.argmax(1))

    def test_no_rows(self, decision):
        p, z = rows(3)
        decided = decision.decide(p[:0], z[:0])
        assert decided.p.shape == (0, 4)
        assert decided.opened.shape == decided.signals.js.shape == (0,)

    def test_half_precision_is_computed_in_float32(self, decision):
        p, z = rows(10)
        assert decision.decide(p.half(), z.half()).p.dtype == torch.float32
        assert decision.decide(p, z.float()).p.dtype == torch.float64


class TestGuarantee:
    # (1 - alpha) m >= alpha theta: at alpha 0.1, theta 0.6, m 0.2 that is 0.18 >= 0.06; at alpha 0.3: 0.14 < 0.18
    @pytest.mark.parametrize(
        ("alpha", "rule", "holds"),
        [
            (0.1, "linear", True),
            (0.3, "linear", False),
            (0.0, "linear", True),
            (0.1, "log-linear", False),
            (0.0, "log-linear", True),
        ],
    )
    def test_is_stated_for_the_rule_in_use(self, decision, alpha, rule, holds):
        changed = replace(decision, thresholds=replace(THRESHOLDS, alpha=alpha), rule=rule)
        assert changed.guarantees_similarity is holds

    def test_a_power_of_the_prior_takes_it_away(self, decision):
        assert decision.guarantees_similarity
        tilted = replace(decision, fused_exponent=0.8)
        assert tilted.guarantees_similarity is False
        decided = tilted.decide(*rows(4000))
        assert (decided.p.argmax(1)[decided.opened] != decided.signals.label_sim[decided.opened]).any()

    def test_where_stated_an_open_gate_follows_retrieval(self, decision):
        p, z = rows(4000)
        decided = decision.decide(p, z)
        assert decision.guarantees_similarity
        assert decided.opened.sum() > 100
        assert torch.equal(decided.p.argmax(1)[decided.opened], decided.signals.label_sim[decided.opened])

    def test_a_log_linear_gate_can_do_otherwise(self, decision):
        """A class that the classifier rules out cannot win: the linear bound must not be claimed."""
        z = decision.bank.prototypes[1, :1]
        p = torch.tensor([[0.55, 0.0, 0.25, 0.2]], dtype=torch.float64)
        decided = replace(decision, rule="log-linear", temperature=1.0).decide(p, z)
        assert decided.opened.all()
        assert decided.signals.label_sim.item() == 1
        assert decided.p.argmax(1).item() != 1


def test_artifact_round_trip(decision):
    changed = replace(
        decision, rule="log-linear", prior_exponent=0.25, fused_exponent=0.4, thresholds=GateThresholds.shut()
    )
    again = Decision.from_artifact(changed.to_artifact())
    assert equal_tensors(changed.to_artifact().tensors, again.to_artifact().tensors)
    for name in ("thresholds", "kappa", "tau", "temperature", "rule", "prior_exponent", "fused_exponent"):
        assert getattr(again, name) == getattr(changed, name)


def test_it_cannot_be_changed(decision):
    with pytest.raises(AttributeError):
        decision.kappa = 3.0


class TestClassBiasInAFile:
    def test_it_is_read_to_the_bit(self, decision):
        biased = replace(decision, class_bias=(0.1, -1 / 3, 0.0, 2.0))
        assert Decision.from_artifact(biased.to_artifact()).class_bias == biased.class_bias
        assert Decision.from_artifact(decision.to_artifact()).class_bias == ()

    @pytest.mark.parametrize("bias", [[1.0], ["a"] * 4, [float("inf"), 0, 0, 0], [True, 0, 0, 0], 3])
    def test_nonsense_is_refused(self, decision, bias):
        artifact = decision.to_artifact()
        artifact.meta["decision"]["class_bias"] = bias
        with pytest.raises(ArtifactError, match="class_bias"):
            Decision.from_artifact(artifact)
