from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import BANK, make_problem, splits_of, with_own_lesions

from tdumpra import PrototypeBank
from tdumpra.core.calibration import class_prior
from tdumpra.core.gate import GateThresholds
from tdumpra.method.decision import Decision
from tdumpra.method.evidence import explain
from tdumpra.method.outputs import ValidationOutputs
from tdumpra.runs.config import Config, config_text, read_config
from tdumpra.toml import ConfigError, from_plain
from tdumpra.tuning.fit import fit
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.presets import PRESETS, Preset
from tdumpra.tuning.result import Tuning
from tdumpra.tuning.search import Search
from tdumpra.tuning.settings import TuneConfig
from tdumpra.tuning.tune import setting_at, tune

BOUNDED = Preset(
    kappa=(10.0,), theta=(0.6, 1.0), beta=(0.0, 0.3), margin=(0.0, 0.2), delta=(0.0,), alpha=(0.3, 0.6),
    gates=("clauses", "calibrated"), fused_exponent=(0.0, 0.6), advantage=(0.0, 0.1), most_theta=0.9,
    chance_factor=2.0, least_margin=0.1, first_choices_only=True,
)  # fmt: skip


def problem_of(seed: int) -> tuple[PrototypeBank, ValidationOutputs, torch.Tensor]:
    problem = make_problem(seed, dtype=np.float64)
    bank = PrototypeBank.fit(problem.train.z, problem.train.y, 2)
    rows = ValidationOutputs.check(problem.val.p, problem.val.z, problem.val.y, problem.val.groups)
    return bank, rows, class_prior(torch.from_numpy(problem.train.y), 4)


def tuned(seed: int, preset: Preset = BOUNDED, **search: Any) -> Tuning:
    bank, rows, prior = problem_of(seed)
    return tune(bank, rows, prior, Search(preset, **search))


class TestBounds:
    @pytest.mark.parametrize(
        ("n_classes", "factor", "floor"),
        [(7, 2.0, 2 / 7), (2, 2.0, 0.75), (3, 2.0, 2 / 3), (4, 1.0, 0.25), (4, 9.0, 0.625), (5, 0.0, 0.0)],
    )
    def test_retrieval_must_beat_chance_by_a_factor(self, n_classes, factor, floor):
        """Never more than half way from chance to certainty: (1/2 + 1)/2 = 0.75 of two classes."""
        assert Preset(chance_factor=factor).least_beta(n_classes) == pytest.approx(floor)

    def test_candidates_beyond_a_bound_are_moved_to_it(self):
        found = replace(PRESETS["default"], beta=(0.0, 0.1, 0.4)).bounded(7)
        assert found.theta == (0.5, 0.6, 0.7, 0.8, 0.9)
        assert found.beta == (2 / 7, 0.4)
        assert found.margin == (0.1, 0.2, 0.3, 0.4, 0.5)

    @pytest.mark.parametrize("name", ["free", "paper", "paper-swapped", "rebalancing"])
    def test_the_other_presets_have_none(self, name):
        assert PRESETS[name].bounded(7) == PRESETS[name]
        assert not PRESETS[name].must_survive
        assert not PRESETS[name].first_choices_only
        assert (PRESETS[name].least_opened, PRESETS[name].least_disagreeing) == (0, 0)

    @pytest.mark.parametrize("kind", ["clauses", "calibrated"])
    @pytest.mark.parametrize("seed", range(3))
    def test_no_row_is_moved_outside_them(self, kind, seed):
        bank, rows, prior = problem_of(seed)
        tuning = tune(bank, rows, prior, Search(replace(BOUNDED, gates=(kind,))))
        assert (tuning.best.calibrated is not None) == (kind == "calibrated")
        decided = tuning.decision.decide(rows.p, rows.z)
        s, opened = decided.signals, decided.opened
        assert opened.any()
        assert s.gamma_cls[opened].max() < 0.9
        assert s.gamma_sim[opened].min() > 0.5  # twice chance
        assert s.margin_sim[opened].min() > 0.1
        label = decided.p.argmax(1)
        assert ((label == s.label_cls) | (label == s.label_sim)).all()
        assert decided.p[~opened].equal(decided.p_cls[~opened])

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"most_theta": 1.5}, "most_theta"), ({"least_margin": -0.1}, "least_margin"),
            ({"chance_factor": -1.0}, "chance_factor must be 0 or more"), ({"least_opened": -1}, "least_opened"),
            ({"tau": (0.0,)}, "tau"), ({"tau": 1.0}, "tau must be a tuple of candidates"),
        ],
    )  # fmt: skip
    def test_what_bounds_nothing_is_refused(self, wrong, message):
        with pytest.raises((ValueError, TypeError), match=message):
            Preset(**wrong)


class TestFirstChoicesOnly:
    THRESHOLDS = GateThresholds(theta=1.0, beta=0.0, margin=0.0, delta=0.0, alpha=0.5)

    def decisions(self) -> tuple[Decision, Decision]:
        bank, _, _ = problem_of(0)
        free = Decision(bank=bank, thresholds=self.THRESHOLDS, prior=torch.ones(4, dtype=torch.float64) / 4)
        return free, replace(free, first_choices_only=True)

    def test_a_third_class_leaves_the_row_as_it_is(self):
        free, strict = self.decisions()
        # 0.5 (0.5, 0.4, 0, 0.1) + 0.5 (0, 0.4, 0.5, 0.1): the second class wins, and neither names it
        p_cls = torch.tensor([[0.5, 0.4, 0.0, 0.1], [0.5, 0.3, 0.2, 0.0]], dtype=torch.float64)
        p_sim = torch.tensor([[0.0, 0.4, 0.5, 0.1], [0.0, 0.1, 0.9, 0.0]], dtype=torch.float64)
        before, after = free.decide_posteriors(p_cls, p_sim), strict.decide_posteriors(p_cls, p_sim)
        assert before.p.argmax(1).tolist() == [1, 2]
        assert before.opened.tolist() == [True, True]
        assert after.opened.tolist() == [False, True]
        assert after.p[0].equal(p_cls[0])
        assert after.p[1].equal(before.p[1])

    def test_it_is_kept_in_files_and_older_files_lack_it(self):
        free, strict = self.decisions()
        assert [each.to_json()["first_choices_only"] for each in (free, strict)] == [False, True]
        artifact = strict.to_artifact()
        assert Decision.from_artifact(artifact).first_choices_only
        del artifact.meta["decision"]["first_choices_only"]
        assert not Decision.from_artifact(artifact).first_choices_only

    def test_evidence_says_whether_it_holds(self):
        bank, rows, _ = problem_of(0)
        prior = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)
        strict = Decision(
            bank=bank, thresholds=self.THRESHOLDS, kappa=2.0, prior=prior, fused_exponent=1.0, first_choices_only=True
        )
        third = replace(strict, first_choices_only=False).decide(rows.p, rows.z)
        label = third.p.argmax(1)
        is_third = third.opened & (label != third.signals.label_cls) & (label != third.signals.label_sim)
        assert is_third.any()
        for i in (int(is_third.nonzero()[0]), int((third.opened & ~is_third).nonzero()[0])):
            evidence = explain(strict, rows.p[i : i + 1], rows.z[i : i + 1])
            clauses = {clause.name: clause.holds for clause in evidence.clauses}
            assert evidence.opened == clauses["first_choice"] == (not is_third[i])
            assert all(clauses.values()) == evidence.opened
            assert not evidence.is_third

    @pytest.mark.parametrize("objective", ["balanced_accuracy", "macro_f1", "nll"])
    @pytest.mark.parametrize("seed", range(2))
    def test_the_search_scores_what_the_decision_does(self, seed, objective):
        """Each place of both curves, against the one decision function; the calibrated one in sample."""
        bank, rows, prior = problem_of(seed)
        goal, flat = Goal(objective), replace(BOUNDED, kappa=(2.0,), chance_factor=1.0, least_margin=0.0)
        tuning, free = (
            tune(bank, rows, prior, Search(replace(flat, temperatures=False, first_choices_only=only), goal))
            for only in (True, False)
        )
        assert (tuning.curve.opened < free.curve.opened).any()  # there are third classes
        for index in np.ndindex(tuning.curve.objective.shape):
            setting = setting_at(tuning.curve, index)
            decided = setting.apply_to(tuning.decision).decide(rows.p, rows.z)
            found = goal.score(decided.p, rows.y)
            assert setting.accuracy == pytest.approx(found.accuracy)
            assert setting.opened == int(decided.opened.sum())
            assert setting.objective == pytest.approx(found.objective)
            assert setting.thresholds is not None
            assert setting.asked == pytest.approx(
                float((decided.signals.gamma_cls < setting.thresholds.theta).double().mean())
            )


class TestEnoughToJudge:
    def test_few_disagreeing_lesions_keep_the_gate_shut(self):
        bank, rows, prior = problem_of(0)
        p_sim = tune(bank, rows, prior, Search(replace(BOUNDED, gates=("clauses",)))).decision.similarity(rows.z)
        differ = (rows.p.argmax(1) != p_sim.argmax(1)).numpy()
        assert rows.groups is not None
        lesions = len(np.unique(rows.groups[differ]))
        for needed, shut in ((lesions, False), (lesions + 1, True)):
            found = tune(bank, rows, prior, Search(replace(BOUNDED, least_disagreeing=needed)))
            assert found.is_shut == shut
            notes = {note.kind: note.values for note in found.notes}
            assert notes.get("too few disagreements") == ({"lesions": lesions, "needed": needed} if shut else None)
            assert ("too few" in found.sentence()) == shut

    def test_lesions_are_counted_at_the_kappa_that_is_chosen(self):
        bank, rows, prior = problem_of(1)
        preset = replace(BOUNDED, kappa=(1.0, 100.0), gates=("clauses",))
        differ = {k: (rows.p.argmax(1) != bank.class_scores(rows.z, kappa=k).argmax(1)).numpy() for k in preset.kappa}
        lesions = {kappa: len(np.unique(rows.lesions()[rows_of])) for kappa, rows_of in differ.items()}
        here, most = lesions[tune(bank, rows, prior, Search(preset)).best.kappa], max(lesions.values())
        assert here < most
        for needed in (here, most):
            assert tune(bank, rows, prior, Search(replace(preset, least_disagreeing=needed))).is_shut == (needed > here)

    def test_a_gate_that_hardly_opened_is_no_candidate(self):
        opened = tuned(0).best.opened
        assert tuned(0, replace(BOUNDED, least_opened=opened)).best.opened == opened
        strict = tuned(0, replace(BOUNDED, least_opened=opened + 1))
        assert strict.is_shut or strict.best.opened > opened
        assert tuned(0, replace(BOUNDED, least_opened=201)).is_shut

    def test_a_part_of_the_rows_needs_its_share(self):
        part = PRESETS["default"].for_share(4 / 5)
        assert (part.least_disagreeing, part.least_opened) == (16, 8)
        assert replace(part, least_disagreeing=20, least_opened=10) == PRESETS["default"]


class TestTau:
    def test_candidates_are_searched_beside_kappa(self):
        tuning = tuned(0, Preset(kappa=(5.0, 20.0), tau=(0.5, 1.0, 3.0), temperatures=False))
        assert tuning.curve.axes["kappa"] == (5.0, 5.0, 5.0, 20.0, 20.0, 20.0)
        assert tuning.curve.tau == (0.5, 1.0, 3.0) * 2
        bank, rows, prior = problem_of(0)
        for i, (kappa, tau) in enumerate(zip(tuning.curve.axes["kappa"], tuning.curve.tau, strict=True)):
            alone = tune(bank, rows, prior, Search(Preset(kappa=(kappa,), tau=(tau,), temperatures=False)))
            assert np.array_equal(alone.curve.objective[0], tuning.curve.objective[i])
        assert tuning.best.objective == tuning.curve.objective[tuning.curve.accuracy >= tuning.base.accuracy].max()
        assert (tuning.decision.kappa, tuning.decision.tau) == (tuning.best.kappa, tuning.best.tau)

    @pytest.mark.parametrize("name", ["paper", "paper-swapped"])
    def test_the_papers_presets_search_it(self, name):
        assert 1.0 in PRESETS[name].tau
        assert len(PRESETS[name].tau) > 1


class TestCost:
    @pytest.mark.parametrize("kind", ["clauses", "calibrated"])
    @pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
    def test_no_more_rows_are_asked_about_than_allowed(self, kind, share):
        bank, rows, prior = problem_of(0)
        preset = replace(BOUNDED, gates=(kind,), most_theta=1.0)
        tuning = tune(bank, rows, prior, Search(preset, max_asked=share))
        asked = float((tuning.decision.classifier(rows.p).amax(1) < tuning.decision.thresholds.theta).double().mean())
        assert asked <= share
        assert max(tuning.curve.asked) <= share
        if not tuning.is_shut:
            assert tuning.best.asked == asked > 0

    def test_nothing_may_be_asked(self):
        assert tuned(0, max_asked=0.0).is_shut

    @pytest.mark.parametrize("gates", [("clauses",), ("calibrated",), ("clauses", "calibrated")])
    @pytest.mark.parametrize("tolerance", [0.005, 0.05, 0.2])
    def test_the_cheapest_theta_within_the_tolerance_is_taken(self, gates, tolerance):
        preset = replace(BOUNDED, theta=(0.4, 0.5, 0.6, 0.7, 0.8), gates=gates)
        dear, cheap = tuned(0, preset), tuned(0, preset, tolerance=tolerance)
        assert dear.base.objective < cheap.best.objective
        curves = [curve for curve in (cheap.curve, cheap.calibrated_curve) if curve is not None]
        curves = curves[-1:] if gates == ("calibrated",) else curves
        allowed = []
        for curve in curves:
            axis = list(curve.axes).index("theta")
            best = np.where(curve.accuracy >= cheap.base.accuracy, curve.objective, -np.inf)
            best = np.moveaxis(best, axis, 0).reshape(len(curve.asked), -1).max(1)
            allowed += list(zip(curve.asked, best, strict=True))
        top = max(objective for _, objective in allowed)
        cheapest = min(asked for asked, objective in allowed if objective >= max(top - tolerance, cheap.base.objective))
        assert cheap.best.objective >= top - tolerance - 1e-12
        assert cheap.best.asked == cheapest <= max(asked for asked, _ in allowed)

    def test_without_a_tolerance_nothing_changes(self):
        assert tuned(1).best == tuned(1, tolerance=0.0, max_asked=1.0).best

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"max_asked": 1.2}, "max_asked"), ({"max_asked": -0.1}, "max_asked"), ({"tolerance": -1.0}, "tolerance"),
            ({"tolerance": float("inf")}, "tolerance"), ({"tolerance": float("nan")}, "tolerance"),
        ],
    )  # fmt: skip
    def test_bad_values_are_refused(self, settings, message):
        with pytest.raises(ValueError, match=message):
            TuneConfig(**settings)
        with pytest.raises(ValueError, match=message):
            Search.check(n_classes=3, **settings)


class TestInToml:
    def read(self, tmp_path, text: str) -> Config:
        path = tmp_path / "own.toml"
        path.write_text(text)
        return read_config(path)

    def test_a_table_extends_a_preset(self, tmp_path):
        config = self.read(tmp_path, '[tune.preset]\nextends = "paper"\ntau = [0.5, 1]\nfirst_choices_only = true\n')
        wanted = replace(PRESETS["paper"], tau=(0.5, 1.0), first_choices_only=True)
        assert config.tune.searched() == config.tune.preset == wanted
        again = self.read(tmp_path, config_text(config, tmp_path))
        assert again.tune == config.tune

    def test_a_table_of_its_own(self, tmp_path):
        config = self.read(tmp_path, "[tune.preset]\nkappa = [7]\n")
        assert config.tune.preset == Preset(kappa=(7.0,))
        assert config.tune.preset_name not in PRESETS

    @pytest.mark.parametrize("name", PRESETS)
    def test_every_preset_comes_back_from_its_values(self, name, tmp_path):
        config = Config(tune=TuneConfig(preset=PRESETS[name]))
        assert self.read(tmp_path, config_text(config, tmp_path)).tune.preset == PRESETS[name]

    def test_a_preset_saved_without_a_number_for_merging_keeps_all(self):
        assert from_plain({**asdict(Preset()), "merge_above": None}, Preset) == Preset(merge_above=1.0)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[tune.preset]\nthta = [0.5]", "unknown key tune.preset.thta; did you mean 'theta'"),
            ('[tune.preset]\nextends = "papre"', "tune.preset.extends must be one of .*did you mean 'paper'"),
            ("[tune.preset]\nextends = 3", "extends must be one of"),
            ("[tune.preset]\ntheta = 0.5", "tune.preset.theta must be a list"),
            ("[tune.preset]\ntheta = [1.5]", "theta"),
            ("[tune.preset]\ntheta = []", "at least one candidate for theta"),
            ('[tune]\npreset = "papr"', "tune.preset must be one of 'default'"),
        ],
    )
    def test_mistakes_are_named(self, text, message, tmp_path):
        with pytest.raises(ConfigError, match=message):
            self.read(tmp_path, text)


def test_a_gate_of_the_default_preset_keeps_its_word():
    """On a problem where the free search asks next to nothing, the default asks for all of it."""
    splits = with_own_lesions(splits_of(0), 0)
    fitted = fit(splits, BANK, TuneConfig())
    assert not fitted.tuning.is_shut
    thresholds = fitted.tuning.decision.thresholds
    assert (thresholds.theta <= 0.9, thresholds.beta >= 0.5, thresholds.margin >= 0.1) == (True, True, True)
    assert fitted.tuning.decision.first_choices_only
    assert fitted.estimate is not None
    assert fitted.estimate.survives
    assert fitted.tuning.best.opened >= 10
