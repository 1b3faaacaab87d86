from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, astuple, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import Array, likeliest_temperature, make_problem, random_posterior

from tdumpra import GateThresholds, PrototypeBank, fuse
from tdumpra.core.calibration import class_prior
from tdumpra.core.chances import CalibratedGate
from tdumpra.core.metrics import OBJECTIVES
from tdumpra.method.outputs import TestOutputs, TrainOutputs, ValidationOutputs
from tdumpra.toml import from_plain
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.presets import PRESETS, Preset
from tdumpra.tuning.result import Setting, Tuning
from tdumpra.tuning.search import Search
from tdumpra.tuning.tune import choose, choose_prior_exponent, tune

FREE = Search(PRESETS["free"])
SMALL = Preset(
    fused_exponent=(0.0, 0.5),
    kappa=(5.0, 20.0),
    theta=(0.9, 0.5, 0.7),  # candidates need not come in order
    beta=(0.3, 0.6, 0.0),
    margin=(0.1, 0.3),
    delta=(0.1, 0.02),
    alpha=(0.3, 0.8),
)


def tune_on(seed: int, preset: Preset = SMALL, objective: Any = "balanced_accuracy", **changes: Any) -> Tuning:
    problem = make_problem(seed, dtype=np.float64)
    bank = PrototypeBank.fit(problem.train.z, problem.train.y, 2)
    arrays = {"p": problem.val.p, "z": problem.val.z, "y": problem.val.y, **changes}
    prior = class_prior(torch.from_numpy(problem.train.y), 4)
    return tune(bank, ValidationOutputs.check(**arrays), prior, Search.check(preset, objective, n_classes=4))


def score(objective: str, p: Array, y: Array) -> float:
    """What is maximised, by its definition."""
    label = p.argmax(1)
    if objective == "accuracy":
        return float((label == y).mean())
    if objective == "nll":
        return float(np.log(np.maximum(p[np.arange(len(y)), y], np.finfo(float).eps)).mean())
    if objective == "balanced_accuracy":  # over the classes that occur
        return float(np.mean([(label[y == c] == c).mean() for c in np.unique(y)]))
    f1 = [2 * ((label == c) & (y == c)).sum() / ((label == c).sum() + (y == c).sum()) for c in {*y, *label}]
    return float(np.mean(f1))


def naive_search(tuning: Tuning, preset: Preset, p_val: Array, z_val: Array, y_val: Array) -> list[Setting]:
    """Call ``fuse`` for each combination and score what comes out; strict before loose on every axis."""
    settings = []
    p_cls = tuning.decision.classifier(torch.from_numpy(p_val)).numpy()
    for kappa, tau in zip(preset.kappa, tuning.curve.tau, strict=True):
        p_sim = tuning.decision.bank.posterior(z_val, kappa=kappa, tau=tau)
        grid: Iterator[Any] = itertools.product(
            preset.rule,
            preset.alpha,
            preset.fused_exponent,
            sorted(preset.theta),
            *(sorted(values, reverse=True) for values in (preset.beta, preset.margin, preset.delta)),
        )
        for rule, alpha, exponent, theta, beta, margin, delta in grid:
            thresholds = GateThresholds(theta, beta, margin, delta, alpha)
            fused = fuse(p_cls, p_sim, thresholds, rule=rule)
            p = np.array(fused.p)
            opened = np.asarray(fused.opened)
            tilted = p[opened] / tuning.decision.prior.numpy() ** exponent
            p[opened] = tilted / tilted.sum(1, keepdims=True)
            objective, accuracy = (score(name, p, y_val) for name in (tuning.objective, "accuracy"))
            asked = float((p_cls.max(1) < theta).mean())
            settings.append(
                Setting(kappa, tau, rule, thresholds, objective, accuracy, int(opened.sum()), None, exponent, asked)
            )
    return settings


def naive_choice(settings: list[Setting], base: Setting) -> Setting | None:
    """Best objective at no lower accuracy, then fewest openings, then first; ``None`` is the shut gate."""
    best = None
    for setting in settings:
        if setting.accuracy < base.accuracy or round(setting.objective, 12) <= round(base.objective, 12):
            continue
        key = (-round(setting.objective, 12), setting.opened)
        if best is None or key < (-round(best.objective, 12), best.opened):
            best = setting
    return best


class TestFastSearchIsTheNaiveLoop:
    @pytest.mark.parametrize("objective", OBJECTIVES)
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_whole_curve_and_winner(self, seed, objective):
        tuning = tune_on(seed, objective=objective)
        val = make_problem(seed, dtype=np.float64).val
        settings = naive_search(tuning, SMALL, val.p, val.z, val.y)
        curve = tuning.curve
        assert curve.objective.shape == (2, 2, 2, 2, 3, 3, 2, 2)
        np.testing.assert_allclose(curve.objective.ravel(), [s.objective for s in settings], atol=1e-12)
        np.testing.assert_allclose(curve.accuracy.ravel(), [s.accuracy for s in settings], atol=1e-12)
        assert curve.opened.ravel().tolist() == [s.opened for s in settings]
        assert len(np.unique(curve.opened)) > 3  # the problem is not trivial
        expected = naive_choice(settings, tuning.base)
        assert expected is not None
        best, wanted = astuple(tuning.best), astuple(expected)
        assert best[:4] == wanted[:4]
        assert best[4:] == pytest.approx(wanted[4:])
        assert tuning.decision.thresholds == expected.thresholds
        assert (tuning.decision.kappa, tuning.decision.tau, tuning.decision.rule) == wanted[:3]

    def test_float32_is_compared_in_float32(self):
        """The gate compares float32 signals with float32 thresholds, and so must the search."""
        problem = make_problem(3)
        bank = PrototypeBank.fit(problem.train.z, problem.train.y, 2)
        p = problem.val.p.copy()
        p[:60] = [0.7, 0.1, 0.1, 0.1]  # float32(0.7) < 0.7 in float64, and equal to it in float32
        preset = Preset(theta=(0.5, 0.7, 0.9), kappa=(20.0,), temperatures=False)
        validation = ValidationOutputs.check(p, problem.val.z, problem.val.y)
        tuning = tune(bank, validation, torch.ones(4) / 4, Search(preset))
        p_sim = bank.posterior(problem.val.z)
        for i, theta in enumerate(tuning.curve.axes["theta"]):
            fused = fuse(p, p_sim, GateThresholds(float(theta), 0.0, 0.0, 0.05, 0.1))
            assert tuning.curve.opened[0, 0, 0, 0, i, -1, -1, -1] == fused.opened.sum()

    def test_signals_exactly_at_a_threshold_keep_the_gate_shut(self):
        # Two classes at right angles, one prototype each: with kappa = log 3 the row (1, 0) has scores log 3 and 0,
        # so p_sim = (0.75, 0.25), a top of 0.75 and a lead of 0.5, all exact in binary.
        with pytest.warns(UserWarning, match="more than the distinct groups"):
            bank = PrototypeBank.fit(np.eye(2), [0, 1], 2)
        z, p, y = np.array([[1.0, 0.0]] * 4), np.array([[0.375, 0.625]] * 4), [0, 0, 0, 1]
        kappa = math.log(3)
        assert bank.posterior(z, kappa=kappa)[0].tolist() == [0.75, 0.25]
        fixed: dict[str, Any] = {"kappa": (kappa,), "delta": (0.01,), "alpha": (0.1,), "rule": ("linear",)}

        def opened(theta: float, beta: float, margin: float) -> int:
            preset = Preset(theta=(theta,), beta=(beta,), margin=(margin,), temperatures=False, **fixed)
            tuning = tune(bank, ValidationOutputs.check(p, z, y), torch.ones(2) / 2, Search(preset))
            assert (
                tuning.curve.opened.item()
                == fuse(p, bank.posterior(z, kappa=kappa), GateThresholds(theta, beta, margin, 0.01, 0.1)).opened.sum()
            )
            return int(tuning.curve.opened.item())

        above, below = math.nextafter(0.625, 1), (math.nextafter(0.75, 0), math.nextafter(0.5, 0))
        assert opened(above, *below) == 4
        assert opened(0.625, *below) == 0
        assert opened(above, 0.75, below[1]) == 0
        assert opened(above, below[0], 0.5) == 0


class TestChoice:
    def test_ties_go_to_fewest_openings_then_to_the_strictest(self):
        tuning = tune_on(0)
        base = replace(tuning.base, objective=0.5, accuracy=0.5)
        curve = tuning.curve
        curve.objective[:], curve.accuracy[:], curve.opened[:] = 0.6, 0.5, 9
        strictest = choose(curve, base, FREE)
        assert strictest.kappa == 5.0
        assert strictest.thresholds == GateThresholds(theta=0.5, beta=0.6, margin=0.3, delta=0.1, alpha=0.3)
        curve.opened[1, 1, 1, 1, 2, 2, 1, 1] = 8
        loosest = choose(curve, base, FREE)
        assert (loosest.kappa, loosest.rule, loosest.tau, loosest.opened) == (20.0, "log-linear", curve.tau[1], 8)
        assert loosest.thresholds == GateThresholds(theta=0.9, beta=0.0, margin=0.1, delta=0.02, alpha=0.8)
        curve.objective[0, 0, 0, 1] = 0.7  # a better objective outweighs openings
        assert choose(curve, base, FREE).objective == 0.7

    def test_a_difference_in_the_last_bits_is_a_tie(self):
        curve = tune_on(0).curve
        curve.objective[:], curve.accuracy[:], curve.opened[:] = 0.6, 0.5, 9
        curve.objective[-1] += 1e-15
        base = Setting(1.0, 1.0, "linear", None, 0.6 - 1e-15, 0.5, 0)
        assert choose(curve, base, FREE).thresholds is None
        assert choose(curve, replace(base, objective=0.5), FREE).kappa == 5.0

    def test_do_no_harm(self):
        """A setting with the best objective is no candidate where accuracy falls, by as little as one row."""
        curve = tune_on(0).curve
        curve.objective[:], curve.accuracy[:], curve.opened[:] = 0.6, 0.8, 9
        curve.objective[0], curve.accuracy[0] = 0.9, 0.8 - 1 / 200
        base = Setting(1.0, 1.0, "linear", None, 0.5, 0.8, 0)
        assert (choose(curve, base, FREE).kappa, choose(curve, base, FREE).objective) == (20.0, 0.6)
        curve.accuracy[:] = 0.79
        assert choose(curve, base, FREE).thresholds is None

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_accuracy_and_objective_never_fall_on_validation(self, seed, objective):
        rng = np.random.default_rng(seed)  # labels that neither path knows anything about
        val = make_problem(seed, dtype=np.float64).val
        y = rng.integers(0, 4, len(val.y))
        tuning = tune_on(seed, objective=objective, y=y)
        after = tuning.decision.decide(torch.from_numpy(val.p), torch.from_numpy(val.z)).p.numpy()
        before = tuning.decision.classifier(torch.from_numpy(val.p)).numpy()
        assert score("accuracy", after, y) >= score("accuracy", val.p, y)
        assert score(objective, after, y) >= score(objective, before, y) - 1e-12
        assert score(objective, after, y) == pytest.approx(tuning.best.objective)


class TestShutGate:
    def test_without_any_disagreement(self):
        problem = make_problem(0, dtype=np.float64)
        bank = PrototypeBank.fit(problem.train.z, problem.train.y, 2)
        p = bank.posterior(problem.val.z)  # the classifier says what retrieval says
        tuning = tune_on(0, p=p)
        assert tuning.is_shut
        assert (tuning.curve.opened == 0).all()
        assert tuning.decision.thresholds == GateThresholds.shut()
        assert tuning.best.opened == 0
        assert "none raised balanced accuracy" in tuning.sentence()
        assert "200 validation rows" in tuning.sentence()

    def test_where_nothing_helps(self):
        val = make_problem(0).val
        p = np.eye(4)[val.y] * 0.7 + 0.075  # always right, never sure
        tuning = tune_on(0, replace(SMALL, temperatures=False), p=p)  # a temperature would make it sure
        assert tuning.is_shut
        assert tuning.curve.opened.max() > 0
        assert (tuning.best.objective, tuning.best.accuracy) == (1, 1)
        decided = tuning.decision.decide(torch.from_numpy(p), torch.from_numpy(val.z))
        assert not decided.opened.any()

    def test_keeps_the_concentration_under_which_retrieval_is_likeliest(self):
        val = make_problem(0, dtype=np.float64).val
        preset = replace(SMALL, kappa=(0.001, 20.0, 5.0))  # the first says next to nothing
        tuning = tune_on(0, preset, p=np.eye(4)[val.y] * 0.7 + 0.075)
        losses = [
            -score("nll", tuning.decision.bank.posterior(val.z, kappa=kappa, tau=tau), val.y)
            for kappa, tau in zip(preset.kappa, tuning.curve.tau, strict=True)
        ]
        assert tuning.curve.similarity_nll == pytest.approx(losses)
        likeliest = int(np.argmin(losses))
        assert likeliest > 0
        assert (tuning.decision.kappa, tuning.decision.tau) == (preset.kappa[likeliest], tuning.curve.tau[likeliest])

    def test_an_open_gate_says_what_it_won(self):
        tuning = tune_on(0)
        assert not tuning.is_shut
        assert f"from {tuning.base.objective:.4f} to {tuning.best.objective:.4f}" in tuning.sentence()
        assert f"open on {tuning.best.opened} rows" in tuning.sentence()
        assert f"{tuning.curve.objective.size} settings" in tuning.sentence()

    def test_a_loss_is_told_as_a_loss(self):
        tuning = tune_on(0, objective="nll")
        assert not tuning.is_shut
        before, after = -tuning.base.objective, -tuning.best.objective
        assert 0 < after < before
        assert f"lowers NLL from {before:.4f} to {after:.4f} at accuracy" in tuning.sentence()


class TestTemperatures:
    def test_are_the_likeliest(self):
        tuning, val = tune_on(0), make_problem(0, dtype=np.float64).val
        assert tuning.decision.temperature == pytest.approx(likeliest_temperature(np.log(val.p), val.y), rel=1e-3)
        for kappa, tau in zip(SMALL.kappa, tuning.curve.tau, strict=True):
            scores = np.log(tuning.decision.bank.posterior(val.z, kappa=kappa))
            assert tau == pytest.approx(likeliest_temperature(scores, val.y), rel=1e-3)

    def test_change_probabilities_and_no_label(self):
        tuning, val = tune_on(0), make_problem(0, dtype=np.float64).val
        assert abs(tuning.decision.temperature - 1) > 0.01
        calibrated = tuning.decision.classifier(torch.from_numpy(val.p)).numpy()
        assert np.array_equal(calibrated.argmax(1), val.p.argmax(1))
        assert score("nll", calibrated, val.y) > score("nll", val.p, val.y)

    def test_a_hopeless_classifier_keeps_its_labels_under_the_hottest_temperature(self):
        """So flat that float32 can hardly tell the classes apart: the label must not slip to a neighbour."""
        rng = np.random.default_rng(0)
        p = (0.25 + 1e-6 * rng.normal(size=(200, 4))).astype(np.float32)
        tuning = tune_on(0, p=p, y=(p.argmax(1) + 1) % 4)
        assert tuning.decision.temperature > 10
        calibrated = tuning.decision.classifier(torch.from_numpy(p))
        assert np.array_equal(calibrated.argmax(1), p.argmax(1))


class TestPresets:
    @pytest.mark.parametrize(("name", "alpha"), [("paper", 0.9), ("paper-swapped", 0.1)])
    def test_of_the_paper_fix_what_it_fixes(self, name, alpha):
        preset = PRESETS[name]
        assert (preset.kappa, preset.delta, preset.alpha, preset.rule) == ((20.0,), (0.05,), (alpha,), ("linear",))
        assert preset.theta == (0.5, 0.6, 0.7, 0.8, 0.9)
        assert preset.merge_above == 1
        decision = tune_on(0, preset).decision
        assert (decision.kappa, decision.temperature) == (20.0, 1.0)
        assert decision.tau in preset.tau
        assert (decision.rule, decision.prior_exponent) == ("linear", 0.0)

    def test_default_searches_at_least_ten_thousand_combinations(self):
        preset = PRESETS["free"]
        grid = (preset.kappa, preset.theta, preset.beta, preset.margin, preset.delta, preset.alpha, preset.rule)
        assert math.prod(len(values) for values in grid) >= 10_000
        assert preset.temperatures
        assert preset.merge_above == 0.999

    def test_json_round_trip(self):
        assert from_plain(json.loads(json.dumps(asdict(SMALL))), Preset) == SMALL

    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"theta": ()}, ValueError, "at least one candidate for theta"),
            ({"rule": ()}, ValueError, "at least one candidate for rule"),
            ({"theta": (0.5, 1.2)}, ValueError, "theta must lie between 0 and 1, not 1.2"),
            ({"beta": (-0.1,)}, ValueError, "beta must lie between 0 and 1, not -0.1"),
            ({"margin": (math.nan,)}, ValueError, "margin must lie between 0 and 1, not nan"),
            ({"delta": (0.7,)}, ValueError, "delta must lie between 0 and 0.6931, not 0.7"),
            ({"alpha": ("0.5",)}, TypeError, "alpha must be a number, not '0.5'"),
            ({"rule": ("geometric",)}, ValueError, "rule must be one of .*, not 'geometric'"),
            ({"kappa": (20.0, 0.0)}, ValueError, "kappa must be a finite number above 0, not 0.0"),
            ({"kappa": (math.inf,)}, ValueError, "kappa must be a finite number above 0, not inf"),
            ({"theta": 0.5}, TypeError, r"theta must be a tuple of candidates, not 0.5"),
            ({"rule": "linear"}, TypeError, r"rule must be a tuple of candidates, not 'linear'"),
        ],
    )
    @pytest.mark.usefixtures("without_shape_checks")
    def test_refusals(self, changes, error, message):
        with pytest.raises(error, match=message):
            Preset(**changes)


class TestPriorAdjustment:
    def test_exponent_by_naive_search(self):
        chosen, unconstrained = [], []
        for seed in range(4):
            problem = make_problem(seed, dtype=np.float64)
            p, y = problem.val.p, problem.val.y
            prior = np.bincount(problem.train.y) / len(problem.train.y)
            exponents = np.linspace(0, 1, 21).round(2)
            values = np.array([score("balanced_accuracy", p / prior**e, y) for e in exponents]).round(12)
            harmless = np.array([score("accuracy", p / prior**e, y) >= score("accuracy", p, y) for e in exponents])
            unconstrained.append(exponents[values.argmax()])
            chosen.append(exponents[np.where(harmless, values, -1).argmax()])
            rows, labels, shares = (torch.from_numpy(array) for array in (p, y, prior))
            assert choose_prior_exponent(rows, labels, shares, Goal()) == chosen[-1]
        assert any(chosen)
        assert chosen != unconstrained  # accuracy does stand in the way of some

    def test_off_unless_asked_for_and_applied_to_the_classifier(self):
        problem = make_problem(1, dtype=np.float64)
        bank = PrototypeBank.fit(problem.train.z, problem.train.y, 2)
        prior = class_prior(torch.from_numpy(problem.train.y), 4)
        validation = ValidationOutputs.check(*problem.val[:3])
        assert tune(bank, validation, prior).decision.prior_exponent == 0
        tuning = tune(bank, validation, prior, Search(SMALL, adjust_for_prior=True))
        exponent, temperature = tuning.decision.prior_exponent, tuning.decision.temperature
        assert exponent > 0
        expected = problem.val.p ** (1 / temperature) / prior.numpy() ** exponent
        expected /= expected.sum(1, keepdims=True)
        np.testing.assert_allclose(tuning.decision.classifier(validation.p), expected, atol=1e-12)
        assert tuning.base.objective == pytest.approx(score("balanced_accuracy", expected, problem.val.y))

    def test_harm_is_measured_against_the_classifier_as_it_came(self):
        problem = make_problem(1, dtype=np.float64)
        # as many rows of each class: the adjustment raises accuracy too
        rows = np.concatenate([np.flatnonzero(problem.val.y == c)[:15] for c in range(4)])
        p, z, y = (array[rows] for array in problem.val[:3])
        bank = PrototypeBank.fit(problem.train.z, problem.train.y, 2)
        prior = class_prior(torch.from_numpy(problem.train.y), 4)
        tuning = tune(bank, ValidationOutputs.check(p, z, y), prior, Search(SMALL, adjust_for_prior=True))
        adjusted = tuning.decision.classifier(torch.from_numpy(p)).numpy()
        assert tuning.base.accuracy == score("accuracy", p, y) < score("accuracy", adjusted, y)


class TestWhatMayBeTunedOn:
    def test_leakage_is_a_type(self):
        problem = make_problem(0)
        bank = PrototypeBank.fit(problem.train.z, problem.train.y, 2)
        prior = torch.ones(4) / 4
        with pytest.raises(TypeError, match="tuning needs validation outputs, not TestOutputs"):
            tune(bank, TestOutputs.check(*problem.test[:3]), prior)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="tuning needs validation outputs, not TrainOutputs"):
            tune(bank, TrainOutputs.check(problem.train.z, problem.train.y), prior)  # type: ignore[arg-type]

    def test_objective_must_exist(self):
        with pytest.raises(ValueError, match=r"objective must be one of balanced_accuracy.*, not 'auc'"):
            tune_on(0, objective="auc")

    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_a_class_may_be_missing_from_validation(self, objective):
        val = make_problem(0, dtype=np.float64).val
        kept = val.y != 3
        tuning = tune_on(0, objective=objective, p=val.p[kept], z=val.z[kept], y=val.y[kept])
        assert np.isfinite(tuning.curve.objective).all()
        settings = naive_search(tuning, SMALL, val.p[kept], val.z[kept], val.y[kept])
        np.testing.assert_allclose(tuning.curve.objective.ravel(), [s.objective for s in settings], atol=1e-12)

    def test_one_row_is_enough(self):
        val = make_problem(0).val
        tuning = tune_on(0, p=val.p[:1], z=val.z[:1], y=val.y[:1])
        assert tuning.n_rows == 1

    def test_certainties_of_zero_and_one(self):
        val = make_problem(0, dtype=np.float64).val
        tuning = tune_on(0, p=np.eye(4)[val.p.argmax(1)], objective="nll")
        assert np.isfinite(tuning.curve.objective).all()
        assert np.isfinite(tuning.decision.temperature)

    @pytest.mark.parametrize("gates", [("clauses",), ("calibrated",), ("clauses", "calibrated")])
    def test_a_certain_classifier_is_not_asked_when_tuned_as_when_used(self, gates):
        """Retrieval could mend much here, but a probability of one leaves nothing to decide."""
        val = make_problem(0, dtype=np.float64).val
        preset = replace(SMALL, theta=(0.5, 1.0), gates=gates)
        assert tune_on(0, preset, p=np.eye(4)[val.p.argmax(1)]).is_shut

    @pytest.mark.parametrize("seed", range(4))
    def test_certain_rows_are_no_part_of_what_a_calibrated_gate_is_credited_with(self, seed):
        val = make_problem(seed, dtype=np.float64).val
        certain = val.p.max(1) > 0.6
        p = np.where(certain[:, None], np.eye(4)[val.p.argmax(1)], val.p)
        tuning = tune_on(seed, replace(SMALL, gates=("calibrated",)), p=p)
        assert tuning.calibrated_curve is not None
        decided = tuning.decision.decide(torch.from_numpy(p), torch.from_numpy(val.z))
        disagree = (decided.p_cls.argmax(1) != decided.p_sim.argmax(1)).numpy()
        assert (disagree & certain).any()
        assert tuning.calibrated_curve.opened.max() <= (disagree & ~certain).sum()


class TestInANotebook:
    def test_what_was_found_in_two_lines(self):
        tuning = tune_on(0)
        thresholds = tuning.best.thresholds
        assert thresholds is not None
        first, second = repr(tuning).splitlines()
        assert first == f"Tuning({tuning.sentence()};"
        assert second.startswith(f"  kappa {tuning.best.kappa:.3g}, tau {tuning.best.tau:.3g}, ")
        assert f"alpha {thresholds.alpha:.3g}" in second
        assert len(repr(tuning.decision)) < 1000

    def test_of_a_calibrated_gate_only_what_holds(self):
        tuning = tune_on(0)
        weights = (0.0, 1.0, 0.0)
        best = replace(tuning.best, calibrated=CalibratedGate(weights, weights, 0.125))
        said = repr(replace(tuning, best=best))
        assert said.endswith("lead 0.125)")
        assert "theta" not in said

    def test_a_shut_gate_has_no_thresholds(self):
        tuning = tune_on(0)
        assert repr(replace(tuning, best=tuning.base)) == f"Tuning({replace(tuning, best=tuning.base).sentence()})"

    def test_a_curve(self):
        curve = tune_on(0).curve
        said = repr(curve)
        assert said.startswith(f"Curve({curve.objective.size:,} settings: {len(curve.axes['kappa'])} kappa × ")
        assert len(said) < 200


def test_artifact_round_trip_keeps_the_whole_curve():
    tuning = tune_on(0)
    again = Tuning.from_artifact(tuning.to_artifact())
    assert (again.base, again.best, again.n_rows, again.objective) == (
        tuning.base,
        tuning.best,
        tuning.n_rows,
        tuning.objective,
    )
    assert again.curve.axes == tuning.curve.axes
    for name in ("tau", "similarity_nll", "asked"):
        assert getattr(again.curve, name) == getattr(tuning.curve, name)
    for name in ("objective", "accuracy", "opened"):
        assert np.array_equal(getattr(again.curve, name), getattr(tuning.curve, name))


def test_random_posteriors_give_the_same_winner_over_many_small_problems():
    """Few rows and coarse thresholds: ties everywhere, so that only the stated order decides."""
    bank = PrototypeBank.fit(np.eye(3)[[0, 1, 2, 0, 1, 2]], [0, 1, 2, 0, 1, 2], 1)
    axes: dict[str, Any] = {"theta": (0.5, 0.9), "beta": (0.0, 0.5), "margin": (0.0, 0.2), "delta": (0.05,)}
    preset = Preset(kappa=(3.0, 6.0), alpha=(0.5,), temperatures=False, **axes)
    winners = set()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        p, z, y = random_posterior(rng, 12, 3), np.abs(rng.normal(size=(12, 3))), rng.integers(0, 3, 12)
        tuning = tune(bank, ValidationOutputs.check(p, z, y), torch.ones(3) / 3, Search(preset, Goal("accuracy")))
        expected = naive_choice(naive_search(tuning, preset, p, z, y), tuning.base)
        assert tuning.best.thresholds == (expected and expected.thresholds)
        if expected is not None:
            assert astuple(tuning.best)[:3] == astuple(expected)[:3]
        winners.add(tuning.best.thresholds)
    assert len(winners) > 3
